// The gradient of a block-sparse kernel (SDD): dW = (X^T dY) * M, and db, the sums of dY.
//
// The sum over samples is cut into slices whose number depends on the shapes alone, so the result
// does not depend on the number of threads. A slice sums its own copy of the kept blocks.
#pragma once

#include "operands.h"

namespace sparsemlp {

// How the sum over units and the kept blocks are shared out; a function of shapes alone.
struct Division {
  int64_t slices, units_per_slice, groups, blocks_per_group, units_per_chunk;
};

inline Division divide(const Kept& kept, int64_t n_units, int64_t depth_per_unit) {
  depth_per_unit = std::max<int64_t>(1, depth_per_unit);  // channels may be none
  constexpr int64_t kTasks = 16, kChunkBytes = 512 << 10;
  const Grid& grid = kept.grid;
  const int64_t depth = n_units * depth_per_unit;
  const int64_t operands = depth * (grid.in + grid.out);
  const int64_t sums = std::max<int64_t>(1, kept.n * grid.rows * grid.cols);
  Division d;
  d.slices = std::min({kTasks, operands / (4 * sums), depth / 256, n_units});
  d.slices = std::max<int64_t>(1, d.slices);
  d.units_per_slice = std::max<int64_t>(1, ceil_div(n_units, d.slices));
  d.groups = std::max<int64_t>(1, std::min(kept.n, kTasks / d.slices));
  d.blocks_per_group = std::max<int64_t>(1, ceil_div(kept.n, d.groups));
  const int64_t unit_bytes = 4 * depth_per_unit * std::max<int64_t>(1, grid.in);
  d.units_per_chunk = std::min(std::max<int64_t>(1, 128 / depth_per_unit),
                               std::max(kChunkBytes / unit_bytes, ceil_div(32, depth_per_unit)));
  return d;
}

// Adds up the slices of the kept blocks, and writes them among zeros to dw [in, out].
template <typename T>
void write_gradient(const Pool& pool, const Kept& kept, const float* sums, int64_t n_slices,
                    int64_t slice_size, T* dw) {
  const Grid& grid = kept.grid;
  const int64_t stride = round_up(grid.rows, kLanes), block_size = grid.cols * stride;
  parallel_for(pool, grid.down(), [&](int64_t k) {
    const int32_t* first = std::lower_bound(kept.ids, kept.ids + kept.n, k * grid.across());
    const int32_t* last = std::lower_bound(first, kept.ids + kept.n, (k + 1) * grid.across());
    for (int64_t r = 0; r < grid.cols; ++r) {
      T* row = dw + (k * grid.cols + r) * grid.out;
      std::fill_n(row, grid.out, T{});
      for (const int32_t* id = first; id < last; ++id) {
        const float* from = sums + (id - kept.ids) * block_size + r * stride;
        T* to = row + (*id % grid.across()) * grid.rows;
        for (int64_t c = 0; c < grid.rows; c += kLanes) {
          Vec total{};
          for (int64_t slice = 0; slice < n_slices; ++slice) {
            total += load(from + slice * slice_size + c);
          }
          const int64_t columns = std::min<int64_t>(kLanes, grid.rows - c);
          for (int64_t i = 0; i < columns; ++i) narrow(total[i], to + c + i);
        }
      }
    }
  });
}

// dw [in, out] with zeros in dropped blocks; db [out] unless null.
template <typename T, typename Operands>
void kernel_gradient(const Pool& pool, const Operands& operands, int64_t n_units, const Kept& kept,
                     T* dw, T* db) {
  const Grid& grid = kept.grid;
  const Division division = divide(kept, n_units, operands.depth_per_unit());
  const int64_t stride = round_up(grid.rows, kLanes), block_size = grid.cols * stride;
  expect_writes(dw, grid.in * grid.out * sizeof(T));
  Buffer sums_buffer;
  const int64_t slice_size = kept.n * block_size;
  float* sums = sums_buffer.at_least(division.slices * (slice_size + grid.out));
  float* dy_sums = sums + division.slices * slice_size;
  const int64_t tile_rows = ceil_div(grid.cols, ceil_div(grid.cols, kTileRows));

  const Groups columns = group(kept, false);
  // Which group of blocks adds up the outputs of block o of dy.
  const auto owner = [&](int64_t o) {
    return std::min(division.groups - 1, columns.begin[o] / division.blocks_per_group);
  };

  parallel_for(pool, division.slices * division.groups, [&](int64_t task) {
    const int64_t slice = task / division.groups, part = task % division.groups;
    const int64_t begin = std::min(kept.n, part * division.blocks_per_group);
    const int64_t end = std::min(kept.n, begin + division.blocks_per_group);
    const int64_t last = std::min(n_units, (slice + 1) * division.units_per_slice);
    std::vector<bool> down(grid.down());
    float* const slice_sums = sums + slice * slice_size;
    for (int64_t p = begin; p < end; ++p) {
      down[columns.input[p]] = true;
      std::fill_n(slice_sums + columns.slot[p] * block_size, block_size, 0.0f);
    }
    float* const dy_sum = dy_sums + slice * grid.out;
    for (int64_t o = 0; o < columns.count(); ++o) {
      if (owner(o) == part) std::fill_n(dy_sum + o * grid.rows, grid.rows, 0.0f);
    }
    Operands local = operands;
    Tile tile{};
    tile.out_stride = stride;
    tile.finish = Finish::kAdd;
    for (int64_t u = slice * division.units_per_slice; u < last; u += division.units_per_chunk) {
      local.open(u, std::min(division.units_per_chunk, last - u), down, &tile);
      for (int64_t o = 0; o < columns.count(); ++o) {
        const int64_t stop = std::min(end, columns.begin[o + 1]);
        int64_t p = std::max(begin, columns.begin[o]);
        float* const db_sum = db && owner(o) == part ? dy_sum + o * grid.rows : nullptr;
        if (p >= stop && !db_sum) continue;
        local.open_strip(o, db_sum, &tile);
        const float* const b = tile.b;
        for (; p < stop; ++p) {
          const float* a = local.block(columns.input[p]);
          float* out = slice_sums + columns.slot[p] * block_size;
          for (int64_t c = 0; c < grid.rows; c += 2 * kLanes) {
            tile.b = b + c;
            for (int64_t r = 0; r < grid.cols; r += tile_rows) {
              tile.a = a + local.row_offset(r);
              tile.out = out + r * stride + c;
              const int64_t rows = std::min(tile_rows, grid.cols - r);
              for (int64_t row = 0; row < rows; ++row) {
                __builtin_prefetch(tile.out + row * stride, 1);
                __builtin_prefetch(tile.out + row * stride + kLanes, 1);
              }
              run<Operands::order>(tile, rows, grid.rows - c);
            }
          }
        }
      }
    }
  });

  write_gradient(pool, kept, sums, division.slices, slice_size, dw);
  if (db) write_sums(dy_sums, division.slices, grid.out, grid.out, db);
}

}  // namespace sparsemlp
