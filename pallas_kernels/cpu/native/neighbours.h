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

// The same of one sample; what is kept of a column is multiplied by what was lost of it, rounded to
// T: the sum of all magnitudes over that of the kept ones, 1 where that is zero.
template <typename T>
void keep_in_sample(const T* from, int64_t from_stride, int64_t n_rows, int64_t columns,
                    Neighbours kept, T* to, int64_t to_stride) {
  thread_local Buffer buffer;
  float* whole = buffer.at_least(2 * columns);
  float* part = whole + columns;
  const auto add_magnitudes = [&](const T* rows, int64_t stride, float* sums) {
    std::fill(sums, sums + columns, 0.0f);
    for (int64_t r = 0; r < n_rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) sums[c] += std::abs(widen(rows[r * stride + c]));
    }
  };
  add_magnitudes(from, from_stride, whole);
  keep_in_rows(from, from_stride, n_rows, columns, kept, to, to_stride);
  add_magnitudes(to, to_stride, part);
  for (int64_t c = 0; c < columns; ++c) part[c] = part[c] > 0 ? rounded<T>(whole[c] / part[c]) : 1.0f;
  for (int64_t r = 0; r < n_rows; ++r) {
    T* row = to + r * to_stride;
    for (int64_t c = 0; c < columns; ++c) narrow(widen(row[c]) * part[c], row + c);
  }
}

// dy and result [rows, out]; m divides out. With positions > 0, which divides the rows, they belong
// to samples of so many, which are rescaled.
template <typename T>
void keep_features(const Pool& pool, const T* dy, int64_t rows, int64_t out, Neighbours kept,
                   int64_t positions, T* result) {
  const int64_t height = positions > 0 ? positions : 128;
  expect_writes(result, rows * out * sizeof(T));
  parallel_for(pool, ceil_div(rows, height), [&](int64_t task) {
    const int64_t place = task * height * out, n_rows = std::min(height, rows - task * height);
    if (positions > 0) {
      keep_in_sample(dy + place, out, n_rows, out, kept, result + place, out);
    } else {
      keep_in_rows(dy + place, out, n_rows, out, kept, result + place, out);
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
