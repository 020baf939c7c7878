// Products whose kernel is block sparse (DSD): Y = X (W * M) + b and dX = dY (W * M)^T.
#pragma once

#include "blocks.h"
#include "panel.h"
#include "prefetch.h"
#include "turned.h"

namespace sparsemlp {

// Runs a tile and writes its results, for good unless told otherwise, with `added`, laid out as out,
// on top unless null.
template <Order order, typename T>
inline void multiply_tile(Tile tile, int64_t rows, int64_t columns, T* out, int64_t out_stride,
                          const T* added = nullptr, Finish finish = Finish::kStream) {
  if constexpr (std::is_same_v<T, float>) {
    if (columns % kLanes == 0) {
      tile.out = out;
      tile.out_stride = out_stride;
      tile.finish = finish;
      tile.added = added;
      if constexpr (order == Order::kDepthMajor) return run_wide<order>(tile, rows, columns);
      return run<order>(tile, rows, columns);  // two vectors at most
    }
  }
  if (!added) return run_narrow<order>(tile, rows, columns, out, out_stride);
  alignas(64) float results[kTileRows * 2 * kLanes];
  run_narrow<order>(tile, rows, columns, results, 2 * kLanes);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t place = r * out_stride + c;
      narrow(results[r * 2 * kLanes + c] + widen(added[place]), out + place);
    }
  }
}

// A product of rows, lanes being outputs: what all panels of rows share.
struct RowProduct {
  PackedBlocks packed;
  Groups groups;
  std::vector<Segment> segments;
  std::vector<float> bias;  // empty for none

  template <typename T>
  RowProduct(const Pool& pool, const T* kernel, const T* bias_or_null, const Kept& kept,
             bool transposed)
      : packed(pack_blocks(pool, kernel, kept, transposed)), groups(group(kept, transposed)),
        segments(segments_of(groups, packed)) {
    if (bias_or_null) bias = padded_bias(bias_or_null, n_out());
  }
  int64_t n_out() const { return groups.count() * packed.width; }
  int64_t n_strips() const { return groups.count() * ceil_div(packed.width, 2 * kLanes); }

  // Writes all outputs of some rows, and calls `beside` at each strip of a few.
  template <typename T, typename Beside>
  void write(const float* panel, int64_t stride, int64_t n_rows, T* out, int64_t out_stride,
             Finish finish, Beside&& beside) const {
    Tile tile{};
    tile.a_stride = stride;
    tile.b_stride = packed.stride;
    tile.depth = packed.depth;
    for (int64_t o = 0; o < groups.count(); ++o) {
      tile.segments = segments.data() + groups.begin[o];
      tile.n_segments = groups.begin[o + 1] - groups.begin[o];
      for (int64_t c = 0; c < packed.width; c += 2 * kLanes) {
        const int64_t column = o * packed.width + c;
        const int64_t width = std::min<int64_t>(2 * kLanes, packed.width - c);
        tile.b = packed.data + c;
        beside();
        tile.column_bias = bias.empty() ? nullptr : bias.data() + column;
        for (int64_t r = 0; r < n_rows; r += kTileRows) {
          tile.a = panel + r * stride;
          const int64_t rows = std::min<int64_t>(kTileRows, n_rows - r);
          multiply_tile<Order::kRowMajor, T>(tile, rows, width, out + r * out_stride + column,
                                             out_stride, nullptr, finish);
        }
      }
    }
  }
};

// out [n, o] = in [n, i] * S + bias, S the kept blocks or, transposed, their transpose.
template <typename T>
void multiply_features(const Pool& pool, const T* in, int64_t n, const T* kernel, const T* bias,
                       const Kept& kept, bool transposed, T* out) {
  const Grid& grid = kept.grid;
  if (transposed ? is_narrow(grid.cols, grid.rows) : is_narrow(grid.rows, grid.cols)) {
    return multiply_turned(pool, in, n, kernel, bias, kept, transposed, out);
  }
  const int64_t n_in = transposed ? grid.out : grid.in, n_out = transposed ? grid.in : grid.out;
  const int64_t height = panel_rows(n_in, kPanelBytes, 4);
  expect_writes(out, n * n_out * sizeof(T));
  const RowProduct product(pool, kernel, bias, kept, transposed);
  const Rows<T> rows_in(in, n_in, false);

  parallel_for(pool, ceil_div(n, height), [&](int64_t task) {
    const int64_t first = task * height, n_rows = std::min(height, n - first);
    thread_local Buffer buffer;
    const float* panel = rows_in.open(first, n_rows, &buffer);
    const int64_t next_rows = std::min(height, n - first - n_rows);
    Prefetcher prefetch(rows_in.row(first + n_rows), next_rows * n_in * sizeof(T),
                        product.n_strips());
    product.write(panel, rows_in.stride(), n_rows, out + first * n_out, n_out, Finish::kStream,
                  prefetch);
  });
}

// out [n, o, c] = sum over i of S[i, o] in [n, i, c] + bias[o]: the same along tokens, with the
// channels c as columns and nothing transposed.
template <typename T>
void multiply_tokens(const Pool& pool, const T* in, int64_t n, int64_t channels, const T* kernel,
                     const T* bias, const Kept& kept, bool transposed, T* out) {
  const Grid& grid = kept.grid;
  const int64_t n_in = transposed ? grid.out : grid.in, n_out = transposed ? grid.in : grid.out;
  const PackedBlocks packed = pack_blocks(pool, kernel, kept, transposed, false);
  const Groups groups = group(kept, transposed);
  const bool copies = !std::is_same_v<T, float> || channels % kLanes != 0;
  const int64_t in_stride = copies ? round_up(channels, kLanes) : channels;
  const std::vector<Segment> segments = turned_segments(groups, packed, in_stride);
  std::vector<float> bias_row(bias ? n_out : 0);
  if (bias) widen_row(bias, n_out, bias_row.data());
  const int64_t tile_rows = ceil_div(packed.width, ceil_div(packed.width, kTileRows));
  const bool whole = std::is_same_v<T, float> && channels % kLanes == 0;
  const int64_t tile_width = kLanes * (whole ? n_vectors(tile_rows) : 2);

  parallel_for(pool, n, [&](int64_t sample) {
    const float* panel;
    if (copies) {
      thread_local Buffer buffer;
      float* copy = buffer.at_least(n_in * in_stride + kLanes);
      for (int64_t i = 0; i < n_in; ++i) {
        widen_row(in + (sample * n_in + i) * channels, channels, copy + i * in_stride);
        std::fill(copy + i * in_stride + channels, copy + (i + 1) * in_stride, 0.0f);
      }
      panel = copy;
    } else {
      panel = reinterpret_cast<const float*>(in) + sample * n_in * channels;
    }
    Tile tile{};
    tile.a_stride = packed.stride;
    tile.b_stride = in_stride;
    tile.depth = packed.depth;
    for (int64_t c = 0; c < channels; c += tile_width) {
      const int64_t width = std::min(tile_width, channels - c);
      tile.b = panel + c;
      for (int64_t o = 0; o < groups.count(); ++o) {
        tile.segments = segments.data() + groups.begin[o];
        tile.n_segments = groups.begin[o + 1] - groups.begin[o];
        for (int64_t r = 0; r < packed.width; r += tile_rows) {
          const int64_t row = o * packed.width + r;
          tile.a = packed.data + r;
          tile.row_bias = bias ? bias_row.data() + row : nullptr;
          const int64_t rows = std::min(tile_rows, packed.width - r);
          multiply_tile<Order::kDepthMajor>(tile, rows, width,
                                            out + (sample * n_out + row) * channels + c, channels);
        }
      }
    }
  });
}

}  // namespace sparsemlp
