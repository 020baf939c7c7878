// The three products of a layer.
#pragma once

#include "checking.h"
#include "dot_gradient.h"
#include "product.h"

namespace sparsemlp {

// Along the tokens if `tokens`, else along the features.
template <typename T>
void check_layer(const Grid& grid, Keep keep, int64_t n, bool tokens, int64_t channels) {
  if (is_left_out()) return;
  const bool biased = random_bits() % 2;
  const Layer<T> layer(grid, keep, biased);
  const std::vector<T> x = draw<T>(n * grid.in * channels), dy = draw<T>(n * grid.out * channels);
  const Numbers exact_x = exact(x), exact_dy = exact(dy);
  const std::string what = describe(grid, keep) + (biased ? " bias" : "") + " n " +
                           std::to_string(n) + (tokens ? " channels " : " features ") +
                           std::to_string(channels);
  const auto check_product = [&](bool transposed, const T* from, const Numbers& want) {
    const T* bias = transposed ? nullptr : layer.bias_or_null();
    check<T>((transposed ? "dx: " : "y: ") + what, {want}, [&](const Pool& pool, auto& to) {
      if (tokens) {
        multiply_tokens(pool, from, n, channels, layer.kernel.data(), bias, layer.kept(),
                        transposed, to[0].data());
      } else {
        multiply_features(pool, from, n, layer.kernel.data(), bias, layer.kept(), transposed,
                          to[0].data());
      }
    });
    if (tokens) return;
    check<T>((transposed ? "turned dx: " : "turned y: ") + what, {want},
             [&](const Pool& pool, auto& to) {
               multiply_turned(pool, from, n, layer.kernel.data(), bias, layer.kept(), transposed,
                               to[0].data());
             });
  };
  check_product(false, x.data(), layer.product(exact_x, n, channels, false));
  check_product(true, dy.data(), layer.product(exact_dy, n, channels, true));
  const std::vector<Numbers> want{layer.gradient(exact_x, exact_dy, n, channels),
                                  layer.sums(exact_dy, n, channels)};
  // Each way is right for all blocks, whichever is taken for them.
  const auto check_gradient = [&](const std::string& way, const auto& of_tokens,
                                  const auto& of_features) {
    check<T>(way + what, want, [&](const Pool& pool, auto& to) {
      T* db = biased ? to[1].data() : nullptr;
      if (tokens) {
        of_tokens(pool, n, layer.kept(), to[0].data(), db);
      } else {
        of_features(pool, n, layer.kept(), to[0].data(), db);
      }
    });
  };
  const TokenOperands<T> token_blocks(x.data(), dy.data(), channels, grid);
  const FeatureOperands<T> feature_blocks(x.data(), dy.data(), grid);
  const TokenRows<T> token_rows(x.data(), dy.data(), channels, grid);
  const TurnedFeatures<T> feature_rows(x.data(), dy.data(), grid);
  const auto by_blocks = [](const auto& operands) {
    return [&operands](const Pool& pool, auto... rest) {
      kernel_gradient(pool, operands, rest...);
    };
  };
  const auto by_dots = [](const auto& operands) {
    return [&operands](const Pool& pool, auto... rest) {
      gradient_by_dots(pool, operands, rest...);
    };
  };
  check_gradient("dw, db: ", by_blocks(token_blocks), by_blocks(feature_blocks));
  check_gradient("dw, db by dots: ", by_dots(token_rows), by_dots(feature_rows));
}

constexpr bool kTokens = true, kFeatures = false;

template <typename T>
void check_layers() {
  const Grid grids[] = {
      {1, 1, 1, 1},     {4, 6, 1, 1},      {6, 10, 2, 3},     {26, 39, 13, 13},  {51, 34, 17, 17},
      {40, 57, 19, 8},  {36, 99, 33, 12},  {64, 64, 16, 16},  {96, 128, 64, 32}, {64, 64, 64, 32},
      {16, 1024, 8, 4}, {1024, 16, 16, 2}, {0, 8, 4, 4},      {8, 0, 4, 4},      {0, 0, 1, 1},
  };
  for (const Grid& grid : grids) {
    for (const Keep keep : kKeeps) {
      const bool small = grid.in * grid.out <= 1200;
      for (const int64_t n : {0, 1, 13, 37, small ? 300 : 100}) {
        check_layer<T>(grid, keep, n, kFeatures, 1);
      }
      check_layer<T>(grid, keep, 0, kTokens, 19);
      check_layer<T>(grid, keep, 3, kTokens, 0);
      check_layer<T>(grid, keep, 13, kTokens, 1);
      check_layer<T>(grid, keep, 3, kTokens, 19);
      check_layer<T>(grid, keep, 2, kTokens, 64);
      if (small) {  // the sum of dW in slices
        check_layer<T>(grid, keep, 800, kFeatures, 1);
        check_layer<T>(grid, keep, 13, kTokens, 64);
      }
    }
  }
}

}  // namespace sparsemlp
