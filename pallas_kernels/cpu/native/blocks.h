// The kept blocks of a kernel [in, out], grouped by the side of a product that they feed.
#pragma once

#include <algorithm>
#include <vector>

#include "parallel.h"
#include "tile.h"
#include "turn.h"

namespace sparsemlp {

// Block (down, across) of a kernel [in, out] covers `cols` inputs and `rows` outputs.
struct Grid {
  int64_t in, out, rows, cols;
  int64_t down() const { return in / cols; }
  int64_t across() const { return out / rows; }
};

// The kept ids of a grid; ids are flat, ascending, row-major.
struct Kept {
  Grid grid;
  const int32_t* ids;
  int64_t n;
  int64_t down(int64_t slot) const { return ids[slot] / grid.across(); }
  int64_t across(int64_t slot) const { return ids[slot] % grid.across(); }
  int64_t n_floats() const { return n * grid.rows * grid.cols; }
};

// Whether ids ascend strictly inside the grid.
inline bool valid(const Kept& kept) {
  int64_t previous = -1;
  for (int64_t i = 0; i < kept.n; ++i) {
    if (kept.ids[i] <= previous) return false;
    previous = kept.ids[i];
  }
  return previous < kept.grid.down() * kept.grid.across();
}

// One side's view of the kept blocks: those that make output block o are
// slots[begin[o]] .. slots[begin[o + 1]], the input block of each beside it.
struct Groups {
  std::vector<int64_t> begin, slot, input;
  int64_t count() const { return static_cast<int64_t>(begin.size()) - 1; }
};

// By output of the forward product (blocks of `out`), or, transposed, of dX (blocks of `in`). Of
// the kept blocks only those that are `live` count, if that is given.
inline Groups group(const Kept& kept, bool transposed, const std::vector<char>* live = nullptr) {
  const Grid& grid = kept.grid;
  Groups groups;
  groups.begin.assign((transposed ? grid.down() : grid.across()) + 1, 0);
  groups.slot.resize(kept.n);
  groups.input.resize(kept.n);
  // Calls body(slot, its output block, its input block); ids ascend, so nothing is divided.
  const auto each = [&](const auto& body) {
    int64_t down = 0, first = 0;  // the row of blocks, and its first id
    for (int64_t s = 0; s < kept.n; ++s) {
      for (; kept.ids[s] >= first + grid.across(); first += grid.across()) ++down;
      const int64_t across = kept.ids[s] - first;
      if (live && !(*live)[s]) continue;
      transposed ? body(s, down, across) : body(s, across, down);
    }
  };
  each([&](int64_t, int64_t output, int64_t) { ++groups.begin[output + 1]; });
  for (size_t o = 1; o < groups.begin.size(); ++o) groups.begin[o] += groups.begin[o - 1];
  std::vector<int64_t> next(groups.begin);
  each([&](int64_t s, int64_t output, int64_t input) {
    const int64_t place = next[output]++;
    groups.slot[place] = s;
    groups.input[place] = input;
  });
  return groups;
}

// The kept blocks one after the other in float32: block s begins at s * depth * stride, its
// element (input d, output c) at d * stride + c, where stride is `width`, or that rounded up to
// whole vectors, and the rest is zero. Transposed, inputs are the kernel's outputs.
struct PackedBlocks {
  int64_t depth, width, stride;
  Buffer buffer;
  float* data;
};

template <typename T>
PackedBlocks pack_blocks(const Pool& pool, const T* kernel, const Kept& kept, bool transposed,
                         bool whole_vectors = true) {
  const Grid& grid = kept.grid;
  PackedBlocks packed;
  packed.depth = transposed ? grid.rows : grid.cols;
  packed.width = transposed ? grid.cols : grid.rows;
  packed.stride = whole_vectors ? round_up(packed.width, kLanes) : packed.width;
  const int64_t size = packed.depth * packed.stride;
  // A vector more, so that the last tile may read a pair of vectors.
  float* data = packed.data = packed.buffer.at_least(kept.n * size + kLanes);
  const int64_t run = std::max<int64_t>(1, 16384 / size);
  parallel_for(pool, ceil_div(kept.n, run), [&](int64_t task) {
    for (int64_t s = task * run; s < std::min(kept.n, (task + 1) * run); ++s) {
      const T* from = kernel + kept.down(s) * grid.cols * grid.out + kept.across(s) * grid.rows;
      float* to = data + s * size;
      if (transposed) {
        transpose(from, grid.out, packed.width, packed.depth, to, packed.stride);
      } else {
        for (int64_t d = 0; d < packed.depth; ++d) {
          widen_row(from + d * grid.out, packed.width, to + d * packed.stride);
        }
      }
      for (int64_t d = 0; d < packed.depth; ++d) {
        for (int64_t c = packed.width; c < packed.stride; ++c) to[d * packed.stride + c] = 0;
      }
    }
  });
  return packed;
}

// Where the operands of each output block lie: its inputs in a panel, its blocks packed.
inline std::vector<Segment> segments_of(const Groups& groups, const PackedBlocks& packed) {
  std::vector<Segment> segments(groups.slot.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i] = {groups.input[i] * packed.depth, groups.slot[i] * packed.depth * packed.stride};
  }
  return segments;
}

// The same where lanes are not outputs: blocks come first, and inputs are rows `stride` apart.
inline std::vector<Segment> turned_segments(const Groups& groups, const PackedBlocks& packed,
                                            int64_t stride) {
  std::vector<Segment> segments = segments_of(groups, packed);
  for (Segment& segment : segments) segment = {segment.b, segment.a * stride};
  return segments;
}

// A bias as float32 with room for whole vectors; zeros for null.
template <typename T>
std::vector<float> padded_bias(const T* bias, int64_t n) {
  std::vector<float> row(n + 2 * kLanes);
  if (bias) widen_row(bias, n, row.data());
  return row;
}

}  // namespace sparsemlp
