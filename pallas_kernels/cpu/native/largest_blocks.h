// The k blocks of an activation X [n, in] with the largest norm, found and copied.
//
// A sum of squares is taken by one task in one order, so what is found does not depend on the number
// of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel.h"
#include "simd.h"

namespace sparsemlp {

// Blocks of `height` rows and `width` inputs that divide an activation.
struct BlockGrid {
  int64_t n, in, height, width;
  int64_t across() const { return in / width; }
  int64_t count() const { return n / height * across(); }
};

template <typename T>
inline void add_squares(const T* x, int64_t n, float* sums) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = load_widened(x + i);
    store(sums + i, load(sums + i) + v * v);
  }
  for (; i < n; ++i) sums[i] += widen(x[i]) * widen(x[i]);
}

// x [n, in].
template <typename T>
struct FeatureBlocks {
  const T* x;

  int64_t n_tasks(const BlockGrid& grid) const { return grid.n / grid.height; }

  // Adds the squares of a row of blocks.
  void square(const BlockGrid& grid, int64_t task, float* sums) const {
    thread_local Buffer buffer;
    float* columns = buffer.at_least(grid.in);
    std::fill(columns, columns + grid.in, 0.0f);
    for (int64_t r = task * grid.height; r < (task + 1) * grid.height; ++r) {
      add_squares(x + r * grid.in, grid.in, columns);
    }
    float* own = sums + task * grid.across();
    for (int64_t c = 0; c < grid.in; ++c) own[c / grid.width] += columns[c];
  }

  void copy(const BlockGrid& grid, int64_t id, T* to) const {
    const T* from = x + id / grid.across() * grid.height * grid.in + id % grid.across() * grid.width;
    for (int64_t r = 0; r < grid.height; ++r) {
      std::copy(from + r * grid.in, from + r * grid.in + grid.width, to + r * grid.width);
    }
  }
};

// x [samples, in, channels]: a row is a channel of a sample.
template <typename T>
struct TokenBlocks {
  const T* x;
  int64_t channels;

  int64_t n_tasks(const BlockGrid& grid) const { return grid.across(); }

  // Adds the squares of a column of blocks.
  void square(const BlockGrid& grid, int64_t task, float* sums) const {
    thread_local Buffer buffer;
    float* rows = buffer.at_least(channels);
    for (int64_t first = 0; first < grid.n; first += channels) {
      std::fill(rows, rows + channels, 0.0f);
      const T* sample = x + first * grid.in;
      for (int64_t c = task * grid.width; c < (task + 1) * grid.width; ++c) {
        add_squares(sample + c * channels, channels, rows);
      }
      for (int64_t i = 0; i < channels; ++i) {
        sums[(first + i) / grid.height * grid.across() + task] += rows[i];
      }
    }
  }

  void copy(const BlockGrid& grid, int64_t id, T* to) const {
    const int64_t row = id / grid.across() * grid.height, column = id % grid.across() * grid.width;
    for (int64_t r = 0; r < grid.height; ++r) {
      const int64_t sample = (row + r) / channels, channel = (row + r) % channels;
      const T* from = x + (sample * grid.in + column) * channels + channel;
      for (int64_t c = 0; c < grid.width; ++c) to[r * grid.width + c] = from[c * channels];
    }
  }
};

// The bits of a norm, which order as norms do; NaN is the largest.
inline uint32_t rank(float squares) {
  const float norm = std::sqrt(squares);
  if (norm != norm) return 0x7fc00000;
  uint32_t bits;
  std::memcpy(&bits, &norm, 4);
  return bits;
}

// ids [k], ascending, and values [k, height, width]. Equal norms keep the lower id.
template <typename T, typename Blocks>
void take_largest(const Pool& pool, const BlockGrid& grid, const Blocks& blocks, int64_t k,
                  int32_t* ids, T* values) {
  if (k == 0) return;
  const int64_t count = grid.count();
  std::vector<float> sums(count, 0.0f);
  parallel_for(pool, blocks.n_tasks(grid),
               [&](int64_t task) { blocks.square(grid, task, sums.data()); });
  std::vector<uint32_t> ranks(count);
  std::transform(sums.begin(), sums.end(), ranks.begin(), rank);
  std::vector<uint32_t> order(ranks);
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
  const uint32_t least = order[k - 1];
  int64_t ties = k;
  for (uint32_t r : ranks) ties -= r > least;
  for (int64_t i = 0, kept = 0; kept < k; ++i) {
    if (ranks[i] > least || (ranks[i] == least && ties-- > 0)) {
      ids[kept++] = static_cast<int32_t>(i);
    }
  }
  const int64_t size = grid.height * grid.width, chunk = std::max<int64_t>(1, 16384 / size);
  expect_writes(values, k * size * sizeof(T));
  parallel_for(pool, ceil_div(k, chunk), [&](int64_t task) {
    for (int64_t i = task * chunk; i < std::min(k, (task + 1) * chunk); ++i) {
      blocks.copy(grid, ids[i], values + i * size);
    }
  });
}

}  // namespace sparsemlp
