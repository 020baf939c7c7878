// Two layers fused whose activations and gradients are pruned, forward and backward.
#pragma once

#include <numeric>
#include <optional>

#include "check_pruned.h"
#include "pruned_mlp_gradient.h"

namespace sparsemlp {

inline Number add(Number a, Number b) { return a + b; }
inline Number times(Number a, Number b) { return a * b; }

// One number for each column, or none.
template <typename T>
struct Columns {
  std::vector<T> values;
  Columns(int64_t n, bool given) : values(draw<T>(given ? n : 0)) {}
  const T* or_null() const { return values.empty() ? nullptr : values.data(); }
  Number at(int64_t column, double absent) const {
    const double value = values.empty() ? absent : widen(values[column]);
    return {value, std::abs(value)};
  }
  // The sums over rows of their gradient, empty if there are none.
  Numbers sums(const Numbers& gradient) const {
    Numbers sums(values.size());
    for (size_t i = 0; !sums.empty() && i < gradient.size(); ++i) {
      sums[i % sums.size()] = sums[i % sums.size()] + gradient[i];
    }
    return sums;
  }
};

inline std::string describe(const Pruning& own) {
  return std::string(own.pools ? "means " : "blocks ") + std::to_string(own.height) + "x" +
         std::to_string(own.width) + " neighbours " + std::to_string(own.gradient.n) + ":" +
         std::to_string(own.gradient.m) + " positions " + std::to_string(own.positions);
}

// The kept blocks of an activation [n, in]; none where there are no blocks.
inline std::vector<int32_t> kept_blocks(const Pruning& own, int64_t n, int64_t in, Keep keep) {
  return own.takes_blocks() ? ids_of({n, in, own.width, own.height}, keep) : std::vector<int32_t>();
}

inline Compact compact_of(const Pruning& own, int64_t n, int64_t in,
                          const std::vector<int32_t>& ids) {
  return {n, in, own.height, own.width, ids.data(), static_cast<int64_t>(ids.size())};
}

// What dW sees of an activation [n, in].
inline Numbers used_of(const Numbers& a, const Pruning& own, int64_t in,
                       const std::vector<int32_t>& ids) {
  if (own.height == 0) return a;
  const int64_t across = in / own.width;
  Numbers sums(in ? a.size() / (own.height * own.width) : 0), used(a.size());
  const auto block = [&](int64_t i) { return i / in / own.height * across + i % in / own.width; };
  for (size_t i = 0; i < a.size(); ++i) sums[block(i)] = sums[block(i)] + a[i];
  const double share = 1.0 / (own.height * own.width);
  for (size_t i = 0; i < a.size(); ++i) {
    const Number sum = sums[block(i)];
    if (own.pools) {
      used[i] = {sum.value * share, sum.scale * share};
    } else if (std::binary_search(ids.begin(), ids.end(), block(i))) {
      used[i] = a[i];
    }
  }
  return used;
}

// The norms of the blocks of an activation, empty where there are none.
inline Numbers norms_of(const Numbers& a, const Pruning& own, int64_t in) {
  if (!own.takes_blocks() || in == 0) return {};
  Numbers norms(a.size() / (own.height * own.width));
  for (size_t i = 0; i < a.size(); ++i) {
    Number& norm = norms[i / in / own.height * (in / own.width) + i % in / own.width];
    norm = {norm.value + a[i].value * a[i].value, norm.scale + a[i].scale * a[i].scale};
  }
  return map(norms, [](Number x) {
    return Number{std::sqrt(x.value), std::sqrt(x.scale) + 8 * std::sqrt(x.value)};
  });
}

// What dX sees of an output's gradient [n, out]; none where rounding decides which are kept.
inline std::optional<Numbers> pruned_of(const Numbers& dy, const Pruning& own, int64_t out) {
  if (own.gradient.m == 0) return dy;
  std::vector<float> values;
  for (const Number& number : dy) values.push_back(static_cast<float>(number.value));
  const int64_t m = own.gradient.m;
  for (size_t first = 0; first < dy.size(); first += m) {
    std::vector<Number> group(dy.begin() + first, dy.begin() + first + m);
    std::sort(group.begin(), group.end(),
              [](Number a, Number b) { return std::abs(a.value) > std::abs(b.value); });
    if (own.gradient.n == m) continue;
    const Number last = group[own.gradient.n - 1], next = group[own.gradient.n];
    const double gap = std::abs(last.value) - std::abs(next.value);
    if (last.value != 0 && gap < 4e-7 * (last.scale + next.scale)) return {};
  }
  Numbers kept = keep_neighbours(values, out, own.gradient, own.positions);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i].value != 0) kept[i].scale = dy[i].scale * (kept[i].value / dy[i].value) * 4;
  }
  return kept;
}

template <typename T>
void check_pruned_mlp(const Layer<T>& first, const Layer<T>& second, const Pruning& pruning1,
                      const Pruning& pruning2, int64_t n, Keep keep, bool residual,
                      const std::string& kept) {
  const int64_t in = first.grid.in, hidden = first.grid.out, out = second.grid.out;
  const Columns<T> scale(in, random_bits() % 2), shift(in, random_bits() % 2);
  const Columns<T> after(out, random_bits() % 2);
  PrunedMlp<T> pruned{{first.kept(), second.kept(), first.kernel.data(), first.bias_or_null(),
                       second.kernel.data(), second.bias_or_null(), residual, false},
                      scale.or_null(), shift.or_null(), nullptr, pruning1, pruning2};
  const std::vector<T> x = draw<T>(n * in), dy = draw<T>(n * out);
  const Numbers exact_x = exact(x), exact_dy = exact(dy);
  Numbers a = exact_x, dz = exact_dy;
  for (int64_t i = 0; i < n * in; ++i) a[i] = a[i] * scale.at(i % in, 1) + shift.at(i % in, 0);
  const Numbers before = first.product(a, n, 1, false), units = map(before, gelu_of);
  const Numbers z = second.product(units, n, 1, false);
  const std::string what = kept + " n " + std::to_string(n) + " first " + describe(pruning1) +
                           " second " + describe(pruning2) + (residual ? " residual" : "");
  const Numbers norms1 = norms_of(a, pruning1, in), norms2 = norms_of(units, pruning2, hidden);
  check<T>("pruned mlp: " + what, {residual ? map(z, exact_x, add) : z},
           [&](const Pool& pool, auto& to) {
             std::vector<float> first_norms(norms1.size()), second_norms(norms2.size());
             multiply_pruned_mlp(pool, pruned, x.data(), n, to[0].data(), first_norms.data(),
                                 second_norms.data());
           });
  check<float>("norms of pruned mlp: " + what, {norms1, norms2}, [&](const Pool& pool, auto& to) {
    std::vector<T> y(n * out);
    multiply_pruned_mlp(pool, pruned, x.data(), n, y.data(), to[0].data(), to[1].data());
  });

  // Products of two numbers are rounded where it is decided which neighbours are kept.
  for (int64_t i = 0; i < n * out; ++i) {
    dz[i] = dz[i] * after.at(i % out, 1);
    dz[i].value = static_cast<float>(dz[i].value);
  }
  const std::optional<Numbers> used_dz = pruned_of(dz, pruning2, out);
  if (!used_dz) return;
  const Numbers dh =
      map(second.product(*used_dz, n, 1, true), map(before, gelu_slope), times);
  const std::optional<Numbers> used_dh = pruned_of(dh, pruning1, hidden);
  if (!used_dh) return;
  const Numbers da = first.product(*used_dh, n, 1, true);
  Numbers dx = da;
  for (int64_t i = 0; i < n * in; ++i) dx[i] = dx[i] * scale.at(i % in, 1);
  if (residual) dx = map(dx, exact_dy, add);
  const std::vector<int32_t> ids1 = kept_blocks(pruning1, n, in, keep);
  const std::vector<int32_t> ids2 = kept_blocks(pruning2, n, hidden, keep);
  const Numbers used_a = used_of(a, pruning1, in, ids1);
  const Numbers used_units = used_of(units, pruning2, hidden, ids2);
  pruned.after = after.or_null();
  for (const bool straight_through : {false, true}) {
    pruned.mlp.straight_through = straight_through;
    const std::vector<Numbers> want{dx,
                                    first.gradient(used_a, dh, n, 1, straight_through),
                                    first.sums(dh, n, 1),
                                    second.gradient(used_units, dz, n, 1, straight_through),
                                    second.sums(dz, n, 1),
                                    scale.sums(map(exact_x, da, times)),
                                    shift.sums(da),
                                    after.sums(map(exact_dy, z, times))};
    check<T>((straight_through ? "straight-through pruned mlp gradients: "
                               : "pruned mlp gradients: ") + what,
             want, [&](const Pool& pool, auto& to) {
               pruned_mlp_gradients(
                   pool, pruned, compact_of(pruning1, n, in, ids1),
                   compact_of(pruning2, n, hidden, ids2), x.data(), dy.data(), n,
                   PrunedMlpGradients<T>{{to[0].data(), to[1].data(), to[2].data(), to[3].data(),
                                          to[4].data()},
                                         to[5].data(), to[6].data(), to[7].data()});
             });
  }
}

// A way to prune a layer from `in` to `out`, whatever of it divides them.
inline Pruning draw_pruning(int64_t in, int64_t out) {
  const int64_t heights[] = {0, 1, 4, 6}, widths[] = {1, 2, 3, 4, 8, 19}, groups[] = {0, 2, 4, 3, 8};
  Pruning own{heights[random_bits() % 4], widths[random_bits() % 6], random_bits() % 2 == 0,
              {1, groups[random_bits() % 5]}, random_bits() % 3 == 0 ? 6 : 0};
  if (in % own.width) own.width = in ? in : 1;
  if (own.gradient.m && out % own.gradient.m) own.gradient.m = 0;
  if (own.gradient.m > 2) own.gradient.n = 1 + random_bits() % (own.gradient.m - 1);
  return own;
}

template <typename T>
void check_pruned_mlps() {
  const Grid pairs[][2] = {
      {{16, 64, 16, 16}, {64, 16, 16, 16}}, {{38, 57, 19, 19}, {57, 38, 19, 19}},
      {{24, 96, 32, 8}, {96, 24, 8, 12}},   {{17, 66, 33, 17}, {66, 20, 20, 22}},
      {{8, 48, 8, 8}, {48, 8, 8, 48}},      {{64, 32, 32, 32}, {32, 64, 32, 32}},
      {{6, 10, 2, 3}, {10, 6, 3, 2}},       {{512, 16, 16, 32}, {16, 512, 32, 16}},
      {{0, 8, 4, 4}, {8, 0, 4, 4}},         {{8, 0, 4, 4}, {0, 8, 4, 4}},
  };
  for (const auto& [g1, g2] : pairs) {
    for (const Keep keep1 : kKeeps) {
      for (const Keep keep2 : kKeeps) {
        for (const int64_t n : {0, 12, 36, g1.in * g1.out > 1200 ? 48 : 300}) {
          for (int draws = 0; draws < 2; ++draws) {
            if (is_left_out()) continue;
            const Layer<T> first(g1, keep1, random_bits() % 4);
            const Layer<T> second(g2, keep2, random_bits() % 4);
            check_pruned_mlp(first, second, draw_pruning(g1.in, g1.out),
                             draw_pruning(g2.in, g2.out), n, kKeeps[random_bits() % 4],
                             g1.in == g2.out && random_bits() % 2,
                             describe(g1, keep1) + " -> " + describe(g2, keep2));
          }
        }
      }
    }
  }
}

}  // namespace sparsemlp
