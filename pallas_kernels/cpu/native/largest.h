// The n largest of every m neighbours in rows of a gradient, as lists that a product can follow.
#pragma once

#include <algorithm>
#include <cmath>

#include "parallel.h"
#include "turn.h"
#include "unroll.h"

namespace sparsemlp {

typedef int32_t Index __attribute__((vector_size(4 * kLanes)));

// Of every m neighbours the n <= kMost largest are kept.
struct Neighbours {
  static constexpr int64_t kMost = 16;
  int64_t n, m;
};

// What is kept of kLanes rows, as many in each: entry e of row r at e * kLanes + r.
struct Entries {
  float* values;
  int32_t* columns;
};

// Lists what is kept, for n <= N. Among equal magnitudes the lower column comes first; NaN counts
// as infinite. strip [columns, kLanes] holds a row in each lane.
template <int N>
void list_largest(const float* strip, int64_t columns, Neighbours kept, Entries to) {
  for (int64_t first = 0; first < columns; first += kept.m) {
    Index keys[N], places[N];
    Vec values[N];
    unroll<N>([&](auto s) SPARSEMLP_LAMBDA {
      keys[s] = Index{} - 1;
      places[s] = Index{} + static_cast<int32_t>(first);
      values[s] = Vec{};
    });
    for (int64_t j = first; j < first + kept.m; ++j) {
      Vec value = load(strip + j * kLanes);
      Index place = Index{} + static_cast<int32_t>(j);
      Index key = reinterpret_cast<Index>(value) & 0x7fffffff;
      const Index infinite = Index{} + 0x7f800000;
      key = key > infinite ? infinite : key;
      const Index own = key;
      // From its place on it moves the others down by one, and the last one out.
      unroll<N>([&](auto s) SPARSEMLP_LAMBDA {
        const Index before = own > keys[s];
        const Index last_key = keys[s], last_place = places[s];
        const Vec last_value = values[s];
        keys[s] = before ? key : last_key;
        places[s] = before ? place : last_place;
        values[s] = before ? value : last_value;
        key = before ? last_key : key;
        place = before ? last_place : place;
        value = before ? last_value : value;
      });
    }
    unroll<N>([&](auto s) SPARSEMLP_LAMBDA {
      if (s >= kept.n) return;
      store(to.values + s * kLanes, values[s]);
      std::memcpy(to.columns + s * kLanes, &places[s], sizeof(Index));
    });
    to.values += kept.n * kLanes;
    to.columns += kept.n * kLanes;
  }
}

// Lists what is kept of so many <= kLanes rows in some columns. The strip is filled on the way, and
// zero in the lanes of no row.
template <typename T>
void list_largest(const T* rows, int64_t stride, int64_t n_rows, int64_t columns, Neighbours kept,
                  float* strip, Entries to) {
  if (n_rows < kLanes) std::fill(strip, strip + columns * kLanes, 0.0f);
  transpose(rows, stride, n_rows, columns, strip, kLanes);
  if (kept.n == 1) return list_largest<1>(strip, columns, kept, to);
  if (kept.n == 2) return list_largest<2>(strip, columns, kept, to);
  if (kept.n <= 4) return list_largest<4>(strip, columns, kept, to);
  if (kept.n <= 8) return list_largest<8>(strip, columns, kept, to);
  list_largest<Neighbours::kMost>(strip, columns, kept, to);
}

template <typename T>
inline float rounded(float x) {
  T narrowed;
  narrow(x, &narrowed);
  return widen(narrowed);
}

// factors [samples, out]: for each sample and column of dy [samples, positions, out] the sum of all
// magnitudes over that of the kept ones, 1 where that is zero; rounded to T.
template <typename T>
void find_factors(const Pool& pool, const T* dy, int64_t samples, int64_t positions, int64_t out,
                  Neighbours kept, float* factors) {
  const int64_t depth = std::max<int64_t>(1, 64 / kept.m) * kept.m;
  parallel_for(pool, samples, [&](int64_t sample) {
    thread_local Buffer strip_buffer, values_buffer, columns_buffer, sums_buffer;
    float* strip = strip_buffer.at_least(depth * kLanes);
    const Entries entries{
        values_buffer.at_least(depth * kLanes),
        reinterpret_cast<int32_t*>(columns_buffer.at_least(depth * kLanes))};
    float* whole = sums_buffer.at_least(2 * depth * kLanes);
    float* part = whole + depth * kLanes;
    for (int64_t c = 0; c < out; c += depth) {
      const int64_t width = std::min(depth, out - c);
      std::fill(whole, whole + 2 * depth * kLanes, 0.0f);
      for (int64_t r = 0; r < positions; r += kLanes) {
        list_largest(dy + (sample * positions + r) * out + c, out,
                     std::min<int64_t>(kLanes, positions - r), width, kept, strip, entries);
        for (int64_t i = 0; i < width * kLanes; ++i) whole[i] += std::abs(strip[i]);
        for (int64_t i = 0; i < width / kept.m * kept.n * kLanes; ++i) {
          part[entries.columns[i] * kLanes + i % kLanes] += std::abs(entries.values[i]);
        }
      }
      for (int64_t j = 0; j < width; ++j) {
        float all = 0, own = 0;
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          all += whole[j * kLanes + lane];
          own += part[j * kLanes + lane];
        }
        factors[sample * out + c + j] = own > 0 ? rounded<T>(all / own) : 1.0f;
      }
    }
  });
}

}  // namespace sparsemlp
