// dW of a panel of rows from what is left of an activation, which is whole in the panel: the dropped
// blocks are passed over, or the means of windows take the place of the rows and columns in them.
#pragma once

#include "compact.h"
#include "neighbours.h"
#include "outer.h"

namespace sparsemlp {

// What of one layer's operands is pruned: the activation, which is cut into blocks or windows, not if
// their height is 0, and neighbours of the output's gradient, none if m is 0. With positions > 0,
// rows of a sample, those are rescaled by what was lost of each sample and column.
struct Pruning {
  int64_t height, width;
  bool pools;
  Neighbours gradient;
  int64_t positions;
  bool takes_blocks() const { return height > 0 && !pools; }
  bool takes_means() const { return height > 0 && pools; }
};

// The kept blocks in a panel of an activation.
inline PanelBlocks kept_in_panel(const Compact& kept, int64_t first_row, int64_t n_rows,
                                 int64_t a_stride, int64_t b_stride) {
  PanelBlocks blocks(kept.height, kept.width);
  const int64_t first = kept.from(first_row), last = kept.from(first_row + n_rows);
  const int64_t first_id = first_row / kept.height * kept.across();
  blocks.begin.assign(kept.across() + 1, 0);
  blocks.segments.resize(last - first);
  for (int64_t s = first; s < last; ++s) {
    ++blocks.begin[(kept.ids[s] - first_id) % kept.across() + 1];
  }
  std::partial_sum(blocks.begin.begin(), blocks.begin.end(), blocks.begin.begin());
  std::vector<int64_t> next(blocks.begin);
  for (int64_t s = first; s < last; ++s) {
    const int64_t place = kept.ids[s] - first_id, row = place / kept.across() * kept.height;
    blocks.segments[next[place % kept.across()]++] = {row * a_stride, row * b_stride};
  }
  return blocks;
}

// Writes the sums over `height` rows of columns [0, n).
inline void sum_rows(const float* rows, int64_t stride, int64_t height, int64_t n, float* sums) {
  std::fill(sums, sums + n, 0.0f);
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = 0; c < n; ++c) sums[c] += rows[r * stride + c];
  }
}

// Adds to the sums of a kernel's blocks what the means of A's windows and the sums of B over their
// rows give; all inputs of a window have the same gradient, which takes one row, the first.
inline void add_pooled_outer(const Summed& summed, const Pruning& windows, int64_t n_rows,
                             const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                             float* sums) {
  const Kept& kept = summed.kept;
  const Grid& grid = kept.grid;
  const int64_t stride = round_up(grid.rows, kLanes), n_means = grid.in / windows.width;
  const int64_t n_windows = n_rows / windows.height, mean_stride = round_up(n_means, kLanes);
  const int64_t sum_stride = round_up(grid.out, kLanes) + kLanes;
  thread_local Buffer means_buffer, sums_buffer, row_buffer;
  float* means = means_buffer.at_least((n_windows + 1) * mean_stride);
  float* b_sums = sums_buffer.at_least((n_windows + 1) * sum_stride);
  float* row = row_buffer.at_least(grid.in);
  const float share = 1.0f / (windows.height * windows.width);
  for (int64_t i = 0; i < n_windows; ++i) {
    const int64_t first = i * windows.height;
    sum_rows(a + first * a_stride, a_stride, windows.height, grid.in, row);
    for (int64_t j = 0; j < n_means; ++j) {
      const float* from = row + j * windows.width;
      means[i * mean_stride + j] = share * std::accumulate(from, from + windows.width, 0.0f);
    }
    sum_rows(b + first * b_stride, b_stride, windows.height, grid.out, b_sums + i * sum_stride);
  }
  const Segment all{0, 0};
  Tile tile{};
  tile.segments = &all;
  tile.n_segments = 1;
  tile.depth = n_windows;
  tile.a_stride = mean_stride;
  tile.b_stride = sum_stride;
  tile.out_stride = stride;
  tile.finish = Finish::kAdd;
  for (int64_t s = 0; s < kept.n; ++s) {
    const int64_t first = kept.down(s) * grid.cols / windows.width;
    const int64_t n = ceil_div((kept.down(s) + 1) * grid.cols, windows.width) - first;
    float* to = sums + s * grid.cols * stride;
    for (int64_t c = 0; c < grid.rows; c += 2 * kLanes) {
      tile.b = b_sums + kept.across(s) * grid.rows + c;
      for (int64_t r = 0; r < n; r += kTileRows) {
        tile.a = means + first + r;
        tile.out = to + r * stride + c;
        run<Order::kDepthMajor>(tile, std::min<int64_t>(kTileRows, n - r), grid.rows - c);
      }
    }
  }
}

// Gives each input of a window the sums of its window, which stand in the first rows of each block.
inline void spread_pooled(const Summed& summed, const Pruning& windows, float* sums) {
  const Grid& grid = summed.kept.grid;
  const int64_t stride = round_up(grid.rows, kLanes);
  for (int64_t s = 0; s < summed.kept.n; ++s) {
    const int64_t first = summed.kept.down(s) * grid.cols;
    float* block = sums + s * grid.cols * stride;
    for (int64_t r = grid.cols - 1; r > 0; --r) {
      const float* from = block + ((first + r) / windows.width - first / windows.width) * stride;
      if (from != block + r * stride) std::copy(from, from + stride, block + r * stride);
    }
  }
}

}  // namespace sparsemlp
