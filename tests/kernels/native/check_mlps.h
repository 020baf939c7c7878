// Two layers fused, forward and backward.
#pragma once

#include "checking.h"
#include "turned_mlp.h"

namespace sparsemlp {

template <typename T>
void check_mlp(const Layer<T>& first, const Layer<T>& second, const std::string& kept, int64_t n,
               bool residual) {
  Mlp<T> mlp{first.kept(), second.kept(), first.kernel.data(), first.bias_or_null(),
             second.kernel.data(), second.bias_or_null(), residual, false};
  const std::vector<T> x = draw<T>(n * mlp.in()), dy = draw<T>(n * mlp.out());
  const Numbers exact_x = exact(x), exact_dy = exact(dy);
  const auto add = [](Number a, Number b) { return a + b; };
  const auto times = [](Number a, Number b) { return a * b; };
  const Numbers hidden = first.product(exact_x, n, 1, false), units = map(hidden, gelu_of);
  Numbers y = second.product(units, n, 1, false);
  const Numbers dh = map(second.product(exact_dy, n, 1, true), map(hidden, gelu_slope), times);
  Numbers dx = first.product(dh, n, 1, true);
  if (residual) y = map(y, exact_x, add), dx = map(dx, exact_dy, add);
  const std::string what = kept + " n " + std::to_string(n) + (first.bias.empty() ? "" : " b1") +
                           (second.bias.empty() ? "" : " b2") + (residual ? " residual" : "");
  check<T>("mlp: " + what, {y}, [&](const Pool& pool, auto& to) {
    multiply_mlp(pool, mlp, x.data(), n, to[0].data());
  });
  check<T>("turned mlp: " + what, {y}, [&](const Pool& pool, auto& to) {
    multiply_turned_mlp(pool, mlp, x.data(), n, to[0].data());
  });
  const auto gradients_in = [](auto& to) {
    return MlpGradients<T>{to[0].data(), to[1].data(), to[2].data(), to[3].data(), to[4].data()};
  };
  for (const bool straight_through : {false, true}) {
    mlp.straight_through = straight_through;
    const std::vector<Numbers> want{dx, first.gradient(exact_x, dh, n, 1, straight_through),
                                    first.sums(dh, n, 1),
                                    second.gradient(units, exact_dy, n, 1, straight_through),
                                    second.sums(exact_dy, n, 1)};
    check<T>((straight_through ? "straight-through mlp gradients: " : "mlp gradients: ") + what,
             want, [&](const Pool& pool, auto& to) {
               mlp_gradients(pool, mlp, x.data(), dy.data(), n, gradients_in(to));
             });
    check<T>((straight_through ? "turned straight-through mlp gradients: "
                               : "turned mlp gradients: ") + what,
             want, [&](const Pool& pool, auto& to) {
               turned_mlp_gradients(pool, mlp, x.data(), dy.data(), n, gradients_in(to));
             });
  }
}

template <typename T>
void check_mlps() {
  const Grid pairs[][2] = {
      {{1, 1, 1, 1}, {1, 1, 1, 1}},         {{6, 10, 2, 3}, {10, 6, 3, 2}},
      {{16, 64, 16, 16}, {64, 16, 16, 16}}, {{38, 57, 19, 19}, {57, 38, 19, 19}},
      {{24, 96, 32, 8}, {96, 24, 8, 12}},   {{17, 66, 33, 17}, {66, 20, 20, 22}},
      {{8, 48, 4, 8}, {48, 8, 8, 48}},      {{1024, 16, 16, 64}, {16, 1024, 64, 16}},
      {{8, 1024, 64, 4}, {1024, 8, 8, 64}}, {{0, 8, 4, 4}, {8, 0, 4, 4}},
      {{8, 0, 4, 4}, {0, 8, 4, 4}},         {{0, 0, 1, 1}, {0, 0, 1, 1}},
  };
  for (const auto& [g1, g2] : pairs) {
    for (const Keep keep1 : kKeeps) {
      for (const Keep keep2 : kKeeps) {
        for (const int64_t n : {0, 1, 37, g1.in * g1.out > 1200 ? 50 : 300}) {
          if (is_left_out()) continue;
          const Layer<T> first(g1, keep1, random_bits() % 4), second(g2, keep2, random_bits() % 4);
          check_mlp(first, second, describe(g1, keep1) + " -> " + describe(g2, keep2), n,
                    g1.in == g2.out && random_bits() % 2);
        }
      }
    }
  }
}

}  // namespace sparsemlp
