// dX = dY' W^T, where dY' keeps the n largest of every m neighbours in a row of dY [rows, out].
//
// A kept entry multiplies one row of W^T. Which rows of W^T these are differs from row to row of
// dY, so no vector of W^T serves two rows from a register, as it does in a dense product: each
// multiply-add reads its own from the nearest cache. Dropped entries cost no arithmetic; of memory
// nothing is saved, all of dY is read to find what is kept.
#pragma once

#include <algorithm>

#include "largest.h"
#include "prefetch.h"

namespace sparsemlp {

// W^T [out, in] in float32, cut into slabs of 1, 2, 4 or 8 vectors of inputs. A slab holds its piece
// of every row, one after the other; what is beyond the inputs is zero.
template <typename T>
class Slabs {
 public:
  const int64_t out, stride;

  Slabs(const Pool& pool, const T* kernel, int64_t in, int64_t out)
      : out(out), stride(round_up(in, kLanes)), data_(buffer_.at_least(stride * out)) {
    parallel_for(pool, stride / kLanes, [&](int64_t task) {
      const int64_t input = task * kLanes, n = std::min<int64_t>(kLanes, in - input);
      int64_t first = 0;
      while (first + width(first) <= input) first += width(first);
      float* to = data_ + first * out + input - first;
      transpose(kernel + input * out, out, n, out, to, width(first));
      for (int64_t o = 0; n < kLanes && o < out; ++o) {
        std::fill(to + o * width(first) + n, to + o * width(first) + kLanes, 0.0f);
      }
    });
  }
  // Of the slab that begins with input `first`.
  int64_t width(int64_t first) const {
    int64_t width = 8 * kLanes;
    while (first + width > stride) width /= 2;
    return width;
  }
  const float* at(int64_t first, int64_t row) const {
    return data_ + first * out + row * width(first);
  }

 private:
  Buffer buffer_;
  float* data_;
};

// How many rows keep their sums in registers, V vectors each.
constexpr int rows_together(int V) { return std::max(1, std::min(4, (kTileRows < 12 ? 8 : 16) / V)); }

// Sums [R, V] of entries times rows of a slab, on top of what is there if `adds`; of the R lanes
// from which on entries are given, those of no row are left out.
template <int V, int R>
void add_entries(const float* slab, Entries entries, int64_t n_entries, float* out, int64_t stride,
                 int64_t n_rows, bool adds) {
  Vec sums[R * V];
  const auto each = [&](const auto& body) SPARSEMLP_LAMBDA {
    unroll<R>([&](auto r) SPARSEMLP_LAMBDA {
      if (r >= n_rows) return;
      unroll<V>([&](auto v) SPARSEMLP_LAMBDA { body(sums[r * V + v], r * stride + v * kLanes); });
    });
  };
  unroll<R * V>([&](auto i) SPARSEMLP_LAMBDA { sums[i] = Vec{}; });
  if (adds) each([&](Vec& sum, int64_t i) SPARSEMLP_LAMBDA { sum = load(out + i); });
  for (int64_t e = 0; e < n_entries; ++e) {
    unroll<R>([&](auto r) SPARSEMLP_LAMBDA {
      const float* row = slab + int64_t{entries.columns[r]} * (V * kLanes);
      const Vec factor = broadcast(entries.values[r]);
      unroll<V>([&](auto v) SPARSEMLP_LAMBDA { sums[r * V + v] += factor * load(row + v * kLanes); });
    });
    entries.values += kLanes;
    entries.columns += kLanes;
  }
  each([&](Vec& sum, int64_t i) SPARSEMLP_LAMBDA { store(out + i, sum); });
}

// Multiplies what is kept of some rows from `first` on by the factors of their samples.
template <typename T>
void rescale(Entries entries, int64_t n_entries, int64_t first, int64_t n_rows, int64_t positions,
             const float* factors, int64_t out) {
  const float* of_row[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    of_row[lane] = factors + (first + std::min(lane, n_rows - 1)) / positions * out;
  }
  for (int64_t i = 0; i < n_entries * kLanes; ++i) {
    float& value = entries.values[i];
    value = rounded<T>(value * of_row[i % kLanes][entries.columns[i]]);
  }
}

// dy [rows, out]; kernel [in, out]; dx [rows, in]; m divides out. With positions > 0, which divides
// the rows, they belong to samples of so many, and what is kept is rescaled by `find_factors`.
template <typename T>
void multiply_largest(const Pool& pool, const T* dy, int64_t rows, const T* kernel, int64_t in,
                      int64_t out, Neighbours kept, int64_t positions, T* dx) {
  constexpr int64_t kPanelRows = 128, kNear = 8192;  // so many floats of a slab stay near
  if (rows == 0 || in == 0) return;
  expect_writes(dx, rows * in * sizeof(T));
  const Slabs<T> slabs(pool, kernel, in, out);
  const int64_t stride = slabs.stride, most_rows = round_up(std::min(kPanelRows, rows), kLanes);
  const int64_t depth = std::max<int64_t>(1, kNear / slabs.width(0) / kept.m) * kept.m;
  const int64_t block_size = depth / kept.m * kept.n * kLanes;
  const bool direct = std::is_same_v<T, float> && in == stride;
  Buffer factors_buffer;
  float* factors = nullptr;
  if (positions > 0) {
    factors = factors_buffer.at_least(rows / positions * out);
    find_factors(pool, dy, rows / positions, positions, out, kept, factors);
  }

  parallel_for(pool, ceil_div(rows, kPanelRows), [&](int64_t task) {
    const int64_t first = task * kPanelRows, n_rows = std::min(kPanelRows, rows - first);
    thread_local Buffer strip_buffer, values_buffer, columns_buffer, sums_buffer;
    float* strip = strip_buffer.at_least(depth * kLanes);
    float* values = values_buffer.at_least(most_rows / kLanes * block_size);
    int32_t* columns = reinterpret_cast<int32_t*>(
        columns_buffer.at_least(most_rows / kLanes * block_size));
    float* sums = direct ? reinterpret_cast<float*>(dx) + first * in
                         : sums_buffer.at_least(n_rows * stride);
    // Entries of the block of rows that holds row r, from its lane on.
    const auto entries = [&](int64_t r) {
      const int64_t place = r / kLanes * block_size + r % kLanes;
      return Entries{values + place, columns + place};
    };
    for (int64_t c = 0; c == 0 || c < out; c += depth) {
      const int64_t width = std::min(depth, out - c), n_entries = width / kept.m * kept.n;
      const int64_t next_width = std::min(depth, out - c - width);
      for (int64_t r = 0; r < n_rows; r += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, n_rows - r);
        const T* from = dy + (first + r) * out + c;
        for (int64_t i = 0; i < n; ++i) {
          Prefetcher(from + i * out + width, next_width * sizeof(T), 1)();
        }
        list_largest(from, out, n, width, kept, strip, entries(r));
        if (!factors) continue;
        rescale<T>(entries(r), n_entries, first + r, n, positions, factors + c, out);
      }
      for (int64_t i = 0, wide; i < stride; i += wide) {
        wide = slabs.width(i);
        const int64_t next = i + wide < stride ? i + wide : 0;
        Prefetcher prefetch(slabs.at(next, next ? c : c + width),
                            4 * (next ? width : next_width) * slabs.width(next), n_rows / 4);
        const auto run = [&](auto vectors) {
          constexpr int V = vectors, R = rows_together(V);
          for (int64_t r = 0; r < n_rows; r += R) {
            prefetch();
            add_entries<V, R>(slabs.at(i, c), entries(r), n_entries, sums + r * stride + i, stride,
                              n_rows - r, c > 0);
          }
        };
        if (wide == 8 * kLanes) run(std::integral_constant<int, 8>{});
        if (wide == 4 * kLanes) run(std::integral_constant<int, 4>{});
        if (wide == 2 * kLanes) run(std::integral_constant<int, 2>{});
        if (wide == kLanes) run(std::integral_constant<int, 1>{});
      }
    }
    for (int64_t r = 0; !direct && r < n_rows; ++r) {
      for (int64_t i = 0; i < in; ++i) narrow(sums[r * stride + i], dx + (first + r) * in + i);
    }
  });
}

}  // namespace sparsemlp
