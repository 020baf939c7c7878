// dW of a panel of rows, added to the sums of a kernel's blocks.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "blocks.h"

namespace sparsemlp {

// The blocks of a kernel's gradient: the kept ones, or with straight-through gradients all.
struct Summed {
  std::vector<int32_t> ids;  // of all, else empty
  Kept kept;
  std::vector<char> live;  // those that are summed, the others being known; empty for all

  Summed(const Kept& of_product, bool all) : kept(of_product) {
    if (!all) return;
    ids.resize(kept.grid.down() * kept.grid.across());
    std::iota(ids.begin(), ids.end(), 0);
    kept.ids = ids.data();
    kept.n = static_cast<int64_t>(ids.size());
  }
  Summed(const Summed&) = delete;

  int64_t n_floats() const { return kept.n * kept.grid.cols * round_up(kept.grid.rows, kLanes); }
};

// What counts of an activation in a panel, as segments of tiles, by columns of blocks so wide; of all
// of it there is one segment.
struct PanelBlocks {
  int64_t depth, width;
  std::vector<int64_t> begin{0, 1};
  std::vector<Segment> segments{{0, 0}};

  PanelBlocks(int64_t n_rows, int64_t in) : depth(n_rows), width(std::max<int64_t>(1, in)) {}
};

// Adds A^T B of a panel to the sums of a kernel's blocks: A [rows, in], of which these blocks count,
// B [rows, out].
inline void add_outer(const Summed& summed, const PanelBlocks& blocks, const float* a,
                      int64_t a_stride, const float* b, int64_t b_stride, float* sums) {
  const Kept& kept = summed.kept;
  const Grid& grid = kept.grid;
  const int64_t stride = round_up(grid.rows, kLanes);
  Tile tile{};
  tile.depth = blocks.depth;
  tile.a_stride = a_stride;
  tile.b_stride = b_stride;
  tile.out_stride = stride;
  tile.finish = Finish::kAdd;
  for (int64_t s = 0; s < kept.n; ++s) {
    if (!summed.live.empty() && !summed.live[s]) continue;
    float* to = sums + s * grid.cols * stride;
    const int64_t first = kept.down(s) * grid.cols, last = first + grid.cols;
    for (int64_t i = first, end; i < last; i = end) {
      const int64_t column = i / blocks.width;
      end = std::min(last, (column + 1) * blocks.width);
      tile.segments = blocks.segments.data() + blocks.begin[column];
      tile.n_segments = blocks.begin[column + 1] - blocks.begin[column];
      if (tile.n_segments == 0) continue;
      const int64_t height = ceil_div(end - i, ceil_div(end - i, kTileRows));
      for (int64_t c = 0; c < grid.rows; c += 2 * kLanes) {
        tile.b = b + kept.across(s) * grid.rows + c;
        for (int64_t r = i; r < end; r += height) {
          tile.a = a + r;
          tile.out = to + (r - first) * stride + c;
          run<Order::kDepthMajor>(tile, std::min(height, end - r), grid.rows - c);
        }
      }
    }
  }
}

}  // namespace sparsemlp
