// The two operands of a kernel's gradient, some samples at a time, where tiles can read them.
//
// x is opened for many tiles; a strip of dY, the outputs of one block, for those of the kept blocks
// that use it, which then find it in the nearest cache.
#pragma once

#include <vector>

#include "blocks.h"
#include "columns.h"

namespace sparsemlp {

// x [n, in] and dy [n, out]: a unit is a row.
template <typename T>
class FeatureOperands {
  // Rows of more floats stand so far apart that too few of them fit into the nearest cache.
  static constexpr int64_t kWideRow = 256;

 public:
  FeatureOperands(const T* x, const T* dy, const Grid& grid)
      : x_(x), dy_(dy), grid_(grid), stride_(round_up(grid.rows, kLanes)),
        copies_x_(!std::is_same_v<T, float> || grid.in > kWideRow) {}
  static constexpr Order order = Order::kDepthMajor;
  int64_t depth_per_unit() const { return 1; }

  // Brings units [first, first + n) of x into reach of `tile`, blocks of `down` marked.
  void open(int64_t first, int64_t n, const std::vector<bool>& down, Tile* tile) {
    open_units(first, n, tile);
    for (int64_t k = 0; copies_x_ && k < grid_.down(); ++k) {
      for (int64_t r = 0; down[k] && r < n; ++r) {
        widen_row(x_ + (first + r) * grid_.in + k * grid_.cols, grid_.cols, copy_of(k, r));
      }
    }
  }

  // Brings the units' outputs of block `across` of dy into reach, and adds their sums to `sums`
  // unless it is null.
  void open_strip(int64_t across, float* sums, Tile* tile) {
    sum_columns(dy_ + first_ * grid_.out + across * grid_.rows, grid_.out, n_, grid_.rows, sums,
                strip_, stride_);
    tile->b = strip_;
  }

  // Where block `down` of x begins, and how far from there its column `row` does: a row of dW.
  const float* block(int64_t down) const {
    return copies_x_ ? x_copy_ + down * n_ * grid_.cols
                     : reinterpret_cast<const float*>(x_) + first_ * grid_.in + down * grid_.cols;
  }
  int64_t row_offset(int64_t row) const { return row; }

 protected:
  // For operands whose x is written by the derived class, always as copies.
  FeatureOperands(const T* dy, const Grid& grid)
      : x_(nullptr), dy_(dy), grid_(grid), stride_(round_up(grid.rows, kLanes)), copies_x_(true) {}

  void open_units(int64_t first, int64_t n, Tile* tile) {
    first_ = first;
    n_ = n;
    segment_ = {0, 0};
    tile->segments = &segment_;
    tile->n_segments = 1;
    tile->depth = n;
    tile->a_stride = copies_x_ ? grid_.cols : grid_.in;
    tile->b_stride = stride_;
    thread_local Buffer x_buffer, dy_buffer;
    strip_ = dy_buffer.at_least(n * stride_ + kLanes);
    if (copies_x_) x_copy_ = x_buffer.at_least(n * grid_.in);
  }

  // Where the copy of a unit's block `down` of x begins.
  float* copy_of(int64_t down, int64_t unit) const {
    return x_copy_ + (down * n_ + unit) * grid_.cols;
  }

 private:
  const T *x_, *dy_;
  Grid grid_;
  int64_t stride_, first_ = 0, n_ = 0;
  bool copies_x_;
  float *x_copy_ = nullptr, *strip_ = nullptr;
  Segment segment_{};
};

// x [n, in, channels] and dy [n, out, channels]: a unit is a sample. dY is turned, so that its
// outputs lie side by side in a vector.
template <typename T>
class TokenOperands {
 public:
  TokenOperands(const T* x, const T* dy, int64_t channels, const Grid& grid)
      : x_(x), dy_(dy), channels_(channels), grid_(grid), stride_(round_up(grid.rows, kLanes)) {}
  static constexpr Order order = Order::kRowMajor;
  int64_t depth_per_unit() const { return channels_; }

  void open(int64_t first, int64_t n, const std::vector<bool>& /*down*/, Tile* tile) {
    first_ = first;
    n_ = n;
    const int64_t x_size = grid_.in * channels_, stripe = channels_ * stride_;
    thread_local Buffer x_buffer, dy_buffer;
    if (std::is_same_v<T, float>) {
      a_ = reinterpret_cast<const float*>(x_) + first * x_size;
    } else {
      float* copy = x_buffer.at_least(n * x_size);
      widen_row(x_ + first * x_size, n * x_size, copy);
      a_ = copy;
    }
    strip_ = dy_buffer.at_least(n * stripe + kLanes);
    segments_.resize(n);
    for (int64_t s = 0; s < n; ++s) segments_[s] = {s * x_size, s * stripe};
    tile->segments = segments_.data();
    tile->n_segments = n;
    tile->depth = channels_;
    tile->a_stride = channels_;
    tile->b_stride = stride_;
  }

  void open_strip(int64_t across, float* sums, Tile* tile) {
    for (int64_t s = 0; s < n_; ++s) {
      const T* from = dy_ + ((first_ + s) * grid_.out + across * grid_.rows) * channels_;
      float* to = strip_ + s * channels_ * stride_;
      transpose(from, channels_, grid_.rows, channels_, to, stride_);
      for (int64_t c = 0; c < channels_; ++c) {
        for (int64_t i = grid_.rows; i < stride_; ++i) to[c * stride_ + i] = 0;
      }
    }
    if (sums) sum_columns(strip_, stride_, n_ * channels_, grid_.rows, sums);
    tile->b = strip_;
  }

  const float* block(int64_t down) const { return a_ + down * grid_.cols * channels_; }
  int64_t row_offset(int64_t row) const { return row * channels_; }

 private:
  const T *x_, *dy_;
  int64_t channels_;
  Grid grid_;
  int64_t stride_, first_ = 0, n_ = 0;
  const float* a_ = nullptr;
  float* strip_ = nullptr;
  std::vector<Segment> segments_;
};

}  // namespace sparsemlp
