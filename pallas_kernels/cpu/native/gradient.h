// The gradient of a block-sparse kernel (SDD): dW = (X^T dY) * M, and db, the sums of dY.
//
// The sum over samples is cut into slices whose number depends on the shapes alone, so the result
// does not depend on the number of threads. A slice sums its own copy of the kept blocks.
#pragma once

#include "product.h"

namespace sparsemlp {

// x [n, in] and dy [n, out]: a unit is a row.
template <typename T>
class FeatureOperands {
 public:
  FeatureOperands(const T* x, const T* dy, const Grid& grid)
      : x_(x), dy_(dy), grid_(grid), stride_(round_up(grid.rows, kLanes)) {
    copies_ = !std::is_same_v<T, float> || grid.rows % kLanes != 0 || grid.in + grid.out > 1024;
  }
  static constexpr Order order = Order::kDepthMajor;
  int64_t depth_per_unit() const { return 1; }

  // Brings units [first, first + n) into reach of `tile`, blocks of `down` and `across` marked.
  void open(int64_t first, int64_t n, const std::vector<bool>& down,
            const std::vector<bool>& across, Tile* tile) {
    first_ = first;
    n_ = n;
    segment_ = {0, 0};
    tile->segments = &segment_;
    tile->n_segments = 1;
    tile->depth = n;
    tile->a_stride = copies_ ? grid_.cols : grid_.in;
    tile->b_stride = copies_ ? stride_ : grid_.out;
    if (!copies_) return;
    thread_local Buffer x_buffer, dy_buffer;
    x_copy_ = x_buffer.at_least(n * grid_.in);
    dy_copy_ = dy_buffer.at_least(n * grid_.across() * stride_);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t k = 0; k < grid_.down(); ++k) {
        if (!down[k]) continue;
        widen_row(x_ + (first + r) * grid_.in + k * grid_.cols, grid_.cols,
                  x_copy_ + (k * n + r) * grid_.cols);
      }
      for (int64_t o = 0; o < grid_.across(); ++o) {
        if (!across[o]) continue;
        float* to = dy_copy_ + (o * n + r) * stride_;
        widen_row(dy_ + (first + r) * grid_.out + o * grid_.rows, grid_.rows, to);
        for (int64_t c = grid_.rows; c < stride_; ++c) to[c] = 0;
      }
    }
  }
  void aim(int64_t down, int64_t across, Tile* tile) const {
    if (copies_) {
      tile->a = x_copy_ + down * n_ * grid_.cols;
      tile->b = dy_copy_ + across * n_ * stride_;
    } else {
      tile->a = reinterpret_cast<const float*>(x_) + first_ * grid_.in + down * grid_.cols;
      tile->b = reinterpret_cast<const float*>(dy_) + first_ * grid_.out + across * grid_.rows;
    }
  }
  int64_t row_offset(int64_t row) const { return row; }

  void add_sums(float* sums) const {
    for (int64_t r = 0; r < n_; ++r) {
      const T* row = dy_ + (first_ + r) * grid_.out;
      for (int64_t o = 0; o < grid_.out; ++o) sums[o] += widen(row[o]);
    }
  }

 private:
  const T *x_, *dy_;
  Grid grid_;
  int64_t stride_, first_ = 0, n_ = 0;
  bool copies_;
  float *x_copy_ = nullptr, *dy_copy_ = nullptr;
  Segment segment_{};
};

// x [n, in, channels] and dy [n, out, channels]: a unit is a sample. dY is turned, so that its
// outputs lie side by side in a vector.
template <typename T>
class TokenOperands {
 public:
  TokenOperands(const T* x, const T* dy, int64_t channels, const Grid& grid)
      : x_(x), dy_(dy), channels_(channels), grid_(grid), stride_(round_up(grid.rows, kLanes)) {}
  static constexpr Order order = Order::kRowMajor;
  int64_t depth_per_unit() const { return channels_; }

  void open(int64_t first, int64_t n, const std::vector<bool>& /*down*/,
            const std::vector<bool>& across, Tile* tile) {
    first_ = first;
    n_ = n;
    const int64_t x_size = grid_.in * channels_, stripe = channels_ * stride_;
    const int64_t dy_size = grid_.across() * stripe;
    thread_local Buffer x_buffer, dy_buffer;
    if (std::is_same_v<T, float>) {
      a_ = reinterpret_cast<const float*>(x_) + first * x_size;
    } else {
      float* copy = x_buffer.at_least(n * x_size);
      widen_row(x_ + first * x_size, n * x_size, copy);
      a_ = copy;
    }
    dy_copy_ = dy_buffer.at_least(n * dy_size);
    segments_.resize(n);
    for (int64_t s = 0; s < n; ++s) {
      segments_[s] = {s * x_size, s * dy_size};
      for (int64_t o = 0; o < grid_.across(); ++o) {
        if (!across[o]) continue;
        const T* from = dy_ + ((first + s) * grid_.out + o * grid_.rows) * channels_;
        float* to = dy_copy_ + s * dy_size + o * stripe;
        transpose(from, channels_, grid_.rows, channels_, to, stride_);
        for (int64_t c = 0; c < channels_; ++c) {
          for (int64_t i = grid_.rows; i < stride_; ++i) to[c * stride_ + i] = 0;
        }
      }
    }
    tile->segments = segments_.data();
    tile->n_segments = n;
    tile->depth = channels_;
    tile->a_stride = channels_;
    tile->b_stride = stride_;
  }
  void aim(int64_t down, int64_t across, Tile* tile) const {
    tile->a = a_ + down * grid_.cols * channels_;
    tile->b = dy_copy_ + across * channels_ * stride_;
  }
  int64_t row_offset(int64_t row) const { return row * channels_; }

  void add_sums(float* sums) const {
    for (int64_t s = 0; s < n_; ++s) {
      const T* from = dy_ + (first_ + s) * grid_.out * channels_;
      for (int64_t o = 0; o < grid_.out; ++o, from += channels_) {
        Vec lanes{};
        int64_t c = 0;
        for (; c + kLanes <= channels_; c += kLanes) lanes += load_widened(from + c);
        float sum = 0;
        for (; c < channels_; ++c) sum += widen(from[c]);
        sums[o] += sum + sum_lanes(lanes);
      }
    }
  }

 private:
  const T *x_, *dy_;
  int64_t channels_;
  Grid grid_;
  int64_t stride_, first_ = 0, n_ = 0;
  const float* a_ = nullptr;
  float* dy_copy_ = nullptr;
  std::vector<Segment> segments_;
};

// How the sum over units and the kept blocks are shared out; a function of shapes alone.
struct Division {
  int64_t slices, units_per_slice, groups, blocks_per_group, units_per_chunk;
};

inline Division divide(const Kept& kept, int64_t n_units, int64_t depth_per_unit) {
  depth_per_unit = std::max<int64_t>(1, depth_per_unit);  // channels may be none
  constexpr int64_t kTasks = 16, kChunkBytes = 1024 << 10;
  const Grid& grid = kept.grid;
  const int64_t depth = n_units * depth_per_unit;
  const int64_t operands = depth * (grid.in + grid.out);
  const int64_t sums = std::max<int64_t>(1, kept.n * grid.rows * grid.cols);
  Division d;
  d.slices = std::min({kTasks, operands / (4 * sums), depth / 256, n_units});
  d.slices = std::max<int64_t>(1, d.slices);
  d.units_per_slice = std::max<int64_t>(1, ceil_div(n_units, d.slices));
  d.groups = std::max<int64_t>(1, std::min(kept.n, kTasks / d.slices));
  d.blocks_per_group = ceil_div(kept.n, d.groups);
  const int64_t unit_bytes = 4 * depth_per_unit * std::max<int64_t>(1, grid.in + grid.out);
  d.units_per_chunk = std::min(std::max<int64_t>(1, 256 / depth_per_unit),
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

// Adds up the slices of a row of sums.
template <typename T>
void write_sums(const float* sums, int64_t n_slices, int64_t slice_size, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) {
    float total = 0;
    for (int64_t slice = 0; slice < n_slices; ++slice) total += sums[slice * slice_size + i];
    narrow(total, out + i);
  }
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

  parallel_for(pool, division.slices * division.groups, [&](int64_t task) {
    const int64_t slice = task / division.groups, part = task % division.groups;
    const int64_t begin = std::min(kept.n, part * division.blocks_per_group);
    const int64_t end = std::min(kept.n, begin + division.blocks_per_group);
    const int64_t last = std::min(n_units, (slice + 1) * division.units_per_slice);
    std::vector<bool> down(grid.down()), across(grid.across());
    for (int64_t s = begin; s < end; ++s) down[kept.down(s)] = across[kept.across(s)] = true;
    std::fill(sums + slice * slice_size + begin * block_size,
              sums + slice * slice_size + end * block_size, 0.0f);
    float* dy_sum = dy_sums + slice * grid.out;
    if (part == 0) std::fill(dy_sum, dy_sum + grid.out, 0.0f);
    Operands local = operands;
    Tile tile{};
    for (int64_t u = slice * division.units_per_slice; u < last; u += division.units_per_chunk) {
      local.open(u, std::min(division.units_per_chunk, last - u), down, across, &tile);
      for (int64_t s = begin; s < end; ++s) {
        Tile block = tile;
        block.out_stride = stride;
        block.finish = Finish::kAdd;
        local.aim(kept.down(s), kept.across(s), &block);
        const float *a = block.a, *b = block.b;
        for (int64_t c = 0; c < grid.rows; c += 2 * kLanes) {
          for (int64_t r = 0; r < grid.cols; r += tile_rows) {
            block.a = a + local.row_offset(r);
            block.b = b + c;
            block.out = sums + slice * slice_size + s * block_size + r * stride + c;
            const int64_t rows = std::min(tile_rows, grid.cols - r);
            for (int64_t row = 0; row < rows; ++row) {
              __builtin_prefetch(block.out + row * stride, 1);
              __builtin_prefetch(block.out + row * stride + kLanes, 1);
            }
            run<Operands::order>(block, rows, grid.rows - c);
          }
        }
      }
      if (part == 0 && db) local.add_sums(dy_sum);
    }
  });

  write_gradient(pool, kept, sums, division.slices, slice_size, dw);
  if (db) write_sums(dy_sums, division.slices, grid.out, grid.out, db);
}

}  // namespace sparsemlp
