// The innermost loop: a tile of rows x lanes, kept in registers over all blocks that feed it.
#pragma once

#include "simd.h"

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
  const float* added;  // streamed on top, laid out as out, or null
};

enum class Order { kRowMajor, kDepthMajor };

template <Order order, int R, int V>
inline __attribute__((always_inline)) void step(const float* a, int64_t a_stride, const float* b,
                                                Vec (&acc)[R][V]) {
  Vec columns[V];
  for (int v = 0; v < V; ++v) columns[v] = load(b + v * kLanes);
  for (int r = 0; r < R; ++r) {
    const Vec row = broadcast(order == Order::kRowMajor ? a[r * a_stride] : a[r]);
    for (int v = 0; v < V; ++v) acc[r][v] += row * columns[v];
  }
}

template <Order order, int R, int V>
inline __attribute__((always_inline)) void accumulate(const Tile& t, Vec (&acc)[R][V]) {
  const int64_t a_step = order == Order::kRowMajor ? 1 : t.a_stride;
  for (int64_t s = 0; s < t.n_segments; ++s) {
    const float* a = t.a + t.segments[s].a;
    const float* b = t.b + t.segments[s].b;
    int64_t d = 0;
    for (; d + 4 <= t.depth; d += 4) {
#pragma GCC unroll 4
      for (int u = 0; u < 4; ++u) {
        step<order, R, V>(a + u * a_step, t.a_stride, b + u * t.b_stride, acc);
      }
      a += 4 * a_step;
      b += 4 * t.b_stride;
    }
    for (; d < t.depth; ++d, a += a_step, b += t.b_stride) {
      step<order, R, V>(a, t.a_stride, b, acc);
    }
  }
}

template <Order order, int R, int V>
void run_tile(const Tile& t) {
  Vec acc[R][V];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      acc[r][v] = t.column_bias ? load(t.column_bias + v * kLanes)
                                : broadcast(t.row_bias ? t.row_bias[r] : 0.0f);
    }
  }
  accumulate<order, R, V>(t, acc);
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      float* place = t.out + r * t.out_stride + v * kLanes;
      if (t.finish == Finish::kAdd) {
        store(place, load(place) + acc[r][v]);
      } else if (t.finish == Finish::kStream) {
        const float* added = t.added ? t.added + r * t.out_stride + v * kLanes : nullptr;
        stream(place, added ? acc[r][v] + load(added) : acc[r][v]);
      } else {
        store(place, acc[r][v]);
      }
    }
  }
}

// Calls run_tile with the number of rows as a constant.
template <Order order, int V, int R = kTileRows>
inline void run_rows(const Tile& t, int64_t rows) {
  if (rows == R) {
    run_tile<order, R, V>(t);
  } else if constexpr (R > 1) {
    run_rows<order, V, R - 1>(t, rows);
  }
}

// Runs a tile of 1 .. kTileRows rows and 1 .. 2 * kLanes columns, whole vectors of them.
template <Order order>
inline void run(const Tile& tile, int64_t rows, int64_t columns) {
  if (columns > kLanes) {
    run_rows<order, 2>(tile, rows);
  } else {
    run_rows<order, 1>(tile, rows);
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
