// dX from the largest neighbours of an output gradient.
#pragma once

#include "checking.h"
#include "pruned.h"

namespace sparsemlp {

// dX from the largest of every m neighbours in rows of dY, with ties and zeros among them; with
// positions > 0 rescaled.
template <typename T>
void check_pruned(int64_t rows, int64_t in, int64_t out, Neighbours kept, int64_t positions) {
  if (is_left_out()) return;
  std::vector<T> dy = draw<T>(rows * out);
  for (T& value : dy) {
    if (random_bits() % 3 == 0) narrow(std::round(2 * widen(value)), &value);
  }
  const Layer<T> layer({in, out, out ? out : 1, in ? in : 1}, Keep::kAll, false);
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
      // A sum that is rounded another way may move factor and product to the next T each.
      number.scale = std::abs(number.value) * (std::is_same_v<T, float> ? 1 : 30000);
    }
  }
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
  const Neighbours every[] = {{1, 1}, {1, 2}, {2, 4}, {3, 4}, {1, 8}, {7, 8}, {4, 32}, {16, 32}};
  for (const Neighbours& kept : every) {
    for (const int64_t groups : {0, 1, 3, 9}) {
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
