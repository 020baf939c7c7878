// The gradient of a kernel from what is left of an activation: dW = X'^T dY, where of X' [n, in]
// some blocks were kept and all others are zero.
//
// The outputs are cut into strips of two vectors. A task takes some strips and a slice of the rows,
// both shared out by the shapes alone, so the result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <vector>

#include "blocks.h"
#include "columns.h"

namespace sparsemlp {

constexpr int64_t kStrip = 2 * kLanes;

// The kept blocks, of `height` rows and `width` inputs; ids are flat, ascending, row-major.
struct Compact {
  int64_t n, in, height, width;
  const int32_t* ids;
  int64_t k;
  int64_t across() const { return in / width; }
  // The first kept block that does not lie above a row, which begins a block.
  int64_t from(int64_t row) const {
    return std::lower_bound(ids, ids + k, row / height * across()) - ids;
  }
};

inline bool valid(const Compact& kept) {
  for (int64_t i = 0; i < kept.k; ++i) {
    if (kept.ids[i] <= (i ? kept.ids[i - 1] : -1)) return false;
  }
  return kept.k == 0 || kept.ids[kept.k - 1] < kept.n / kept.height * kept.across();
}

// dy [n, out]: a row of X' belongs to a row.
template <typename T>
struct FeatureStrips {
  const T* dy;
  int64_t out;
  void copy(int64_t first, int64_t n, int64_t column, int64_t width, float* strip) const {
    sum_columns(dy + first * out + column, out, n, width, nullptr, strip, kStrip);
  }
};

// dy [samples, out, channels]: a row of X' belongs to a channel of a sample.
template <typename T>
struct TokenStrips {
  const T* dy;
  int64_t out, channels;
  void copy(int64_t first, int64_t n, int64_t column, int64_t width, float* strip) const {
    for (int64_t row = first, next; row < first + n; row = next) {
      const int64_t sample = row / channels;
      next = std::min(first + n, (sample + 1) * channels);
      transpose(dy + (sample * out + column) * channels + row % channels, channels, width,
                next - row, strip + (row - first) * kStrip, kStrip);
    }
    for (int64_t r = 0; r < n; ++r) {
      std::fill(strip + r * kStrip + width, strip + (r + 1) * kStrip, 0.0f);
    }
  }
};

// The kept blocks in some rows, by their place along the inputs, as segments of a tile.
struct ColumnGroups {
  std::vector<int64_t> begin;
  std::vector<Segment> segments;

  ColumnGroups(const Compact& kept, int64_t first_row, int64_t first, int64_t last)
      : begin(kept.across() + 1), segments(last - first) {
    for (int64_t s = first; s < last; ++s) ++begin[kept.ids[s] % kept.across() + 1];
    for (size_t j = 1; j < begin.size(); ++j) begin[j] += begin[j - 1];
    std::vector<int64_t> next(begin);
    for (int64_t s = first; s < last; ++s) {
      const int64_t row = kept.ids[s] / kept.across() * kept.height - first_row;
      segments[next[kept.ids[s] % kept.across()]++] = {(s - first) * kept.height * kept.width,
                                                       row * kStrip};
    }
  }
};

// values [k, height, width]; dw [in, out].
template <typename T, typename Strips>
void compact_gradient(const Pool& pool, const Compact& kept, const T* values, const Strips& strips,
                      int64_t out, T* dw) {
  constexpr int64_t kTasks = 16, kChunkRows = 256;
  const int64_t n_strips = ceil_div(out, kStrip), in = kept.in;
  const int64_t chunk = round_up(std::max<int64_t>(1, std::min(kChunkRows, kept.n)), kept.height);
  const int64_t groups = std::max<int64_t>(1, std::min(n_strips, kTasks));
  const int64_t strips_per_group = ceil_div(n_strips, groups);
  const int64_t slices = std::max<int64_t>(1, std::min(kTasks / groups, kept.n / (4 * chunk)));
  const int64_t slice_rows = round_up(ceil_div(kept.n, slices), kept.height);
  const int64_t tile_rows = ceil_div(kept.width, ceil_div(kept.width, kTileRows));
  const int64_t block_size = kept.height * kept.width;
  Buffer sums_buffer;  // [slices, strips, in, kStrip]
  float* sums = sums_buffer.at_least(slices * n_strips * in * kStrip);

  parallel_for(pool, slices * groups, [&](int64_t task) {
    const int64_t slice = task / groups, begin = task % groups * strips_per_group;
    const int64_t end = std::min(n_strips, begin + strips_per_group);
    float* const own = sums + slice * n_strips * in * kStrip;
    if (begin < end) std::fill(own + begin * in * kStrip, own + end * in * kStrip, 0.0f);
    thread_local Buffer strip_buffer, values_buffer;
    float* strip = strip_buffer.at_least(chunk * kStrip);
    Tile tile{};
    tile.depth = kept.height;
    tile.a_stride = kept.width;
    tile.b = strip;
    tile.b_stride = tile.out_stride = kStrip;
    tile.finish = Finish::kAdd;
    const int64_t last = std::min(kept.n, (slice + 1) * slice_rows);
    for (int64_t row = slice * slice_rows; row < last; row += chunk) {
      const int64_t n_rows = std::min(chunk, last - row);
      const int64_t first_block = kept.from(row), last_block = kept.from(row + n_rows);
      if (first_block == last_block) continue;
      const ColumnGroups columns(kept, row, first_block, last_block);
      const float* blocks;
      if constexpr (std::is_same_v<T, float>) {
        blocks = values + first_block * block_size;
      } else {
        const int64_t size = (last_block - first_block) * block_size;
        float* copy = values_buffer.at_least(size);
        widen_row(values + first_block * block_size, size, copy);
        blocks = copy;
      }
      for (int64_t s = begin; s < end; ++s) {
        const int64_t width = std::min(kStrip, out - s * kStrip);
        strips.copy(row, n_rows, s * kStrip, width, strip);
        for (int64_t j = 0; j < kept.across(); ++j) {
          tile.segments = columns.segments.data() + columns.begin[j];
          tile.n_segments = columns.begin[j + 1] - columns.begin[j];
          if (tile.n_segments == 0) continue;
          for (int64_t r = 0; r < kept.width; r += tile_rows) {
            tile.a = blocks + r;
            tile.out = own + (s * in + j * kept.width + r) * kStrip;
            run<Order::kDepthMajor>(tile, std::min(tile_rows, kept.width - r), width);
          }
        }
      }
    }
  });

  parallel_for(pool, in, [&](int64_t i) {
    for (int64_t c = 0; c < out; ++c) {
      const float* from = sums + (c / kStrip * in + i) * kStrip + c % kStrip;
      float total = 0;
      for (int64_t slice = 0; slice < slices; ++slice) total += from[slice * n_strips * in * kStrip];
      narrow(total, dw + i * out + c);
    }
  });
}

}  // namespace sparsemlp
