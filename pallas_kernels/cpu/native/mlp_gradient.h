// The gradients of the two layers of mlp.h, from x and dy alone.
#pragma once

#include "mlp.h"
#include "outer.h"

namespace sparsemlp {

template <typename T>
struct MlpGradients {
  T *dx, *dw1, *db1, *dw2, *db2;
};

// Every hidden unit takes part, constant or not, and every kept block.
template <typename T>
Live find_all_live(const Mlp<T>& mlp) {
  Live live = find_live(mlp);
  live.filled = live.constant;
  for (size_t o = 0; o < live.constant.size(); ++o) live.computed[o] = !live.constant[o];
  live.first.assign(mlp.first.n, 1);
  live.second.assign(mlp.second.n, 1);
  return live;
}

// Of W1's block columns, where the blocks of a row of W2 take from.
struct Units {
  int64_t begin, end;

  Units(const Grid& first, const Grid& second, int64_t down)
      : begin(down * second.cols / first.rows),
        end(ceil_div((down + 1) * second.cols, first.rows)) {}
};

// Of W1's block columns, those that W2 uses.
template <typename T>
std::vector<char> find_used(const Mlp<T>& mlp) {
  std::vector<char> used(mlp.first.grid.across());
  for (int64_t s = 0; s < mlp.second.n; ++s) {
    const Units units(mlp.first.grid, mlp.second.grid, mlp.second.down(s));
    std::fill(used.begin() + units.begin, used.begin() + units.end, 1);
  }
  return used;
}

// What takes part in the gradients: straight-through, all.
template <typename T>
Live find_live_for_gradients(const Mlp<T>& mlp) {
  return mlp.straight_through ? find_all_live(mlp) : find_live(mlp);
}

// The same, and which blocks of the gradients are summed. Straight-through, every hidden unit has a
// part in dW2, and in dW1 every one that W2 uses.
template <typename T>
Live find_summed(const Mlp<T>& mlp, Summed* first, Summed* second) {
  Live live = find_live_for_gradients(mlp);
  if (!mlp.straight_through) {
    first->live = live.first;
    second->live = live.second;
    return live;
  }
  const std::vector<char> used = find_used(mlp);
  for (int64_t s = 0; s < first->kept.n; ++s) {
    first->live.push_back(used[first->kept.across(s)]);
  }
  for (int64_t s = 0; s < second->kept.n; ++s) {
    const auto from = live.computed.begin();
    const Units units(mlp.first.grid, mlp.second.grid, second->kept.down(s));
    second->live.push_back(std::find(from + units.begin, from + units.end, 1) !=
                           from + units.end);
  }
  return live;
}

// The sums of one slice of rows, one after the other.
struct MlpSums {
  int64_t first, second, hidden, out;  // floats of dW1's blocks, dW2's blocks, db1, db2
  int64_t size() const { return first + second + hidden + out; }
};

// How rows are shared out; a function of shapes alone.
struct Slices {
  int64_t n, rows;  // of each

  Slices(int64_t n_rows, int64_t features, const MlpSums& sums) {
    constexpr int64_t kMost = 16;
    const int64_t traffic = n_rows * features;
    const int64_t sums_traffic = std::max<int64_t>(1, 2 * sums.size());
    n = std::max<int64_t>(1, std::min({kMost, n_rows / 128, traffic / sums_traffic}));
    rows = std::max<int64_t>(1, ceil_div(n_rows, n));
  }
};

// Fills in the gradients of what belongs to constant hidden units, functions of db2 alone: calls
// put(slot, input, output, value) for the numbers of dW2's blocks that are not live, and adds to
// the sums of db1.
template <typename T, typename Put>
void add_constants(const Mlp<T>& mlp, const Live& live, const std::vector<char>& second_live,
                   const Kept& second, const BiasGelu& constants, const MlpSums& sizes,
                   int64_t n_slices, float* sums, const Put& put) {
  const Grid& grid = mlp.second.grid;
  std::vector<float> db2(grid.out);
  write_sums(sums + sizes.size() - sizes.out, n_slices, sizes.size(), grid.out, db2.data());
  float* db1 = sums + sizes.first + sizes.second;
  for (int64_t s = 0; s < second.n; ++s) {
    if (second_live[s]) continue;
    const float* dy = db2.data() + second.across(s) * grid.rows;
    for (int64_t i = 0; i < grid.cols; ++i) {
      const float value = constants.value[second.down(s) * grid.cols + i];
      for (int64_t c = 0; c < grid.rows; ++c) put(s, i, c, value * dy[c]);
    }
  }
  if (mlp.straight_through) return;  // db1 is summed with the others
  for (int64_t s = 0; s < mlp.second.n; ++s) {
    const float* dy = db2.data() + mlp.second.across(s) * grid.rows;
    for (int64_t i = 0; i < grid.cols; ++i) {
      const int64_t j = mlp.second.down(s) * grid.cols + i;
      if (!live.constant[j / mlp.first.grid.rows]) continue;
      const T* row = mlp.w2 + j * grid.out + mlp.second.across(s) * grid.rows;
      float sum = 0;
      for (int64_t c = 0; c < grid.rows; ++c) sum += dy[c] * widen(row[c]);
      db1[j] += constants.derivative[j] * sum;
    }
  }
}

// How many rows of so many floats are taken at once: beside them go the kept blocks, three times, and
// what is summed, in and out.
template <typename T>
int64_t gradient_rows(const Mlp<T>& mlp, const MlpSums& sums, int64_t floats_per_row) {
  const int64_t kept = 3 * std::max(mlp.first.n_floats(), mlp.second.n_floats());
  return panel_rows_beside(kept + 2 * sums.size(), floats_per_row, 400 << 10, 128 / kTileRows);
}

// Multiplies rows by others, `stride` floats apart both.
inline void multiply_rows(const float* by, int64_t stride, int64_t n_rows, int64_t n, float* rows) {
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t j = 0; j < n; ++j) rows[r * stride + j] *= by[r * stride + j];
  }
}

template <typename T>
void mlp_gradients(const Pool& pool, const Mlp<T>& mlp, const T* x, const T* dy, int64_t n,
                   const MlpGradients<T>& to) {
  expect_writes(to.dx, n * mlp.in() * sizeof(T));
  const Grid &g1 = mlp.first.grid, &g2 = mlp.second.grid;
  Summed first(mlp.first, mlp.straight_through), second(mlp.second, mlp.straight_through);
  const Live live = find_summed(mlp, &first, &second);
  const BiasGelu constants = gelu_of_bias(mlp);
  PanelProduct expand(pool, mlp.w1, mlp.first, false, live.first);
  const PanelProduct expand_back(pool, mlp.w1, mlp.first, true, live.first);
  const PanelProduct contract_back(pool, mlp.w2, mlp.second, true, live.second);
  expand.bias = padded_bias(mlp.b1, mlp.hidden());
  const HiddenPanel hidden(g1, live, constants);
  const int64_t stride = hidden.stride();
  const Rows<T> x_rows(x, mlp.in(), false), dy_rows(dy, mlp.out(), g2.rows % kLanes != 0);

  const MlpSums sizes{first.n_floats(), second.n_floats(), g1.out, g2.out};
  const Slices slices(n, mlp.in() + mlp.hidden() + mlp.out(), sizes);
  Buffer sums_buffer;
  float* sums = sums_buffer.at_least(slices.n * sizes.size());
  const int64_t height = gradient_rows(mlp, sizes, mlp.in() + mlp.out() + 3 * stride);

  parallel_for(pool, slices.n, [&](int64_t slice) {
    float* dw1 = sums + slice * sizes.size();
    float *dw2 = dw1 + sizes.first, *db1 = dw2 + sizes.second, *db2 = db1 + sizes.hidden;
    std::fill(dw1, dw1 + sizes.size(), 0.0f);
    thread_local Buffer x_buffer, dy_buffer, units_buffer, slopes_buffer, dh_buffer;
    const int64_t last = std::min(n, (slice + 1) * slices.rows);
    for (int64_t begin = slice * slices.rows; begin < last; begin += height) {
      const int64_t n_rows = std::min(height, last - begin);
      const float* x_panel = x_rows.open(begin, n_rows, &x_buffer);
      const float* dy_panel = dy_rows.open(begin, n_rows, &dy_buffer);
      float* units = units_buffer.at_least((n_rows + 1) * stride);
      float* slopes = slopes_buffer.at_least((n_rows + 1) * stride);
      float* dh = dh_buffer.at_least((n_rows + 1) * stride);
      for (int64_t o = 0; o < g1.across(); ++o) {
        if (live.computed[o]) expand.write(o, x_panel, x_rows.stride(), n_rows, units, stride);
      }
      hidden.activate(n_rows, units, slopes);
      add_outer(second, PanelBlocks(n_rows, g2.in), units, stride, dy_panel, dy_rows.stride(), dw2);
      for (int64_t d = 0; d < g2.down(); ++d) {
        if (contract_back.has(d)) {
          contract_back.write(d, dy_panel, dy_rows.stride(), n_rows, dh, stride);
        } else if (mlp.straight_through || g1.rows != g2.cols) {  // may be read with others
          for (int64_t r = 0; r < n_rows; ++r) {
            std::fill_n(dh + r * stride + d * g2.cols, g2.cols, 0.0f);
          }
        }
      }
      for (int64_t o = 0; o < g1.across(); ++o) {
        if (!mlp.straight_through && !live.computed[o]) continue;
        multiply_rows(slopes + o * g1.rows, stride, n_rows, g1.rows, dh + o * g1.rows);
        sum_columns(dh + o * g1.rows, stride, n_rows, g1.rows, db1 + o * g1.rows);
      }
      add_outer(first, PanelBlocks(n_rows, g1.in), x_panel, x_rows.stride(), dh, stride, dw1);
      sum_columns(dy_panel, dy_rows.stride(), n_rows, g2.out, db2);
      for (int64_t d = 0; d < g1.down(); ++d) {
        expand_back.emit(d, dh, stride, n_rows, to.dx + begin * g1.in, g1.in,
                         mlp.residual ? dy + begin * g2.out : nullptr);
      }
    }
  });

  float *dw2 = sums + sizes.first, *db1 = dw2 + sizes.second;
  add_constants(mlp, live, second.live, second.kept, constants, sizes, slices.n, sums,
                [&](int64_t s, int64_t i, int64_t c, float value) {
                  dw2[(s * g2.cols + i) * round_up(g2.rows, kLanes) + c] = value;
                });
  write_gradient(pool, first.kept, sums, slices.n, sizes.size(), to.dw1);
  write_gradient(pool, second.kept, dw2, slices.n, sizes.size(), to.dw2);
  if (mlp.b1) write_sums(db1, slices.n, sizes.size(), g1.out, to.db1);
  if (mlp.b2) write_sums(db1 + sizes.hidden, slices.n, sizes.size(), g2.out, to.db2);
}

}  // namespace sparsemlp
