// The largest blocks of an activation, and dW from kept ones.
#pragma once

#include <algorithm>

#include "checking.h"
#include "compact.h"
#include "largest_blocks.h"

namespace sparsemlp {

// dW from the kept blocks of an activation [n, in]: its dropped blocks are zero in the definition.
template <typename T>
void check_compact(int64_t height, int64_t width, int64_t down, int64_t across, int64_t out,
                   int64_t channels, bool tokens, Keep keep) {
  if (is_left_out()) return;
  const int64_t n = down * height, in = across * width;
  // A grid whose outputs are the inputs of this layer: its blocks have the same ids.
  const Layer<T> activation({n, in, width, height}, keep, false);
  const Kept blocks = activation.kept();
  std::vector<T> values(blocks.n * height * width);
  Numbers x(n * in);
  for (int64_t s = 0; s < blocks.n; ++s) {
    for (int64_t r = 0; r < height; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t row = blocks.down(s) * height + r, column = blocks.across(s) * width + c;
        const T value = activation.kernel[row * in + column];
        values[(s * height + r) * width + c] = value;
        // Along the tokens x is [samples, in, channels], a row the channel of a sample.
        const int64_t place = tokens ? (row / channels * in + column) * channels + row % channels
                                     : row * in + column;
        x[place] = {widen(value), std::abs(widen(value))};
      }
    }
  }
  const std::vector<T> dy = draw<T>(n * out);
  const Layer<T> whole({in, out, out ? out : 1, in ? in : 1}, Keep::kAll, false);
  const int64_t samples = tokens ? n / channels : n;
  const std::string what = "dw from blocks " + std::to_string(height) + "x" +
                           std::to_string(width) + " of " + std::to_string(n) + "x" +
                           std::to_string(in) + (tokens ? " tokens" : " features") + " out " +
                           std::to_string(out) + " keep " + std::to_string(static_cast<int>(keep));
  const Compact kept{n, in, height, width, blocks.ids, blocks.n};
  check<T>(what, {whole.gradient(x, exact(dy), samples, tokens ? channels : 1)},
           [&](const Pool& pool, auto& to) {
             if (tokens) {
               compact_gradient(pool, kept, values.data(), TokenStrips<T>{dy.data(), out, channels},
                                out, to[0].data());
             } else {
               compact_gradient(pool, kept, values.data(), FeatureStrips<T>{dy.data(), out}, out,
                                to[0].data());
             }
           });
}

template <typename T>
void check_compacts() {
  const int64_t shapes[][4] = {{1, 1, 5, 3}, {4, 4, 3, 2},  {8, 8, 9, 4},   {2, 17, 6, 2},
                               {33, 5, 2, 3}, {8, 32, 200, 1}, {300, 4, 4, 2}, {4, 8, 0, 2}};
  for (const auto& [height, width, down, across] : shapes) {
    for (const Keep keep : kKeeps) {
      for (const int64_t out : {1, 16, 40, 77}) {
        check_compact<T>(height, width, down, across, out, 1, false, keep);
        check_compact<T>(height, width, down, across, out, 1, true, keep);
        if (height * down % 6 == 0) {
          check_compact<T>(height, width, down, across, out, 6, true, keep);
        }
      }
    }
  }
}

// The blocks of an activation with the largest norm. All entries of a block have one magnitude, a
// small integer, so that norms are exact and many of them equal.
template <typename T>
void check_largest_blocks(int64_t height, int64_t width, int64_t down, int64_t across, int64_t k,
                          int64_t channels, bool tokens) {
  if (is_left_out()) return;
  const BlockGrid grid{down * height, across * width, height, width};
  std::vector<int64_t> magnitudes(grid.count()), order(grid.count());
  for (int64_t i = 0; i < grid.count(); ++i) magnitudes[i] = random_bits() % 5, order[i] = i;
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return magnitudes[a] > magnitudes[b] || (magnitudes[a] == magnitudes[b] && a < b);
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  std::vector<T> x(grid.n * grid.in);
  Numbers values(k * height * width);
  for (int64_t row = 0; row < grid.n; ++row) {
    for (int64_t column = 0; column < grid.in; ++column) {
      const int64_t id = row / height * across + column / width;
      const double sign = random_bits() % 2 ? 1 : -1;
      const int64_t place = tokens ? (row / channels * grid.in + column) * channels + row % channels
                                   : row * grid.in + column;
      narrow(static_cast<float>(sign * magnitudes[id]), &x[place]);
      const auto found = std::lower_bound(order.begin(), order.end(), id);
      if (found == order.end() || *found != id) continue;
      const int64_t s = found - order.begin();
      values[(s * height + row % height) * width + column % width] = {sign * magnitudes[id], 0};
    }
  }
  const std::string what = "largest " + std::to_string(k) + " blocks " + std::to_string(height) +
                           "x" + std::to_string(width) + " of " + std::to_string(grid.n) + "x" +
                           std::to_string(grid.in) + (tokens ? " tokens" : " features");
  check<T>(what, {values}, [&](const Pool& pool, auto& to) {
    std::vector<int32_t> ids(k, -1);
    if (tokens) {
      take_largest(pool, grid, TokenBlocks<T>{x.data(), channels}, k, ids.data(), to[0].data());
    } else {
      take_largest(pool, grid, FeatureBlocks<T>{x.data()}, k, ids.data(), to[0].data());
    }
    if (std::equal(ids.begin(), ids.end(), order.begin())) return;
    std::printf("%s: other ids\n", what.c_str());
    std::exit(1);
  });
}

template <typename T>
void check_largest_blocks() {
  const int64_t shapes[][4] = {{1, 1, 6, 3},   {4, 4, 3, 2},    {8, 8, 9, 4},    {2, 17, 6, 2},
                               {33, 5, 2, 3},  {8, 32, 200, 1}, {300, 4, 4, 40}, {4, 8, 0, 2},
                               {6, 16, 70, 11}};
  for (const auto& [height, width, down, across] : shapes) {
    const int64_t count = down * across;
    for (const int64_t k : {int64_t{0}, std::min<int64_t>(1, count), count / 2, count}) {
      check_largest_blocks<T>(height, width, down, across, k, 1, false);
      check_largest_blocks<T>(height, width, down, across, k, 1, true);
      if (height * down % 6 == 0) check_largest_blocks<T>(height, width, down, across, k, 6, true);
    }
  }
}

}  // namespace sparsemlp
