// Convolutions as products of rows: the row of an output are the pixels that its kernel covers.
#pragma once

#include <algorithm>

#include "simd.h"

namespace sparsemlp {

// The sizes of images [height, width, channels] and of their outputs [new_height, new_width], and
// how a kernel [down, across, channels, out] walks over them.
struct Convolution {
  int64_t height, width, channels, new_height, new_width, down, across;
  int64_t stride_down, stride_across;
  int64_t above, left;  // zeros around the image
  int64_t n_in() const { return down * across * channels; }
  int64_t n_outputs() const { return new_height * new_width; }
  int64_t image_size() const { return height * width * channels; }
};

// The row of one output, [down, across, channels]: zero where the kernel reaches beyond the image.
class Window {
 public:
  Window(const Convolution& convolution, int64_t output)
      : convolution_(convolution),
        y_(output / convolution.new_width * convolution.stride_down - convolution.above),
        x_(output % convolution.new_width * convolution.stride_across - convolution.left),
        first_(std::clamp<int64_t>(-x_, 0, convolution.across)),
        last_(std::clamp<int64_t>(convolution.width - x_, first_, convolution.across)) {}

  // Calls body(column, n, place) for every stretch of columns [begin, end) inside the image: n of
  // them, which stand in the image from `place` on.
  template <typename Body>
  void each_stretch(int64_t begin, int64_t end, const Body& body) const {
    if (begin >= end) return;
    const int64_t channels = convolution_.channels, line = convolution_.across * channels;
    for (int64_t i = begin / line; i * line < end; ++i) {
      const int64_t y = y_ + i;
      if (y < 0 || y >= convolution_.height) continue;
      const int64_t from = std::max(begin, i * line + first_ * channels);
      const int64_t to = std::min(end, i * line + last_ * channels);
      if (from >= to) continue;
      body(from, to - from, (y * convolution_.width + x_) * channels + from - i * line);
    }
  }

  // Writes columns [begin, end) of the row.
  template <typename T>
  void read(const T* image, int64_t begin, int64_t end, float* row) const {
    float* written = row;
    each_stretch(begin, end, [&](int64_t column, int64_t n, int64_t place) {
      float* const to = row + column - begin;
      std::fill(written, to, 0.0f);
      widen_row(image + place, n, to);
      written = to + n;
    });
    std::fill(written, row + end - begin, 0.0f);
  }

  // Adds the row to the pixels that it stands for.
  void add(const float* row, float* image) const {
    each_stretch(0, convolution_.n_in(), [&](int64_t column, int64_t n, int64_t place) {
      const float* const from = row + column;
      float* const to = image + place;
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) store(to + i, load(to + i) + load(from + i));
      for (; i < n; ++i) to[i] += from[i];
    });
  }

 private:
  const Convolution& convolution_;
  int64_t y_, x_, first_, last_;
};

}  // namespace sparsemlp
