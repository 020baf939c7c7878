// The n largest of every m neighbours of a gradient, along its features or tokens, zeros between.
#pragma once

#include "largest.h"

namespace sparsemlp {

constexpr int64_t kMostNeighbours = 32;

// Sets to zero what is not kept of kLanes groups, one in each lane of the vectors group[0 .. m).
// Among equal magnitudes the lower one is kept; NaN counts as infinite.
SPARSEMLP_INLINE void zero_others(Vec* group, Neighbours kept) {
  Index keys[kMostNeighbours], before[kMostNeighbours];
  const Index infinite = Index{} + 0x7f800000;
  for (int64_t j = 0; j < kept.m; ++j) {
    const Index key = reinterpret_cast<Index>(group[j]) & 0x7fffffff;
    keys[j] = key > infinite ? infinite : key;
    before[j] = Index{};
    for (int64_t i = 0; i < j; ++i) {
      const Index larger = keys[j] > keys[i];  // -1 where it is
      before[i] -= larger;
      before[j] += larger + 1;
    }
  }
  const Index n = Index{} + static_cast<int32_t>(kept.n);
  for (int64_t j = 0; j < kept.m; ++j) group[j] = before[j] < n ? group[j] : Vec{};
}

// The same for any number of groups, one after the other; loops over the usual m are unrolled.
inline void zero_others(Vec* groups, int64_t n_groups, Neighbours kept) {
  const auto each = [&](auto m) {
    for (int64_t g = 0; g < n_groups; ++g) {
      zero_others(groups + g * m, {kept.n, m});
    }
  };
  if (kept.m == 2) return each(std::integral_constant<int64_t, 2>{});
  if (kept.m == 4) return each(std::integral_constant<int64_t, 4>{});
  if (kept.m == 8) return each(std::integral_constant<int64_t, 8>{});
  each(kept.m);
}

// Of n_rows rows of `columns` numbers, a multiple of m, what is kept; `to` may be where they are.
template <typename T>
void keep_in_rows(const T* from, int64_t from_stride, int64_t n_rows, int64_t columns,
                  Neighbours kept, T* to, int64_t to_stride) {
  constexpr int64_t kColumns = 64;
  static_assert(kColumns >= kMostNeighbours);
  alignas(64) Vec strip[kColumns];
  alignas(64) float turned[std::is_same_v<T, float> ? 1 : kLanes * kColumns];
  float* const numbers = reinterpret_cast<float*>(strip);
  const int64_t depth = kColumns / kept.m * kept.m;
  for (int64_t r = 0; r < n_rows; r += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, n_rows - r);
    for (int64_t c = 0; c < columns; c += depth) {
      const int64_t width = std::min(depth, columns - c);
      if (n < kLanes) std::fill(strip, strip + width, Vec{});
      transpose(from + r * from_stride + c, from_stride, n, width, numbers, kLanes);
      zero_others(strip, width / kept.m, kept);
      T* const out = to + r * to_stride + c;
      if constexpr (std::is_same_v<T, float>) {
        transpose(numbers, kLanes, width, n, out, to_stride);
      } else {
        transpose(numbers, kLanes, width, n, turned, kColumns);
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < width; ++j) narrow(turned[i * kColumns + j], out + i * to_stride + j);
        }
      }
    }
  }
}

// dy and result [rows, out]; m divides out. With positions > 0, which divides the rows, they belong
// to samples of so many, and what is kept is rescaled by `find_factors`.
template <typename T>
void keep_features(const Pool& pool, const T* dy, int64_t rows, int64_t out, Neighbours kept,
                   int64_t positions, T* result) {
  constexpr int64_t kRows = 128;
  expect_writes(result, rows * out * sizeof(T));
  Buffer buffer;
  float* factors = nullptr;
  if (positions > 0) {
    factors = buffer.at_least(rows / positions * out);
    find_factors(pool, dy, rows / positions, positions, out, kept, factors);
  }
  parallel_for(pool, ceil_div(rows, kRows), [&](int64_t task) {
    const int64_t first = task * kRows, n_rows = std::min(kRows, rows - first);
    keep_in_rows(dy + first * out, out, n_rows, out, kept, result + first * out, out);
    for (int64_t r = first; factors && r < first + n_rows; ++r) {
      const float* factor = factors + r / positions * out;
      T* row = result + r * out;
      for (int64_t c = 0; c < out; ++c) narrow(widen(row[c]) * factor[c], row + c);
    }
  });
}

// dy and result [samples, out, channels]: groups run along `out`, m divides it. Rescaled, what is
// kept of a sample's row of channels is multiplied by what was lost of it.
template <typename T>
void keep_tokens(const Pool& pool, const T* dy, int64_t samples, int64_t out, int64_t channels,
                 Neighbours kept, bool rescales, T* result) {
  const int64_t size = kept.m * channels;
  expect_writes(result, samples * out * channels * sizeof(T));
  parallel_for(pool, samples * (out / kept.m), [&](int64_t task) {
    const T* const from = dy + task * size;
    T* const to = result + task * size;
    Vec group[kMostNeighbours], whole[kMostNeighbours] = {}, part[kMostNeighbours] = {};
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t n = std::min<int64_t>(kLanes, channels - c);
      for (int64_t j = 0; j < kept.m; ++j) {
        const T* row = from + j * channels + c;
        group[j] = Vec{};
        if (n == kLanes) group[j] = load_widened(row);
        for (int64_t i = 0; n < kLanes && i < n; ++i) group[j][i] = widen(row[i]);
        if (rescales) whole[j] += absolute(group[j]);
      }
      zero_others(group, 1, kept);
      for (int64_t j = 0; j < kept.m; ++j) {
        T* row = to + j * channels + c;
        if (rescales) part[j] += absolute(group[j]);
        if constexpr (std::is_same_v<T, float>) {
          if (n == kLanes) {
            store(row, group[j]);
            continue;
          }
        }
        for (int64_t i = 0; i < n; ++i) narrow(group[j][i], row + i);
      }
    }
    for (int64_t j = 0; rescales && j < kept.m; ++j) {
      float all = 0, own = 0;
      for (int i = 0; i < kLanes; ++i) {
        all += whole[j][i];
        own += part[j][i];
      }
      if (!(own > 0)) continue;
      const float factor = rounded<T>(all / own);
      T* row = to + j * channels;
      for (int64_t c = 0; c < channels; ++c) narrow(widen(row[c]) * factor, row + c);
    }
  });
}

}  // namespace sparsemlp
