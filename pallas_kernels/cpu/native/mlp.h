// Two block-sparse layers with a GELU between them, a panel of rows at a time, so that the hidden
// activations never leave the cache: y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2 (+ x).
//
// A hidden unit whose column of W1 is dropped is the constant gelu(b1): what it adds to y is a
// bias. A hidden unit whose row of W2 is dropped is not computed. Nothing is kept for the backward
// pass but x: it computes the hidden units again.
#pragma once

#include "gelu.h"
#include "gradient.h"
#include "product.h"

namespace sparsemlp {

template <typename T>
struct Mlp {
  Kept first, second;  // grids [in, hidden] and [hidden, out]
  const T *w1, *b1;    // b1 and b2 may be null
  const T *w2, *b2;
  bool residual;       // adds x, where out = in
  bool straight_through;  // gradients are those of whole kernels: only W * M is masked

  int64_t in() const { return first.grid.in; }
  int64_t hidden() const { return first.grid.out; }
  int64_t out() const { return second.grid.out; }
};

// What of the layers takes part; hidden units are told apart by blocks of W1's outputs.
struct Live {
  std::vector<char> computed;  // of W1's block columns: kept somewhere, and W2 uses it
  std::vector<char> constant;  // of W1's block columns: nothing kept
  std::vector<char> filled;    // of W1's block columns: constant, but needed among others
  std::vector<char> first;     // of W1's kept blocks: those in computed columns
  std::vector<char> second;    // of W2's kept blocks: those with a unit that is not constant
};

template <typename T>
Live find_live(const Mlp<T>& mlp) {
  const Grid &g1 = mlp.first.grid, &g2 = mlp.second.grid;
  Live live;
  live.constant.assign(g1.across(), 1);
  live.computed.assign(g1.across(), 0);
  live.filled.assign(g1.across(), 0);
  for (int64_t s = 0; s < mlp.first.n; ++s) live.constant[mlp.first.across(s)] = 0;
  for (int64_t s = 0; s < mlp.second.n; ++s) {
    const int64_t begin = mlp.second.down(s) * g2.cols / g1.rows;
    const int64_t end = ceil_div((mlp.second.down(s) + 1) * g2.cols, g1.rows);
    const bool any = std::any_of(&live.constant[begin], &live.constant[0] + end,
                                 [](char constant) { return !constant; });
    for (int64_t o = begin; any && o < end; ++o) {
      (live.constant[o] ? live.filled : live.computed)[o] = 1;
    }
    live.second.push_back(any);
  }
  for (int64_t s = 0; s < mlp.first.n; ++s) {
    live.first.push_back(live.computed[mlp.first.across(s)]);
  }
  return live;
}

// Of each hidden unit, as if it were constant: GELU of its bias, and the derivative there.
struct BiasGelu {
  std::vector<float> value, derivative;
};

template <typename T>
BiasGelu gelu_of_bias(const Mlp<T>& mlp) {
  const int64_t n = round_up(mlp.hidden(), kLanes);
  std::vector<float> bias(n);
  if (mlp.b1) widen_row(mlp.b1, mlp.hidden(), bias.data());
  BiasGelu result{std::vector<float>(n), std::vector<float>(n)};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Gelu g = gelu(load(&bias[i]));
    store(&result.value[i], g.value);
    store(&result.derivative[i], g.derivative);
  }
  return result;
}

// One product of the panel: its operands, and the blocks of its outputs.
struct PanelProduct {
  PackedBlocks packed;
  Groups groups;
  std::vector<Segment> segments;
  std::vector<float> bias;  // empty for none

  template <typename T>
  PanelProduct(const Pool& pool, const T* kernel, const Kept& kept, bool transposed,
               const std::vector<char>& live)
      : packed(pack_blocks(pool, kernel, kept, transposed)),
        groups(group(kept, transposed, &live)),
        segments(segments_of(groups, packed)) {}

  bool has(int64_t o) const { return groups.begin[o] < groups.begin[o + 1]; }

  // Calls sink(tile, first row, rows, first column, columns) for each tile of output block o.
  template <typename Sink>
  void tiles(int64_t o, const float* a, int64_t a_stride, int64_t n_rows, const Sink& sink) const {
    Tile tile{};
    tile.a_stride = a_stride;
    tile.b_stride = packed.stride;
    tile.depth = packed.depth;
    tile.segments = segments.data() + groups.begin[o];
    tile.n_segments = groups.begin[o + 1] - groups.begin[o];
    for (int64_t c = 0; c < packed.width; c += 2 * kLanes) {
      const int64_t columns = std::min<int64_t>(2 * kLanes, packed.width - c);
      tile.b = packed.data + c;
      tile.column_bias = bias.empty() ? nullptr : bias.data() + o * packed.width + c;
      for (int64_t r = 0; r < n_rows; r += kTileRows) {
        tile.a = a + r * a_stride;
        sink(tile, r, std::min<int64_t>(kTileRows, n_rows - r), o * packed.width + c, columns);
      }
    }
  }

  // Writes output block o to out, where whole vectors may be written.
  void write(int64_t o, const float* a, int64_t a_stride, int64_t n_rows, float* out,
             int64_t out_stride) const {
    tiles(o, a, a_stride, n_rows, [&](Tile& tile, int64_t r, int64_t rows, int64_t c, int64_t n) {
      if (packed.width % kLanes != 0) {
        return run_narrow<Order::kRowMajor>(tile, rows, n, out + r * out_stride + c, out_stride);
      }
      tile.out = out + r * out_stride + c;
      tile.out_stride = out_stride;
      tile.finish = Finish::kStore;
      run<Order::kRowMajor>(tile, rows, n);
    });
  }

  // Writes output block o to a result of the call, with `added` on top unless it is null.
  template <typename T>
  void emit(int64_t o, const float* a, int64_t a_stride, int64_t n_rows, T* out,
            int64_t out_stride, const T* added) const {
    tiles(o, a, a_stride, n_rows, [&](Tile& tile, int64_t r, int64_t rows, int64_t c, int64_t n) {
      const int64_t place = r * out_stride + c;
      multiply_tile<Order::kRowMajor>(tile, rows, n, out + place, out_stride,
                                      added ? added + place : nullptr);
    });
  }
};

// b2 and what the constant hidden units add.
template <typename T>
std::vector<float> output_bias(const Mlp<T>& mlp, const Live& live, const BiasGelu& constants) {
  const Grid& grid = mlp.second.grid;
  std::vector<float> bias = padded_bias(mlp.b2, mlp.out());
  for (int64_t s = 0; s < mlp.second.n; ++s) {
    if (live.second[s]) continue;
    float* to = bias.data() + mlp.second.across(s) * grid.rows;
    for (int64_t j = mlp.second.down(s) * grid.cols, end = j + grid.cols; j < end; ++j) {
      const T* row = mlp.w2 + j * grid.out + mlp.second.across(s) * grid.rows;
      for (int64_t c = 0; c < grid.rows; ++c) to[c] += constants.value[j] * widen(row[c]);
    }
  }
  return bias;
}

// The hidden units of a panel, [rows, stride()]; constant ones are filled in where a block of W2
// mixes them with others, and all of them for straight-through gradients.
class HiddenPanel {
 public:
  HiddenPanel(const Grid& first, const Live& live, const BiasGelu& constants)
      : grid_(first), live_(live), constants_(constants) {}
  int64_t stride() const { return round_up(grid_.out, kLanes) + kLanes; }

  // Turns pre-activations into GELU, and into its derivative beside it unless that is null.
  void activate(int64_t n_rows, float* hidden, float* derivative) const {
    for (int64_t r = 0; r < n_rows; ++r) {
      float* row = hidden + r * stride();
      float* slope = derivative ? derivative + r * stride() : nullptr;
      for (int64_t o = 0; o < grid_.across(); ++o) {
        const int64_t begin = o * grid_.rows, end = begin + grid_.rows;
        if (live_.filled[o]) {
          for (int64_t j = begin; j < end; ++j) row[j] = constants_.value[j];
          for (int64_t j = begin; slope && j < end; ++j) slope[j] = constants_.derivative[j];
        } else if (live_.computed[o]) {
          int64_t j = begin;
          for (; j + kLanes <= end; j += kLanes) activate_vector(row, slope, j, kLanes);
          if (j < end) activate_vector(row, slope, j, end - j);
        }
      }
    }
  }

 private:
  static void activate_vector(float* row, float* slope, int64_t j, int64_t n) {
    const Gelu g = gelu(load(row + j));
    if (n == kLanes) {
      store(row + j, g.value);
      if (slope) store(slope + j, g.derivative);
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      row[j + i] = g.value[i];
      if (slope) slope[j + i] = g.derivative[i];
    }
  }

  const Grid& grid_;
  const Live& live_;
  const BiasGelu& constants_;
};

// How many rows the forward pass takes at once, of n; a part of them for each of many tasks.
template <typename T>
int64_t forward_rows(const Mlp<T>& mlp, int64_t n) {
  const int64_t kept = mlp.first.n_floats() + mlp.second.n_floats();
  const int64_t near = panel_rows(mlp.in() + mlp.hidden(), kPanelBytes, 4);
  const int64_t rows = panel_rows_beside(kept, mlp.in() + mlp.hidden(), kPanelBytes, 4);
  return std::max(near, std::min(rows, n / 16 / kTileRows * kTileRows));
}

template <typename T>
void multiply_mlp(const Pool& pool, const Mlp<T>& mlp, const T* x, int64_t n, T* y) {
  expect_writes(y, n * mlp.out() * sizeof(T));
  const Live live = find_live(mlp);
  const BiasGelu constants = gelu_of_bias(mlp);
  PanelProduct expand(pool, mlp.w1, mlp.first, false, live.first);
  PanelProduct contract(pool, mlp.w2, mlp.second, false, live.second);
  expand.bias = padded_bias(mlp.b1, mlp.hidden());
  contract.bias = output_bias(mlp, live, constants);
  const HiddenPanel hidden(mlp.first.grid, live, constants);
  const Rows<T> rows_in(x, mlp.in(), false);
  const int64_t height = forward_rows(mlp, n);

  parallel_for(pool, ceil_div(n, height), [&](int64_t task) {
    const int64_t begin = task * height, n_rows = std::min(height, n - begin);
    thread_local Buffer x_buffer, hidden_buffer;
    const float* panel = rows_in.open(begin, n_rows, &x_buffer);
    float* units = hidden_buffer.at_least((n_rows + 1) * hidden.stride());
    for (int64_t o = 0; o < expand.groups.count(); ++o) {
      if (live.computed[o]) {
        expand.write(o, panel, rows_in.stride(), n_rows, units, hidden.stride());
      }
    }
    hidden.activate(n_rows, units, nullptr);
    for (int64_t o = 0; o < contract.groups.count(); ++o) {
      contract.emit(o, units, hidden.stride(), n_rows, y + begin * mlp.out(), mlp.out(),
                    mlp.residual ? x + begin * mlp.in() : nullptr);
    }
  });
}

}  // namespace sparsemlp
