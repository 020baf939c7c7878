// The two layers of mlp.h where blocks are narrow: in turned panels, whose lanes are rows of x, so
// that no lane is empty whatever the blocks.
#pragma once

#include "dots.h"
#include "mlp_gradient.h"
#include "turned.h"

namespace sparsemlp {

// Whether a pair of layers is computed best in turned panels; measured.
template <typename T>
bool turns(const Mlp<T>& mlp) {
  const Grid &g1 = mlp.first.grid, &g2 = mlp.second.grid;
  return std::min({g1.rows, g1.cols, g2.rows, g2.cols}) <= kLanes / 2;
}

// The hidden units of a turned panel: rows of `lanes` numbers.
struct TurnedUnits {
  const Grid& grid;  // of the first layer
  const Live& live;
  const BiasGelu& constants;
  int64_t stride;

  // Turns pre-activations into GELU, and into its derivative beside it unless that is null;
  // constant units that are needed among others are filled in.
  void activate(int64_t lanes, float* units, float* slopes) const {
    each([&](int64_t j, bool computed) {
      float* row = units + j * stride;
      float* slope = slopes ? slopes + j * stride : nullptr;
      if (!computed) {
        std::fill(row, row + lanes, constants.value[j]);
        if (slope) std::fill(slope, slope + lanes, constants.derivative[j]);
        return;
      }
      for (int64_t l = 0; l < lanes; l += kLanes) {
        const Gelu g = gelu(load(row + l));
        store(row + l, g.value);
        if (slope) store(slope + l, g.derivative);
      }
    });
  }

  // Multiplies gradients by slopes, and adds the sum of each row to `sums`; of `all` units, or of
  // those that are computed.
  void backward(int64_t lanes, const float* slopes, float* gradients, float* sums,
                bool all) const {
    each([&](int64_t j, bool computed) {
      if (!computed && !all) return;
      Vec total{};
      float* row = gradients + j * stride;
      for (int64_t l = 0; l < lanes; l += kLanes) {
        const Vec product = load(row + l) * load(slopes + j * stride + l);
        store(row + l, product);
        total += product;
      }
      for (int lane = 0; lane < kLanes; ++lane) sums[j] += total[lane];
    });
  }

 private:
  // Calls body(unit, whether it is computed) for those that are computed or filled in.
  template <typename Body>
  void each(const Body& body) const {
    for (int64_t o = 0; o < grid.across(); ++o) {
      if (!live.computed[o] && !live.filled[o]) continue;
      for (int64_t j = o * grid.rows; j < (o + 1) * grid.rows; ++j) body(j, live.computed[o]);
    }
  }
};

// The numbers of a kernel's gradient: of all of it, or of the kept blocks that are live.
inline DotPlan plan_of(const Kept& kept, const std::vector<char>& live, bool all) {
  if (!all) return DotPlan(kept, &live);
  Grid grid = kept.grid;
  grid.rows = DotPlan::height_of(grid.out);
  grid.cols = DotPlan::height_of(grid.in);
  std::vector<int32_t> ids(grid.down() * grid.across());
  std::iota(ids.begin(), ids.end(), 0);
  return DotPlan({grid, ids.data(), static_cast<int64_t>(ids.size())});
}

// How many bytes a panel of the forward pass may take: more where the kept blocks, and where they
// are, take more for each panel. The rows are passed over some eight times.
template <typename T>
int64_t turned_bytes(const Mlp<T>& mlp) {
  constexpr int64_t kFloatsBeside = 6;  // a block's place, and where to go from it
  const int64_t floats = mlp.first.n_floats() + mlp.second.n_floats() +
                         kFloatsBeside * (mlp.first.n + mlp.second.n);
  return std::max(kPanelBytes, std::min(kFarPanelBytes, 4 * floats / 8));
}

template <typename T>
void multiply_turned_mlp(const Pool& pool, const Mlp<T>& mlp, const T* x, int64_t n, T* y) {
  expect_writes(y, n * mlp.out() * sizeof(T));
  const int64_t height = turned_rows(mlp.in() + mlp.hidden(), turned_bytes(mlp));
  const Live live = find_live(mlp);
  const BiasGelu constants = gelu_of_bias(mlp);
  TurnedProduct expand(pool, mlp.w1, mlp.first, false, height, &live.first);
  TurnedProduct contract(pool, mlp.w2, mlp.second, false, height, &live.second);
  expand.bias = padded_bias(mlp.b1, mlp.hidden());
  contract.bias = output_bias(mlp, live, constants);
  const TurnedUnits hidden{mlp.first.grid, live, constants, height};

  parallel_for(pool, ceil_div(n, height), [&](int64_t task) {
    const int64_t begin = task * height, n_rows = std::min(height, n - begin);
    const int64_t lanes = round_up(n_rows, kLanes);
    thread_local Buffer buffer;
    float* panel = buffer.at_least((mlp.in() + mlp.hidden()) * height);
    float* units = panel + mlp.in() * height;
    turn_rows(x + begin * mlp.in(), n_rows, mlp.in(), panel, height);
    for (int64_t o = 0; o < expand.groups.count(); ++o) {
      if (live.computed[o]) expand.write(o, panel, lanes, units + o * expand.packed.width * height);
    }
    hidden.activate(lanes, units, nullptr);
    contract.emit(units, n_rows, y + begin * mlp.out(),
                  mlp.residual ? x + begin * mlp.in() : nullptr);
  });
}

template <typename T>
void turned_mlp_gradients(const Pool& pool, const Mlp<T>& mlp, const T* x, const T* dy, int64_t n,
                          const MlpGradients<T>& to) {
  expect_writes(to.dx, n * mlp.in() * sizeof(T));
  const Grid &g1 = mlp.first.grid, &g2 = mlp.second.grid;
  const int64_t n_in = mlp.in(), n_hidden = mlp.hidden(), n_out = mlp.out();
  // So much is read of the kernels for each panel that the panel itself may as well be far away.
  const int64_t height = turned_rows(n_in + n_out + 3 * n_hidden, kFarPanelBytes);
  const bool all = mlp.straight_through;
  const Live live = find_live_for_gradients(mlp);
  const BiasGelu constants = gelu_of_bias(mlp);
  TurnedProduct expand(pool, mlp.w1, mlp.first, false, height, &live.first);
  const TurnedProduct expand_back(pool, mlp.w1, mlp.first, true, height, &live.first);
  const TurnedProduct contract_back(pool, mlp.w2, mlp.second, true, height, &live.second);
  expand.bias = padded_bias(mlp.b1, n_hidden);
  const TurnedUnits hidden{g1, live, constants, height};
  const DotPlan first = plan_of(mlp.first, live.first, all);
  const DotPlan second = plan_of(mlp.second, live.second, all);

  const MlpSums sizes{first.n_floats(), second.n_floats(), n_hidden, n_out};
  const Slices slices(n, n_in + n_hidden + n_out, sizes);
  Buffer sums_buffer;
  float* sums = sums_buffer.at_least(slices.n * sizes.size());

  parallel_for(pool, slices.n, [&](int64_t slice) {
    float* dw1 = sums + slice * sizes.size();
    float *dw2 = dw1 + sizes.first, *db1 = dw2 + sizes.second, *db2 = db1 + sizes.hidden;
    std::fill(dw1, dw1 + sizes.size(), 0.0f);
    thread_local Buffer buffer;
    float* x_panel = buffer.at_least((n_in + n_out + 3 * n_hidden) * height);
    float *dy_panel = x_panel + n_in * height, *units = dy_panel + n_out * height;
    float *slopes = units + n_hidden * height, *dh = slopes + n_hidden * height;
    const int64_t last = std::min(n, (slice + 1) * slices.rows);
    for (int64_t begin = slice * slices.rows; begin < last; begin += height) {
      const int64_t n_rows = std::min(height, last - begin), lanes = round_up(n_rows, kLanes);
      turn_rows(x + begin * n_in, n_rows, n_in, x_panel, height);
      turn_rows(dy + begin * n_out, n_rows, n_out, dy_panel, height);
      for (int64_t o = 0; o < g1.across(); ++o) {
        if (live.computed[o]) expand.write(o, x_panel, lanes, units + o * g1.rows * height);
      }
      hidden.activate(lanes, units, slopes);
      add_dots(second, {units, dy_panel, 0, 0, height, 1, lanes}, 0, second.n_tiles(), dw2);
      for (int64_t d = 0; d < g2.down(); ++d) {
        float* rows = dh + d * g2.cols * height;
        if (contract_back.has(d)) {
          contract_back.write(d, dy_panel, lanes, rows);
        } else {
          std::fill(rows, rows + g2.cols * height, 0.0f);
        }
      }
      hidden.backward(lanes, slopes, dh, db1, all);
      add_dots(first, {x_panel, dh, 0, 0, height, 1, lanes}, 0, first.n_tiles(), dw1);
      sum_columns(dy + begin * n_out, n_out, n_rows, n_out, db2);
      expand_back.emit(dh, n_rows, to.dx + begin * n_in,
                       mlp.residual ? dy + begin * n_out : nullptr);
    }
  });

  write_dots(pool, first, sums, slices.n, sizes.size(), to.dw1);
  write_dots(pool, second, sums + sizes.first, slices.n, sizes.size(), to.dw2);
  float* db1 = sums + sizes.first + sizes.second;
  add_constants(mlp, live, live.second, mlp.second, constants, sizes, slices.n, sums,
                [&](int64_t s, int64_t i, int64_t c, float value) {
                  const int64_t in = mlp.second.down(s) * g2.cols + i;
                  narrow(value, to.dw2 + in * g2.out + mlp.second.across(s) * g2.rows + c);
                });
  if (mlp.b1) write_sums(db1, slices.n, sizes.size(), n_hidden, to.db1);
  if (mlp.b2) write_sums(db1 + sizes.hidden, slices.n, sizes.size(), n_out, to.db2);
}

// Both ways in one: whichever is best for the blocks.
template <typename T>
void run_mlp(const Pool& pool, const Mlp<T>& mlp, const T* x, int64_t n, T* y) {
  turns(mlp) ? multiply_turned_mlp(pool, mlp, x, n, y) : multiply_mlp(pool, mlp, x, n, y);
}

template <typename T>
void run_mlp_gradients(const Pool& pool, const Mlp<T>& mlp, const T* x, const T* dy, int64_t n,
                       const MlpGradients<T>& to) {
  turns(mlp) ? turned_mlp_gradients(pool, mlp, x, dy, n, to)
             : mlp_gradients(pool, mlp, x, dy, n, to);
}

}  // namespace sparsemlp
