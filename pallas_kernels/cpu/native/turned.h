// Products of blocks with fewer outputs than a vector has lanes: lanes are rows of x instead, in
// panels that are turned on their way in and out.
#pragma once

#include <type_traits>

#include "blocks.h"
#include "turn.h"

namespace sparsemlp {

constexpr int64_t kTurnedRows = 8 * kLanes;  // of a turned panel, at most

// Whether rows of x are the better lanes for a product by blocks of such a shape; measured.
constexpr bool is_narrow(int64_t outputs, int64_t inputs) {
  return outputs <= (inputs == 1 ? kLanes : kLanes / 2);
}

// How many rows, whole vectors of them, make a turned panel with so many floats for each row.
inline int64_t turned_rows(int64_t floats_per_row, int64_t bytes) {
  int64_t rows = kTurnedRows;
  while (rows > 2 * kLanes && 4 * rows * floats_per_row > bytes) rows /= 2;
  return rows;
}

// Turns rows of an operand, so that element (row, c) is at panel[c * stride + row]; rows up to
// whole vectors are zero.
template <typename T>
void turn_rows(const T* rows, int64_t n_rows, int64_t width, float* panel, int64_t stride) {
  transpose(rows, width, n_rows, width, panel, stride);
  const int64_t end = round_up(n_rows, kLanes);
  for (int64_t c = 0; n_rows < end && c < width; ++c) {
    std::fill(panel + c * stride + n_rows, panel + c * stride + end, 0.0f);
  }
}

// Turns columns [0, n) of some rows back, n at most the lanes of a vector, and writes them for
// good, with `added`, laid out as out, on top unless null.
template <typename T>
void turn_back(const float* strip, int64_t strip_stride, int64_t n_rows, int64_t n, T* out,
               int64_t stride, const T* added) {
  for (int64_t r = 0; r < n_rows; r += kLanes) {
    Vec square[kLanes];
    for (int c = 0; c < kLanes; ++c) square[c] = load(strip + c * strip_stride + r);
    turn(square);
    const int64_t rows = std::min<int64_t>(kLanes, n_rows - r);
    for (int64_t i = 0; i < rows; ++i) {
      T* to = out + (r + i) * stride;
      const T* on_top = added ? added + (r + i) * stride : nullptr;
      if constexpr (std::is_same_v<T, float>) {
        if (n == kLanes) {
          if (on_top) square[i] += load(on_top);
          streams(to) ? stream(to, square[i]) : store(to, square[i]);
          continue;
        }
      }
      for (int64_t c = 0; c < n; ++c) {
        narrow(on_top ? square[i][c] + widen(on_top[c]) : square[i][c], to + c);
      }
    }
  }
}

// A product whose operands are turned panels, both of the same stride.
struct TurnedProduct {
  PackedBlocks packed;
  Groups groups;
  std::vector<Segment> segments;
  std::vector<float> bias;  // empty for none
  int64_t stride;

  template <typename T>
  TurnedProduct(const Pool& pool, const T* kernel, const Kept& kept, bool transposed,
                int64_t stride, const std::vector<char>* live = nullptr)
      : packed(pack_blocks(pool, kernel, kept, transposed, false)),
        groups(group(kept, transposed, live)),
        segments(turned_segments(groups, packed, stride)),
        stride(stride) {}

  bool has(int64_t o) const { return groups.begin[o] < groups.begin[o + 1]; }

  // Writes the rows of output block o, `lanes` long.
  void write(int64_t o, const float* in, int64_t lanes, float* out) const {
    Tile tile{};
    tile.a_stride = packed.stride;
    tile.b = in;
    tile.b_stride = stride;
    tile.depth = packed.depth;
    tile.segments = segments.data() + groups.begin[o];
    tile.n_segments = groups.begin[o + 1] - groups.begin[o];
    tile.out_stride = stride;
    tile.finish = Finish::kStore;
    for (int64_t r = 0; r < packed.width; r += kTileRows) {
      tile.a = packed.data + r;
      tile.row_bias = bias.empty() ? nullptr : bias.data() + o * packed.width + r;
      tile.out = out + r * stride;
      run_wide<Order::kDepthMajor>(tile, std::min<int64_t>(kTileRows, packed.width - r), lanes);
    }
  }

  // Writes all outputs of some rows to a result of the call, with `added` on top unless null.
  template <typename T>
  void emit(const float* in, int64_t n_rows, T* out, const T* added) const {
    const int64_t n_out = groups.count() * packed.width, lanes = round_up(n_rows, kLanes);
    const int64_t together = std::max<int64_t>(1, kLanes / packed.width);
    thread_local Buffer buffer;
    float* rows = buffer.at_least(round_up(together * packed.width, kLanes) * stride);
    for (int64_t begin = 0; begin < groups.count(); begin += together) {
      const int64_t end = std::min(groups.count(), begin + together);
      for (int64_t o = begin; o < end; ++o) {
        write(o, in, lanes, rows + (o - begin) * packed.width * stride);
      }
      const int64_t n = (end - begin) * packed.width;
      for (int64_t c = 0; c < n; c += kLanes) {
        const int64_t place = begin * packed.width + c;
        turn_back(rows + c * stride, stride, n_rows, std::min<int64_t>(kLanes, n - c), out + place,
                  n_out, added ? added + place : nullptr);
      }
    }
  }
};

// out [n, o] = in [n, i] * S + bias, as `multiply_features`.
template <typename T>
void multiply_turned(const Pool& pool, const T* in, int64_t n, const T* kernel, const T* bias,
                     const Kept& kept, bool transposed, T* out) {
  const Grid& grid = kept.grid;
  const int64_t n_in = transposed ? grid.out : grid.in, n_out = transposed ? grid.in : grid.out;
  const int64_t height = turned_rows(n_in, 400 << 10);
  expect_writes(out, n * n_out * sizeof(T));
  TurnedProduct product(pool, kernel, kept, transposed, height);
  if (bias) product.bias = padded_bias(bias, n_out);
  parallel_for(pool, ceil_div(n, height), [&](int64_t task) {
    const int64_t first = task * height, n_rows = std::min(height, n - first);
    thread_local Buffer buffer;
    float* panel = buffer.at_least(n_in * height);
    turn_rows(in + first * n_in, n_rows, n_in, panel, height);
    product.emit<T>(panel, n_rows, out + first * n_out, nullptr);
  });
}

}  // namespace sparsemlp
