// The three products of a convolution whose kernel, as a matrix [down * across * channels, out], is
// block sparse. Images are unfolded a panel at a time, in the cache.
#pragma once

#include "gradient.h"
#include "product.h"
#include "window.h"

namespace sparsemlp {

// y [batch, new_height, new_width, out] = x * (W * M) + b.
template <typename T>
void convolve(const Pool& pool, const Convolution& convolution, const T* x, int64_t batch,
              const T* kernel, const T* bias, const Kept& kept, T* y) {
  const int64_t n = batch * convolution.n_outputs(), n_in = kept.grid.in, n_out = kept.grid.out;
  if (n * n_out == 0) return;
  const int64_t stride = round_up(n_in, kLanes) + kLanes;
  const int64_t height = panel_rows_beside(kept.n_floats(), n_in, kPanelBytes, 4);
  expect_writes(y, n * n_out * sizeof(T));
  const RowProduct product(pool, kernel, bias, kept, false);
  parallel_for(pool, ceil_div(n, height), [&](int64_t task) {
    const int64_t first = task * height, n_rows = std::min(height, n - first);
    thread_local Buffer buffer;
    float* const panel = buffer.at_least((n_rows + 1) * stride);
    for (int64_t r = 0; r < n_rows; ++r) {
      const int64_t image = (first + r) / convolution.n_outputs();
      const Window window(convolution, (first + r) % convolution.n_outputs());
      window.read(x + image * convolution.image_size(), 0, n_in, panel + r * stride);
    }
    product.write(panel, stride, n_rows, y + first * n_out, n_out, Finish::kStream, [] {});
  });
}

// dx [batch, height, width, channels], from dy and (W * M)^T. An image is one thread's: windows
// overlap.
template <typename T>
void convolve_input_gradient(const Pool& pool, const Convolution& convolution, const T* dy,
                             int64_t batch, const T* kernel, const Kept& kept, T* dx) {
  const int64_t n_in = kept.grid.in, n_out = kept.grid.out, size = convolution.image_size();
  const int64_t n = kept.n == 0 ? 0 : convolution.n_outputs();  // nothing to add up otherwise
  const int64_t stride = round_up(n_in, kLanes) + kLanes;
  const int64_t height = panel_rows_beside(kept.n_floats(), n_in, kPanelBytes, 4);
  expect_writes(dx, batch * size * sizeof(T));
  const RowProduct product(pool, kernel, static_cast<const T*>(nullptr), kept, true);
  const Rows<T> rows_in(dy, n_out, false);
  parallel_for(pool, batch, [&](int64_t image) {
    thread_local Buffer dy_buffer, row_buffer, image_buffer;
    float* const rows = n > 0 ? row_buffer.at_least(height * stride) : nullptr;
    float* sums = nullptr;
    if constexpr (std::is_same_v<T, float>) {
      sums = dx + image * size;
    } else {
      sums = image_buffer.at_least(size);
    }
    std::fill_n(sums, size, 0.0f);
    for (int64_t first = 0; first < n; first += height) {
      const int64_t n_rows = std::min(height, n - first);
      const float* panel = rows_in.open(image * n + first, n_rows, &dy_buffer);
      product.write(panel, rows_in.stride(), n_rows, rows, stride, Finish::kStore, [] {});
      for (int64_t r = 0; r < n_rows; ++r) {
        Window(convolution, first + r).add(rows + r * stride, sums);
      }
    }
    if constexpr (!std::is_same_v<T, float>) {
      for (int64_t i = 0; i < size; ++i) narrow(sums[i], dx + image * size + i);
    }
  });
}

// x as unfolded images and dy [n, out]: a unit is an output pixel.
template <typename T>
class WindowOperands : public FeatureOperands<T> {
 public:
  WindowOperands(const Convolution& convolution, const T* x, const T* dy, const Grid& grid)
      : FeatureOperands<T>(dy, grid), convolution_(convolution), x_(x), cols_(grid.cols) {}

  void open(int64_t first, int64_t n, const std::vector<bool>& down, Tile* tile) {
    this->open_units(first, n, tile);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t image = (first + r) / convolution_.n_outputs();
      const Window window(convolution_, (first + r) % convolution_.n_outputs());
      const T* const pixels = x_ + image * convolution_.image_size();
      for (size_t k = 0; k < down.size(); ++k) {
        if (down[k]) window.read(pixels, k * cols_, (k + 1) * cols_, this->copy_of(k, r));
      }
    }
  }

 private:
  Convolution convolution_;
  const T* x_;
  int64_t cols_;
};

// dw [down, across, channels, out], zero in dropped blocks; db [out] unless null.
template <typename T>
void convolve_gradient(const Pool& pool, const Convolution& convolution, const T* x, const T* dy,
                       int64_t batch, const Kept& kept, T* dw, T* db) {
  const WindowOperands<T> operands(convolution, x, dy, kept.grid);
  kernel_gradient(pool, operands, batch * convolution.n_outputs(), kept, dw, db);
}

}  // namespace sparsemlp
