// The gradient of a kernel with narrow blocks (SDD): dW = (X^T dY) * M, and db, the sums of dY.
//
// The sum over samples is cut into slices by the shapes alone, as in gradient.h.
#pragma once

#include "columns.h"
#include "dots.h"
#include "gradient.h"
#include "turned.h"

namespace sparsemlp {

// Whether the gradient of such blocks is computed best number by number: where outputs fill no
// vector; measured.
constexpr bool by_dots(const Grid& grid) { return grid.rows < kLanes; }

// x [n, in] and dy [n, out], turned some rows at a time: a unit is a row.
template <typename T>
class TurnedFeatures {
 public:
  TurnedFeatures(const T* x, const T* dy, const Grid& grid)
      : x_(x), dy_(dy), stride_(turned_rows(grid.in + grid.out, 1 << 20)), grid_(grid) {}
  int64_t depth_per_unit() const { return 1; }
  int64_t units_per_chunk() const { return stride_; }

  // Units [first, first + n), whose sums of dy are added to `sums` unless that is null.
  DotOperands open(int64_t first, int64_t n, float* sums) const {
    thread_local Buffer buffer;
    float* x = buffer.at_least((grid_.in + grid_.out) * stride_);
    float* dy = x + grid_.in * stride_;
    turn_rows(x_ + first * grid_.in, n, grid_.in, x, stride_);
    turn_rows(dy_ + first * grid_.out, n, grid_.out, dy, stride_);
    if (sums) sum_columns(dy_ + first * grid_.out, grid_.out, n, grid_.out, sums);
    return {x, dy, 0, 0, stride_, 1, round_up(n, kLanes)};
  }

 private:
  const T *x_, *dy_;
  int64_t stride_;
  Grid grid_;
};

// x [n, in, channels] and dy [n, out, channels], where rows lie along the channels as they are: a
// unit is a sample.
template <typename T>
class TokenRows {
 public:
  TokenRows(const T* x, const T* dy, int64_t channels, const Grid& grid)
      : x_(x), dy_(dy), channels_(channels), stride_(round_up(channels, kLanes)), grid_(grid) {}
  int64_t depth_per_unit() const { return channels_; }
  int64_t units_per_chunk() const {
    return std::max<int64_t>(1, 2 * kTurnedRows / std::max<int64_t>(1, stride_));
  }

  DotOperands open(int64_t first, int64_t n, float* sums) const {
    DotOperands found{nullptr, nullptr, grid_.in * stride_, grid_.out * stride_, stride_, n,
                      stride_};
    if (std::is_same_v<T, float> && channels_ == stride_) {
      found.x = reinterpret_cast<const float*>(x_) + first * found.x_step;
      found.dy = reinterpret_cast<const float*>(dy_) + first * found.dy_step;
    } else {
      thread_local Buffer buffer;
      float* x = buffer.at_least(n * (found.x_step + found.dy_step));
      float* dy = x + n * found.x_step;
      widen(x_ + first * grid_.in * channels_, n * grid_.in, x);
      widen(dy_ + first * grid_.out * channels_, n * grid_.out, dy);
      found.x = x;
      found.dy = dy;
    }
    for (int64_t o = 0; sums && o < grid_.out; o += kLanes) {
      Vec rows[kLanes] = {};
      const int64_t end = std::min<int64_t>(kLanes, grid_.out - o);
      for (int64_t s = 0; s < n; ++s) {
        for (int64_t i = 0; i < end; ++i) {
          const float* row = found.dy + s * found.dy_step + (o + i) * stride_;
          for (int64_t c = 0; c < stride_; c += kLanes) rows[i] += load(row + c);
        }
      }
      store(sums + o, load(sums + o) + sums_of(rows));
    }
    return found;
  }

 private:
  void widen(const T* rows, int64_t n, float* out) const {
    for (int64_t r = 0; r < n; ++r, out += stride_) {
      widen_row(rows + r * channels_, channels_, out);
      std::fill(out + channels_, out + stride_, 0.0f);
    }
  }

  const T *x_, *dy_;
  int64_t channels_, stride_;
  Grid grid_;
};

// dw [in, out] with zeros in dropped blocks; db [out] unless null.
template <typename T, typename Operands>
void gradient_by_dots(const Pool& pool, const Operands& operands, int64_t n_units,
                      const Kept& kept, T* dw, T* db) {
  constexpr int64_t kSlices = 16, kLeastTasks = 8;
  const Grid& grid = kept.grid;
  expect_writes(dw, grid.in * grid.out * sizeof(T));
  const DotPlan plan(kept);
  const int64_t n_tiles = plan.n_tiles();
  const int64_t dy_size = round_up(grid.out, kLanes), slice_size = plan.n_floats() + dy_size;
  const int64_t chunk = operands.units_per_chunk();
  const int64_t depth = n_units * operands.depth_per_unit();
  const int64_t traffic = depth * (grid.in + grid.out);
  const int64_t most_slices =
      std::min({kSlices, traffic / std::max<int64_t>(1, 4 * slice_size), depth / 256});
  // Whole chunks, so that the last one of a slice is not small.
  const int64_t units_per_slice = std::max(
      chunk, round_up(ceil_div(n_units, std::max<int64_t>(1, most_slices)), chunk));
  const int64_t n_slices = std::max<int64_t>(1, ceil_div(n_units, units_per_slice));
  // Of the tiles; each turns all rows of its slice.
  const int64_t n_parts = n_slices < kLeastTasks ? ceil_div(kLeastTasks, n_slices) : 1;
  const int64_t tiles_per_part = ceil_div(n_tiles, n_parts);
  Buffer sums_buffer;
  float* sums = sums_buffer.at_least(n_slices * slice_size);

  parallel_for(pool, n_slices * n_parts, [&](int64_t task) {
    const int64_t slice = task / n_parts, part = task % n_parts;
    const int64_t begin = std::min(n_tiles, part * tiles_per_part);
    const int64_t end = std::min(n_tiles, begin + tiles_per_part);
    float* const own = sums + slice * slice_size;
    float* const dy_sums = own + plan.n_floats();
    std::fill(own + begin * kDots, own + end * kDots, 0.0f);
    if (part == 0) std::fill_n(dy_sums, dy_size, 0.0f);
    const int64_t last = std::min(n_units, (slice + 1) * units_per_slice);
    for (int64_t u = slice * units_per_slice; u < last; u += chunk) {
      const DotOperands rows =
          operands.open(u, std::min(chunk, last - u), db && part == 0 ? dy_sums : nullptr);
      add_dots(plan, rows, begin, end, own);
    }
  });

  write_dots(pool, plan, sums, n_slices, slice_size, dw);
  if (db) write_sums(sums + plan.n_floats(), n_slices, slice_size, grid.out, db);
}

// dw and db from x [n, in] and dy [n, out].
template <typename T>
void feature_gradient(const Pool& pool, const T* x, const T* dy, int64_t n, const Kept& kept,
                      T* dw, T* db) {
  if (by_dots(kept.grid)) {
    return gradient_by_dots(pool, TurnedFeatures<T>(x, dy, kept.grid), n, kept, dw, db);
  }
  kernel_gradient(pool, FeatureOperands<T>(x, dy, kept.grid), n, kept, dw, db);
}

// dw and db from x [n, in, channels] and dy [n, out, channels].
template <typename T>
void token_gradient(const Pool& pool, const T* x, const T* dy, int64_t n, int64_t channels,
                    const Kept& kept, T* dw, T* db) {
  if (by_dots(kept.grid)) {
    return gradient_by_dots(pool, TokenRows<T>(x, dy, channels, kept.grid), n, kept, dw, db);
  }
  kernel_gradient(pool, TokenOperands<T>(x, dy, channels, kept.grid), n, kept, dw, db);
}

}  // namespace sparsemlp
