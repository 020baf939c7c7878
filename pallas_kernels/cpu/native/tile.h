// The innermost loop: a tile of rows x lanes, kept in registers over all blocks that feed it.
#pragma once

#include <algorithm>

#include "unroll.h"

namespace sparsemlp {

// Where one kept block stands in the two operands, counted from Tile::a and Tile::b.
struct Segment {
  int64_t a;
  int64_t b;
};

// What becomes of a finished tile: written through the caches or past them, or added.
enum class Finish { kStore, kStream, kAdd };

// out[r, c] (+)= bias + sum over segments s and d < depth of A_s[r, d] * B_s[d, c].
struct Tile {
  const float* a;  // element (r, d) at r * a_stride + d, or at d * a_stride + r if depth-major
  int64_t a_stride;
  const float* b;  // element (d, c) at d * b_stride + c; readable to whole vectors
  int64_t b_stride;
  const Segment* segments;
  int64_t n_segments;
  int64_t depth;
  const float* column_bias;  // of each column, readable to whole vectors, or null
  const float* row_bias;     // of each row, or null
  float* out;                // element (r, c) at r * out_stride + c; writable to whole vectors
  int64_t out_stride;
  Finish finish;
  const float* added;  // comes on top, laid out as out, or null; not with kAdd
};

enum class Order { kRowMajor, kDepthMajor };

// The sums of a tile, row by row. Loops over them are unrolled in the source, as it were: what the
// compiler unrolls late stays in memory, and filling and emptying it takes longer than a block.
template <int R, int V>
using Sums = Vec[R * V];

template <Order order, int R, int V>
SPARSEMLP_INLINE void accumulate(const Tile& t, Sums<R, V>& sums) {
  constexpr bool kByRows = order == Order::kRowMajor;
  constexpr int kReach = 3;  // rows that are addressed from one pointer
  constexpr int kPointers = kByRows ? (R + kReach - 1) / kReach : 1;
  const int64_t a_stride = t.a_stride, b_stride = t.b_stride, depth = t.depth;
  const Segment* const end = t.segments + t.n_segments;
  for (const Segment* s = t.segments; s < end; ++s) {
    const float* a[kPointers];
    unroll<kPointers>(
        [&](auto i) SPARSEMLP_LAMBDA { a[i] = t.a + s->a + kReach * i * a_stride; });
    const float* b = t.b + s->b;
    const auto step = [&](int64_t d) SPARSEMLP_LAMBDA {
      Vec columns[V];
      unroll<V>([&](auto v) SPARSEMLP_LAMBDA { columns[v] = load(b + v * kLanes); });
      unroll<R>([&](auto r) SPARSEMLP_LAMBDA {
        const float* row = kByRows ? a[kByRows ? r / kReach : 0] + r % kReach * a_stride + d : a[0] + r;
        const Vec factor = broadcast(*row);
        unroll<V>([&](auto v) SPARSEMLP_LAMBDA { sums[r * V + v] += factor * columns[v]; });
      });
      hide(b += b_stride);
      if (!kByRows) hide(a[0] += a_stride);
    };
    int64_t d = 0;
    for (; d + 4 <= depth; d += 4) {
      unroll<4>(step);
      if (kByRows) unroll<kPointers>([&](auto i) SPARSEMLP_LAMBDA { hide(a[i] += 4); });
    }
    for (; d < depth; ++d) {
      step(0);
      if (kByRows) unroll<kPointers>([&](auto i) SPARSEMLP_LAMBDA { hide(a[i] += 1); });
    }
  }
}

template <Order order, int R, int V>
void run_tile(const Tile& t) {
  Sums<R, V> sums;
  const auto each = [&](const auto& body) SPARSEMLP_LAMBDA {
    unroll<R>([&](auto r) SPARSEMLP_LAMBDA {
      unroll<V>([&](auto v) SPARSEMLP_LAMBDA {
        body(r, v, sums[r * V + v], r * t.out_stride + v * kLanes);
      });
    });
  };
  if (t.column_bias) {
    each([&](int, int v, Vec& sum, int64_t) SPARSEMLP_LAMBDA {
      sum = load(t.column_bias + v * kLanes);
    });
  } else if (t.row_bias) {
    each([&](int r, int, Vec& sum, int64_t) SPARSEMLP_LAMBDA { sum = broadcast(t.row_bias[r]); });
  } else {
    each([&](int, int, Vec& sum, int64_t) SPARSEMLP_LAMBDA { sum = Vec{}; });
  }
  accumulate<order, R, V>(t, sums);
  const float* const added = t.finish == Finish::kAdd ? t.out : t.added;
  if (added) {
    each([&](int, int, Vec& sum, int64_t i) SPARSEMLP_LAMBDA { sum += load(added + i); });
  }
  if (t.finish == Finish::kStream && streams(t.out) && t.out_stride % kLanes == 0) {
    each([&](int, int, Vec& sum, int64_t i) SPARSEMLP_LAMBDA { stream(t.out + i, sum); });
  } else {
    each([&](int, int, Vec& sum, int64_t i) SPARSEMLP_LAMBDA { store(t.out + i, sum); });
  }
}

// The next smaller height that tiles are compiled for: full ones, the two below, powers of two.
constexpr int lower(int height) {
  if (height > kTileRows - 2) return height - 1;
  int power = 1;
  while (2 * power < height) power *= 2;
  return power;
}

// Runs tiles of fixed heights, the largest first, that make up so many rows.
template <Order order, int V, int R = kTileRows>
inline void run_rows(const Tile& t, int64_t rows) {
  if (rows == R) return run_tile<order, R, V>(t);
  if constexpr (R > 1) {
    if (rows < R) return run_rows<order, V, lower(R)>(t, rows);
    run_tile<order, R, V>(t);
    Tile rest = t;
    rest.a += R * (order == Order::kRowMajor ? t.a_stride : 1);
    rest.out += R * t.out_stride;
    if (t.row_bias) rest.row_bias += R;
    if (t.added) rest.added += R * t.out_stride;
    run_rows<order, V, lower(R)>(rest, rows - R);
  }
}

// Runs a tile of 1 .. kTileRows rows and 1 .. 2 * kLanes columns, whole vectors of them.
template <Order order>
inline void run(const Tile& tile, int64_t rows, int64_t columns) {
  if (rows < 1 || rows > kTileRows) __builtin_unreachable();
  if (columns > kLanes) {
    run_rows<order, 2>(tile, rows);
  } else {
    run_rows<order, 1>(tile, rows);
  }
}

// How many vectors of columns a tile of so few rows has: with fewer it would wait for its own sums.
constexpr int n_vectors(int64_t rows) {
  constexpr int kSums = kTileRows == 12 ? 16 : 8;  // beside them go the columns that feed them
  return rows * 8 <= kSums ? 8 : rows * 4 <= kSums ? 4 : 2;
}

// Runs a tile of 1 .. kTileRows rows and any number of whole vectors of columns.
template <Order order>
inline void run_wide(Tile tile, int64_t rows, int64_t columns) {
  const auto advance = [&](int64_t n) {
    tile.b += n;
    tile.out += n;
    columns -= n;
    if (tile.added) tile.added += n;
    if (tile.column_bias) tile.column_bias += n;
  };
  constexpr int kHighest8 = n_vectors(2) == 8 ? 2 : 1, kHighest4 = 2 * kHighest8;
  for (; rows <= kHighest8 && columns >= 8 * kLanes; advance(8 * kLanes)) {
    run_rows<order, 8, kHighest8>(tile, rows);
  }
  for (; rows <= kHighest4 && columns >= 4 * kLanes; advance(4 * kLanes)) {
    run_rows<order, 4, kHighest4>(tile, rows);
  }
  for (; columns > 0; advance(std::min<int64_t>(columns, 2 * kLanes))) {
    run<order>(tile, rows, columns);
  }
}

// The same where results are of type T or the last vector is not whole.
template <Order order, typename T>
inline void run_narrow(Tile tile, int64_t rows, int64_t columns, T* out, int64_t out_stride) {
  alignas(64) float results[kTileRows * 2 * kLanes];
  tile.out = results;
  tile.out_stride = 2 * kLanes;
  tile.finish = Finish::kStore;
  run<order>(tile, rows, columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      narrow(results[r * 2 * kLanes + c], out + r * out_stride + c);
    }
  }
}

}  // namespace sparsemlp
