// The three products of a convolution.
#pragma once

#include "checking.h"
#include "convolution.h"

namespace sparsemlp {

// For every entry of unfolded images [batch * outputs, in] the place in the images, -1 beyond them.
inline std::vector<int64_t> unfolded_places(const Convolution& c, int64_t batch) {
  std::vector<int64_t> places;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t o = 0; o < c.n_outputs(); ++o) {
      for (int64_t i = 0; i < c.down; ++i) {
        for (int64_t j = 0; j < c.across; ++j) {
          const int64_t y = o / c.new_width * c.stride_down + i - c.above;
          const int64_t x = o % c.new_width * c.stride_across + j - c.left;
          const bool inside = 0 <= y && y < c.height && 0 <= x && x < c.width;
          for (int64_t channel = 0; channel < c.channels; ++channel) {
            const int64_t pixel = (b * c.height + y) * c.width + x;
            places.push_back(inside ? pixel * c.channels + channel : -1);
          }
        }
      }
    }
  }
  return places;
}

template <typename T>
void check_convolution(const Convolution& c, int64_t batch, const Grid& grid, Keep keep) {
  if (is_left_out()) return;
  const bool biased = random_bits() % 2;
  const Layer<T> layer(grid, keep, biased);
  const int64_t n = batch * c.n_outputs();
  const std::vector<T> x = draw<T>(batch * c.image_size()), dy = draw<T>(n * grid.out);
  const Numbers exact_x = exact(x), exact_dy = exact(dy);
  const std::vector<int64_t> places = unfolded_places(c, batch);
  Numbers rows(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] >= 0) rows[i] = exact_x[places[i]];
  }
  const std::string what =
      describe(grid, keep) + (biased ? " bias" : "") + " " + std::to_string(batch) + " images " +
      std::to_string(c.height) + "x" + std::to_string(c.width) + " kernel " +
      std::to_string(c.down) + "x" + std::to_string(c.across) + " strides " +
      std::to_string(c.stride_down) + "x" + std::to_string(c.stride_across);
  check<T>("convolution y: " + what, {layer.product(rows, n, 1, false)},
           [&](const Pool& pool, auto& to) {
             convolve(pool, c, x.data(), batch, layer.kernel.data(), layer.bias_or_null(),
                      layer.kept(), to[0].data());
           });
  const Numbers row_gradients = layer.product(exact_dy, n, 1, true);
  Numbers dx(x.size());
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] >= 0) dx[places[i]] = dx[places[i]] + row_gradients[i];
  }
  check<T>("convolution dx: " + what, {dx}, [&](const Pool& pool, auto& to) {
    convolve_input_gradient(pool, c, dy.data(), batch, layer.kernel.data(), layer.kept(),
                            to[0].data());
  });
  check<T>("convolution dw, db: " + what,
           {layer.gradient(rows, exact_dy, n, 1), layer.sums(exact_dy, n, 1)},
           [&](const Pool& pool, auto& to) {
             convolve_gradient(pool, c, x.data(), dy.data(), batch, layer.kept(), to[0].data(),
                               biased ? to[1].data() : nullptr);
           });
}

template <typename T>
void check_convolutions() {
  struct Case {
    Convolution convolution;
    int64_t batch;
    Grid grid;
  };
  const Case cases[] = {
      {{5, 6, 16, 5, 6, 3, 3, 1, 1, 1, 1}, 3, {144, 48, 16, 16}},
      {{6, 5, 3, 6, 5, 3, 3, 1, 1, 1, 1}, 2, {27, 40, 8, 9}},     // blocks across positions
      {{7, 7, 10, 4, 4, 5, 5, 2, 2, 2, 2}, 2, {250, 34, 17, 25}},
      {{9, 4, 8, 2, 5, 4, 2, 3, 1, 0, 1}, 3, {64, 32, 32, 8}},    // the last rows meet no kernel
      {{4, 4, 8, 2, 2, 2, 2, 3, 3, 0, 0}, 5, {32, 20, 4, 4}},     // pixels between the windows
      {{2, 2, 4, 6, 6, 3, 3, 1, 1, 3, 3}, 1, {36, 16, 16, 12}},   // windows without a pixel
      {{1, 1, 8, 1, 1, 3, 3, 1, 1, 1, 1}, 7, {72, 16, 16, 8}},
      {{3, 3, 1, 3, 3, 1, 1, 1, 1, 0, 0}, 2, {1, 1, 1, 1}},
      {{16, 16, 4, 16, 16, 3, 3, 1, 1, 1, 1}, 4, {36, 24, 8, 6}},  // several panels, dW in slices
      {{3, 3, 0, 3, 3, 3, 3, 1, 1, 1, 1}, 2, {0, 16, 16, 4}},
      {{3, 3, 4, 3, 3, 3, 3, 1, 1, 1, 1}, 0, {36, 16, 16, 4}},
      {{2, 2, 4, 0, 0, 3, 3, 1, 1, 0, 0}, 2, {36, 16, 16, 4}},
  };
  for (const auto& [convolution, batch, grid] : cases) {
    for (const Keep keep : kKeeps) check_convolution<T>(convolution, batch, grid, keep);
  }
}

}  // namespace sparsemlp
