// Sums over the rows of an operand, and rows copied to where vectors read them best.
#pragma once

#include "simd.h"

namespace sparsemlp {

// Adds the sums of columns [0, n) over some rows to `sums`, unless that is null; copies the rows to
// `copy` on the way, unless that is null, where whole vectors may be written.
template <int V, typename T>
inline void sum_vectors(const T* rows, int64_t stride, int64_t n_rows, float* sums, float* copy,
                        int64_t copy_stride) {
  Vec totals[V] = {};
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int v = 0; v < V; ++v) {
      const Vec x = load_widened(rows + r * stride + v * kLanes);
      totals[v] += x;
      if (copy) store(copy + r * copy_stride + v * kLanes, x);
    }
  }
  for (int v = 0; sums && v < V; ++v) {
    store(sums + v * kLanes, load(sums + v * kLanes) + totals[v]);
  }
}

template <typename T>
inline void sum_columns(const T* rows, int64_t stride, int64_t n_rows, int64_t n, float* sums,
                        float* copy = nullptr, int64_t copy_stride = 0) {
  int64_t c = 0;
  const auto at = [&](float* p) { return p ? p + c : nullptr; };
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    sum_vectors<2>(rows + c, stride, n_rows, at(sums), at(copy), copy_stride);
  }
  for (; c + kLanes <= n; c += kLanes) {
    sum_vectors<1>(rows + c, stride, n_rows, at(sums), at(copy), copy_stride);
  }
  if (c == n) return;
  for (int64_t r = 0; r < n_rows; ++r) {
    Vec x{};
    for (int64_t i = c; i < n; ++i) {
      x[i - c] = widen(rows[r * stride + i]);
      if (sums) sums[i] += x[i - c];
    }
    if (copy) store(copy + r * copy_stride + c, x);
  }
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

}  // namespace sparsemlp
