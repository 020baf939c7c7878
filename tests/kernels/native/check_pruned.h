// The largest neighbours of an output gradient, and dX from them.
#pragma once

#include "checking.h"
#include "neighbours.h"
#include "pruned.h"

namespace sparsemlp {

// Numbers with ties and zeros among them.
template <typename T>
std::vector<T> draw_with_ties(int64_t n) {
  std::vector<T> values = draw<T>(n);
  for (T& value : values) {
    if (random_bits() % 3 == 0) narrow(std::round(2 * widen(value)), &value);
  }
  return values;
}

// The n largest of every m neighbours in rows of dY [rows, out]; with positions > 0 rescaled.
template <typename T>
Numbers keep_neighbours(const std::vector<T>& dy, int64_t out, Neighbours kept, int64_t positions) {
  const int64_t rows = out ? dy.size() / out : 0;
  Numbers used(rows * out);
  for (int64_t i = 0; i < rows * out; ++i) {
    const int64_t first = i / kept.m * kept.m;
    int64_t before = 0;
    for (int64_t j = first; j < first + kept.m; ++j) {
      const double other = std::abs(widen(dy[j])), own = std::abs(widen(dy[i]));
      before += other > own || (other == own && j < i);
    }
    if (before < kept.n) used[i] = {widen(dy[i]), std::abs(widen(dy[i]))};
  }
  for (int64_t i = 0; positions > 0 && i < rows / positions * out; ++i) {
    double whole = 0, part = 0;
    const int64_t first = i / out * positions * out + i % out;
    for (int64_t p = 0; p < positions; ++p) {
      whole += std::abs(widen(dy[first + p * out]));
      part += used[first + p * out].scale;
    }
    if (part == 0) continue;
    const float factor = rounded<T>(static_cast<float>(whole / part));
    for (int64_t p = 0; p < positions; ++p) {
      Number& number = used[first + p * out];
      number.value = rounded<T>(static_cast<float>(number.value * factor));
      // A sum that is rounded another way may move factor and product to the next T each; that of
      // so many magnitudes, one after the other, errs by the root of their number.
      const double of_sums = 1 + std::sqrt(static_cast<double>(positions)) / 4;
      number.scale = std::abs(number.value) * (std::is_same_v<T, float> ? of_sums : 30000);
    }
  }
  return used;
}

// What is kept along the features, and along the tokens of the same numbers turned.
template <typename T>
void check_neighbours(int64_t samples, int64_t positions, int64_t out, Neighbours kept,
                      bool rescales) {
  if (is_left_out()) return;
  const int64_t rows = samples * positions;
  const std::vector<T> dy = draw_with_ties<T>(rows * out);
  const Numbers used = keep_neighbours(dy, out, kept, rescales ? positions : 0);
  const std::string what = std::to_string(kept.n) + ":" + std::to_string(kept.m) + " of " +
                           std::to_string(samples) + "x" + std::to_string(positions) + "x" +
                           std::to_string(out) + (rescales ? " rescaled" : "");
  check<T>("kept features: " + what, {used}, [&](const Pool& pool, auto& to) {
    keep_features(pool, dy.data(), rows, out, kept, rescales ? positions : 0, to[0].data());
  });
  std::vector<T> turned(dy.size());
  Numbers used_turned(dy.size());
  for (int64_t i = 0; i < rows * out; ++i) {
    const int64_t row = i / out, place = (row / positions * out + i % out) * positions + row % positions;
    turned[place] = dy[i];
    used_turned[place] = used[i];
  }
  check<T>("kept tokens: " + what, {used_turned}, [&](const Pool& pool, auto& to) {
    keep_tokens(pool, turned.data(), samples, out, positions, kept, rescales, to[0].data());
  });
}

// dX from the largest of every m neighbours in rows of dY, with ties and zeros among them; with
// positions > 0 rescaled.
template <typename T>
void check_pruned(int64_t rows, int64_t in, int64_t out, Neighbours kept, int64_t positions) {
  if (is_left_out()) return;
  const std::vector<T> dy = draw_with_ties<T>(rows * out);
  const Layer<T> layer({in, out, out ? out : 1, in ? in : 1}, Keep::kAll, false);
  const Numbers used = keep_neighbours(dy, out, kept, positions);
  const std::string what = "dx of " + std::to_string(kept.n) + ":" + std::to_string(kept.m) +
                           " of " + std::to_string(rows) + "x" + std::to_string(out) + " to " +
                           std::to_string(in) + " positions " + std::to_string(positions);
  check<T>(what, {layer.product(used, rows, 1, true)}, [&](const Pool& pool, auto& to) {
    multiply_largest(pool, dy.data(), rows, layer.kernel.data(), in, out, kept, positions,
                     to[0].data());
  });
}

template <typename T>
void check_pruneds() {
  const Neighbours every[] = {{1, 1}, {1, 2}, {2, 4},   {3, 4},   {1, 8},
                              {7, 8}, {4, 32}, {16, 32}, {17, 32}, {31, 32}};
  for (const Neighbours& kept : every) {
    for (const int64_t groups : {0, 1, 3, 9}) {
      for (const bool rescales : {false, true}) {
        check_neighbours<T>(0, 3, groups * kept.m, kept, rescales);
        check_neighbours<T>(3, 1, groups * kept.m, kept, rescales);
        check_neighbours<T>(2, 37, groups * kept.m, kept, rescales);
        check_neighbours<T>(1, 144, groups * kept.m, kept, rescales);
      }
      if (kept.n > Neighbours::kMost) continue;
      for (const int64_t in : {0, 1, 16, 37, 150}) {
        check_pruned<T>(0, in, groups * kept.m, kept, 0);
        check_pruned<T>(13, in, groups * kept.m, kept, 0);
        check_pruned<T>(150, in, groups * kept.m, kept, 50);
        check_pruned<T>(34, in, groups * kept.m, kept, 1);
        check_pruned<T>(300, in, groups * kept.m, kept, groups == 1 ? 300 : 0);
      }
    }
  }
}

}  // namespace sparsemlp
