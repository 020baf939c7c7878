// The two layers of mlp.h where the other operands are pruned as well: of the activations A and G
// only the largest blocks have a part in the kernels' gradients, or the means of windows, and of the
// outputs' gradients only the largest neighbours in those of the activations.
//
//   A = scale x + shift, G = gelu(A (W1 * M1) + b1), Z = G (W2 * M2) + b2, y = after Z (+ x)
//   dZ = after dy,  dW2 = G'^T dZ,  dH = (dZ' (W2 * M2)^T) gelu',  dW1 = A'^T dH,  dA = dH' (W1 * M1)^T
//
// Nothing is kept for the backward pass but x and the ids of the largest blocks: A and G are
// computed again, a panel of rows at a time, and their dropped blocks are passed over.
#pragma once

#include <numeric>

#include "compact.h"
#include "largest_blocks.h"
#include "mlp_gradient.h"
#include "neighbours.h"

namespace sparsemlp {

// What of one layer's operands is pruned: the activation, which is cut into blocks or windows, not if
// their height is 0, and neighbours of the output's gradient, none if m is 0. With positions > 0,
// rows of a sample, those are rescaled by what was lost of each sample and column.
struct Pruning {
  int64_t height, width;
  bool pools;
  Neighbours gradient;
  int64_t positions;
  bool takes_blocks() const { return height > 0 && !pools; }
  bool takes_means() const { return height > 0 && pools; }
};

template <typename T>
struct PrunedMlp {
  Mlp<T> mlp;
  const T *scale, *shift, *after;  // of the columns of x and of y; each may be null
  Pruning first, second;

  // Rows of a panel are a multiple of this: no block lies in two panels, nor a sample that is
  // rescaled.
  int64_t unit() const {
    int64_t unit = 1;
    for (const Pruning& own : {first, second}) {
      unit = std::lcm(unit, std::max<int64_t>(1, own.height));
      unit = std::lcm(unit, std::max<int64_t>(1, own.positions));
    }
    return unit;
  }
};

// A row of numbers in float32 with room for whole vectors; `absent` for null.
template <typename T>
std::vector<float> scales_of(const T* numbers, int64_t n, float absent) {
  std::vector<float> row(n + 2 * kLanes, absent);
  if (numbers) widen_row(numbers, n, row.data());
  return row;
}

// to = from * scale + shift (0 for null), rows of n numbers; from and to may be the same.
template <typename T>
void scale_rows(const T* from, int64_t from_stride, int64_t n_rows, int64_t n, const float* scale,
                const float* shift, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < n_rows; ++r) {
    const T* row = from + r * from_stride;
    float* out = to + r * to_stride;
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes) {
      const Vec scaled = load_widened(row + c) * load(scale + c);
      store(out + c, shift ? scaled + load(shift + c) : scaled);
    }
    for (; c < n; ++c) out[c] = widen(row[c]) * scale[c] + (shift ? shift[c] : 0.0f);
  }
}

// Adds the sums over rows of a * b to `sums`.
template <typename T>
void sum_products(const T* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t n_rows,
                  int64_t n, float* sums) {
  for (int64_t r = 0; r < n_rows; ++r) {
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes) {
      const Vec product = load_widened(a + r * a_stride + c) * load(b + r * b_stride + c);
      store(sums + c, load(sums + c) + product);
    }
    for (; c < n; ++c) sums[c] += widen(a[r * a_stride + c]) * b[r * b_stride + c];
  }
}

// Writes the norms of the blocks of a panel, [rows / height, columns / width].
inline void write_norms(const float* panel, int64_t stride, int64_t n_rows, int64_t columns,
                        const Pruning& blocks, float* norms) {
  thread_local Buffer buffer;
  float* squares = buffer.at_least(columns);
  for (int64_t r = 0; r < n_rows; r += blocks.height) {
    std::fill(squares, squares + columns, 0.0f);
    for (int64_t i = r; i < r + blocks.height; ++i) add_squares(panel + i * stride, columns, squares);
    for (int64_t c = 0; c < columns; c += blocks.width) {
      *norms++ = std::sqrt(std::accumulate(squares + c, squares + c + blocks.width, 0.0f));
    }
  }
}

// y [n, out]; of the blocks of A and G that are pruned the norms. `after` is a part of W2 and b2.
template <typename T>
void multiply_pruned_mlp(const Pool& pool, const PrunedMlp<T>& pruned, const T* x, int64_t n, T* y,
                         float* norms1, float* norms2) {
  const Mlp<T>& mlp = pruned.mlp;
  expect_writes(y, n * mlp.out() * sizeof(T));
  const Live live = find_all_live(mlp);
  const BiasGelu constants = gelu_of_bias(mlp);
  PanelProduct expand(pool, mlp.w1, mlp.first, false, live.first);
  PanelProduct contract(pool, mlp.w2, mlp.second, false, live.second);
  expand.bias = padded_bias(mlp.b1, mlp.hidden());
  contract.bias = padded_bias(mlp.b2, mlp.out());
  const HiddenPanel hidden(mlp.first.grid, live, constants);
  const std::vector<float> scale = scales_of(pruned.scale, mlp.in(), 1);
  const std::vector<float> shift = scales_of(pruned.shift, mlp.in(), 0);
  const int64_t a_stride = round_up(mlp.in(), kLanes) + kLanes, unit = pruned.unit();
  const int64_t height = round_up(forward_rows(mlp, n), unit);

  parallel_for(pool, ceil_div(n, height), [&](int64_t task) {
    const int64_t begin = task * height, n_rows = std::min(height, n - begin);
    thread_local Buffer a_buffer, hidden_buffer;
    float* a = a_buffer.at_least((n_rows + 1) * a_stride);
    float* units = hidden_buffer.at_least((n_rows + 1) * hidden.stride());
    scale_rows(x + begin * mlp.in(), mlp.in(), n_rows, mlp.in(), scale.data(), shift.data(), a,
               a_stride);
    if (pruned.first.takes_blocks()) {
      write_norms(a, a_stride, n_rows, mlp.in(), pruned.first,
                  norms1 + begin / pruned.first.height * (mlp.in() / pruned.first.width));
    }
    for (int64_t o = 0; o < expand.groups.count(); ++o) {
      if (live.computed[o]) expand.write(o, a, a_stride, n_rows, units, hidden.stride());
    }
    hidden.activate(n_rows, units, nullptr);
    if (pruned.second.takes_blocks()) {
      write_norms(units, hidden.stride(), n_rows, mlp.hidden(), pruned.second,
                  norms2 + begin / pruned.second.height * (mlp.hidden() / pruned.second.width));
    }
    for (int64_t o = 0; o < contract.groups.count(); ++o) {
      contract.emit(o, units, hidden.stride(), n_rows, y + begin * mlp.out(), mlp.out(),
                    mlp.residual ? x + begin * mlp.in() : nullptr);
    }
  });
}

// The kept blocks in a panel of an activation by their column of blocks, as segments of tiles; or,
// where nothing is pruned, all of the panel as one.
struct PanelBlocks {
  int64_t depth, width;
  std::vector<int64_t> begin;
  std::vector<Segment> segments;

  PanelBlocks(const Pruning& pruning, const Compact& kept, int64_t first_row, int64_t n_rows,
              int64_t a_stride, int64_t b_stride)
      : depth(n_rows), width(std::max<int64_t>(1, kept.in)) {
    if (!pruning.takes_blocks()) {
      begin = {0, 1};
      segments = {{0, 0}};
      return;
    }
    depth = kept.height;
    width = kept.width;
    const int64_t first = kept.from(first_row), last = kept.from(first_row + n_rows);
    const int64_t first_id = first_row / kept.height * kept.across();
    begin.assign(kept.across() + 1, 0);
    segments.resize(last - first);
    for (int64_t s = first; s < last; ++s) ++begin[(kept.ids[s] - first_id) % kept.across() + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int64_t> next(begin);
    for (int64_t s = first; s < last; ++s) {
      const int64_t place = kept.ids[s] - first_id, row = place / kept.across() * kept.height;
      segments[next[place % kept.across()]++] = {row * a_stride, row * b_stride};
    }
  }
};

// Adds A'^T B of a panel to the sums of a kernel's blocks: A' [rows, in], B [rows, out].
inline void add_kept_outer(const Summed& summed, const PanelBlocks& blocks, const float* a,
                           int64_t a_stride, const float* b, int64_t b_stride, float* sums) {
  const Kept& kept = summed.kept;
  const Grid& grid = kept.grid;
  const int64_t stride = round_up(grid.rows, kLanes);
  Tile tile{};
  tile.depth = blocks.depth;
  tile.a_stride = a_stride;
  tile.b_stride = b_stride;
  tile.out_stride = stride;
  tile.finish = Finish::kAdd;
  for (int64_t s = 0; s < kept.n; ++s) {
    float* to = sums + s * grid.cols * stride;
    const int64_t first = kept.down(s) * grid.cols, last = first + grid.cols;
    for (int64_t i = first, end; i < last; i = end) {
      const int64_t column = i / blocks.width;
      end = std::min(last, (column + 1) * blocks.width);
      tile.segments = blocks.segments.data() + blocks.begin[column];
      tile.n_segments = blocks.begin[column + 1] - blocks.begin[column];
      if (tile.n_segments == 0) continue;
      const int64_t height = ceil_div(end - i, ceil_div(end - i, kTileRows));
      for (int64_t c = 0; c < grid.rows; c += 2 * kLanes) {
        tile.b = b + kept.across(s) * grid.rows + c;
        for (int64_t r = i; r < end; r += height) {
          tile.a = a + r;
          tile.out = to + (r - first) * stride + c;
          run<Order::kDepthMajor>(tile, std::min(height, end - r), grid.rows - c);
        }
      }
    }
  }
}

// Writes the sums over `height` rows of columns [0, n).
inline void sum_rows(const float* rows, int64_t stride, int64_t height, int64_t n, float* sums) {
  std::fill(sums, sums + n, 0.0f);
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = 0; c < n; ++c) sums[c] += rows[r * stride + c];
  }
}

// Adds to the sums of a kernel's blocks what the means of A's windows and the sums of B over their
// rows give; all inputs of a window have the same gradient, which takes one row, the first.
inline void add_pooled_outer(const Summed& summed, const Pruning& windows, int64_t n_rows,
                             const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                             float* sums) {
  const Kept& kept = summed.kept;
  const Grid& grid = kept.grid;
  const int64_t stride = round_up(grid.rows, kLanes), n_means = grid.in / windows.width;
  const int64_t n_windows = n_rows / windows.height, mean_stride = round_up(n_means, kLanes);
  const int64_t sum_stride = round_up(grid.out, kLanes) + kLanes;
  thread_local Buffer means_buffer, sums_buffer, row_buffer;
  float* means = means_buffer.at_least((n_windows + 1) * mean_stride);
  float* b_sums = sums_buffer.at_least((n_windows + 1) * sum_stride);
  float* row = row_buffer.at_least(grid.in);
  const float share = 1.0f / (windows.height * windows.width);
  for (int64_t i = 0; i < n_windows; ++i) {
    const int64_t first = i * windows.height;
    sum_rows(a + first * a_stride, a_stride, windows.height, grid.in, row);
    for (int64_t j = 0; j < n_means; ++j) {
      const float* from = row + j * windows.width;
      means[i * mean_stride + j] = share * std::accumulate(from, from + windows.width, 0.0f);
    }
    sum_rows(b + first * b_stride, b_stride, windows.height, grid.out, b_sums + i * sum_stride);
  }
  const Segment all{0, 0};
  Tile tile{};
  tile.segments = &all;
  tile.n_segments = 1;
  tile.depth = n_windows;
  tile.a_stride = mean_stride;
  tile.b_stride = sum_stride;
  tile.out_stride = stride;
  tile.finish = Finish::kAdd;
  for (int64_t s = 0; s < kept.n; ++s) {
    const int64_t first = kept.down(s) * grid.cols / windows.width;
    const int64_t n = ceil_div((kept.down(s) + 1) * grid.cols, windows.width) - first;
    float* to = sums + s * grid.cols * stride;
    for (int64_t c = 0; c < grid.rows; c += 2 * kLanes) {
      tile.b = b_sums + kept.across(s) * grid.rows + c;
      for (int64_t r = 0; r < n; r += kTileRows) {
        tile.a = means + first + r;
        tile.out = to + r * stride + c;
        run<Order::kDepthMajor>(tile, std::min<int64_t>(kTileRows, n - r), grid.rows - c);
      }
    }
  }
}

// Gives each input of a window the sums of its window, which stand in the first rows of each block.
inline void spread_pooled(const Summed& summed, const Pruning& windows, float* sums) {
  const Grid& grid = summed.kept.grid;
  const int64_t stride = round_up(grid.rows, kLanes);
  for (int64_t s = 0; s < summed.kept.n; ++s) {
    const int64_t first = summed.kept.down(s) * grid.cols;
    float* block = sums + s * grid.cols * stride;
    for (int64_t r = grid.cols - 1; r > 0; --r) {
      const float* from = block + ((first + r) / windows.width - first / windows.width) * stride;
      if (from != block + r * stride) std::copy(from, from + stride, block + r * stride);
    }
  }
}

// Keeps the largest neighbours in the rows of a panel, whole samples of them where it rescales.
inline void keep_in_panel(const Pruning& pruning, float* panel, int64_t stride, int64_t n_rows,
                          int64_t columns) {
  const Neighbours kept = pruning.gradient;
  if (kept.m == 0) return;
  if (pruning.positions == 0) {
    return keep_in_rows(panel, stride, n_rows, columns, kept, panel, stride);
  }
  for (float* rows = panel; rows < panel + n_rows * stride; rows += pruning.positions * stride) {
    keep_in_sample(rows, stride, pruning.positions, columns, kept, rows, stride);
  }
}

template <typename T>
struct PrunedMlpGradients {
  MlpGradients<T> layers;
  T *scale, *shift, *after;
};

// The gradients, where of A and G the blocks kept1 and kept2 count.
template <typename T>
void pruned_mlp_gradients(const Pool& pool, const PrunedMlp<T>& pruned, const Compact& kept1,
                          const Compact& kept2, const T* x, const T* dy, int64_t n,
                          const PrunedMlpGradients<T>& to) {
  const Mlp<T>& mlp = pruned.mlp;
  const int64_t in = mlp.in(), out = mlp.out();
  expect_writes(to.layers.dx, n * in * sizeof(T));
  const Grid &g1 = mlp.first.grid, &g2 = mlp.second.grid;
  const Summed first(mlp.first, mlp.straight_through), second(mlp.second, mlp.straight_through);
  const Live live = find_all_live(mlp);
  const BiasGelu constants = gelu_of_bias(mlp);
  PanelProduct expand(pool, mlp.w1, mlp.first, false, live.first);
  PanelProduct contract(pool, mlp.w2, mlp.second, false, live.second);
  const PanelProduct expand_back(pool, mlp.w1, mlp.first, true, live.first);
  const PanelProduct contract_back(pool, mlp.w2, mlp.second, true, live.second);
  expand.bias = padded_bias(mlp.b1, mlp.hidden());
  contract.bias = padded_bias(mlp.b2, out);
  const HiddenPanel hidden(g1, live, constants);
  const std::vector<float> scale = scales_of(pruned.scale, in, 1);
  const std::vector<float> shift = scales_of(pruned.shift, in, 0);
  const std::vector<float> after = scales_of(pruned.after, out, 1);
  const int64_t stride = hidden.stride(), unit = pruned.unit();
  const int64_t a_stride = round_up(in, kLanes) + kLanes, dz_stride = round_up(out, kLanes) + kLanes;

  // The sums of a slice of rows; those of scale, shift and after come last.
  const MlpSums sizes{first.n_floats(), second.n_floats(), g1.out, out + 2 * in + out};
  const Slices slices(n, in + mlp.hidden() + out, sizes);
  const int64_t slice_rows = round_up(slices.rows, unit);
  Buffer sums_buffer;
  float* sums = sums_buffer.at_least(slices.n * sizes.size());
  const int64_t height =
      round_up(gradient_rows(mlp, sizes, 2 * in + 2 * out + 3 * stride), unit);

  const auto add_outer_of = [](const Summed& summed, const Pruning& pruning, const Compact& kept,
                               int64_t begin, int64_t n_rows, const float* a, int64_t a_stride,
                               const float* b, int64_t b_stride, float* to) {
    if (pruning.takes_means()) {
      return add_pooled_outer(summed, pruning, n_rows, a, a_stride, b, b_stride, to);
    }
    add_kept_outer(summed, {pruning, kept, begin, n_rows, a_stride, b_stride}, a, a_stride, b,
                   b_stride, to);
  };

  parallel_for(pool, slices.n, [&](int64_t slice) {
    float* dw1 = sums + slice * sizes.size();
    float *dw2 = dw1 + sizes.first, *db1 = dw2 + sizes.second, *db2 = db1 + sizes.hidden;
    float *d_scale = db2 + out, *d_shift = d_scale + in, *d_after = d_shift + in;
    std::fill(dw1, dw1 + sizes.size(), 0.0f);
    thread_local Buffer a_buffer, dz_buffer, z_buffer, da_buffer, units_buffer, slopes_buffer;
    thread_local Buffer dh_buffer;
    const int64_t last = std::min(n, (slice + 1) * slice_rows);
    for (int64_t begin = slice * slice_rows; begin < last; begin += height) {
      const int64_t n_rows = std::min(height, last - begin);
      float* a = a_buffer.at_least((n_rows + 1) * a_stride);
      float* dz = dz_buffer.at_least((n_rows + 1) * dz_stride);
      float* units = units_buffer.at_least((n_rows + 1) * stride);
      float* slopes = slopes_buffer.at_least((n_rows + 1) * stride);
      float* dh = dh_buffer.at_least((n_rows + 1) * stride);
      const T *x_rows = x + begin * in, *dy_rows = dy + begin * out;
      scale_rows(x_rows, in, n_rows, in, scale.data(), shift.data(), a, a_stride);
      scale_rows(dy_rows, out, n_rows, out, after.data(), static_cast<float*>(nullptr), dz,
                 dz_stride);
      for (int64_t o = 0; o < g1.across(); ++o) {
        if (live.computed[o]) expand.write(o, a, a_stride, n_rows, units, stride);
      }
      hidden.activate(n_rows, units, slopes);
      if (pruned.after) {
        float* z = z_buffer.at_least((n_rows + 1) * dz_stride);
        for (int64_t o = 0; o < g2.across(); ++o) {
          contract.write(o, units, stride, n_rows, z, dz_stride);
        }
        sum_products(dy_rows, out, z, dz_stride, n_rows, out, d_after);
      }
      add_outer_of(second, pruned.second, kept2, begin, n_rows, units, stride, dz, dz_stride, dw2);
      sum_columns(dz, dz_stride, n_rows, out, db2);
      keep_in_panel(pruned.second, dz, dz_stride, n_rows, out);
      for (int64_t d = 0; d < g2.down(); ++d) {
        if (contract_back.has(d)) {
          contract_back.write(d, dz, dz_stride, n_rows, dh, stride);
        } else {
          for (int64_t r = 0; r < n_rows; ++r) {
            std::fill_n(dh + r * stride + d * g2.cols, g2.cols, 0.0f);
          }
        }
      }
      for (int64_t r = 0; r < n_rows; ++r) {
        float* row = dh + r * stride;
        for (int64_t j = 0; j < mlp.hidden(); ++j) row[j] *= slopes[r * stride + j];
      }
      sum_columns(dh, stride, n_rows, mlp.hidden(), db1);
      add_outer_of(first, pruned.first, kept1, begin, n_rows, a, a_stride, dh, stride, dw1);
      keep_in_panel(pruned.first, dh, stride, n_rows, mlp.hidden());
      float* da = da_buffer.at_least((n_rows + 1) * a_stride);
      for (int64_t d = 0; d < g1.down(); ++d) {
        expand_back.write(d, dh, stride, n_rows, da, a_stride);
      }
      if (pruned.scale) sum_products(x_rows, in, da, a_stride, n_rows, in, d_scale);
      if (pruned.shift) sum_columns(da, a_stride, n_rows, in, d_shift);
      for (int64_t r = 0; r < n_rows; ++r) {
        const float* row = da + r * a_stride;
        T* dx = to.layers.dx + (begin + r) * in;
        for (int64_t c = 0; c < in; ++c) {
          narrow(row[c] * scale[c] + (mlp.residual ? widen(dy_rows[r * out + c]) : 0.0f), dx + c);
        }
      }
    }
    if (pruned.first.takes_means()) spread_pooled(first, pruned.first, dw1);
    if (pruned.second.takes_means()) spread_pooled(second, pruned.second, dw2);
  });

  const float* const db1 = sums + sizes.first + sizes.second;
  const auto write = [&](const float* from, int64_t size, T* result) {
    if (result) write_sums(from, slices.n, sizes.size(), size, result);
  };
  write_gradient(pool, first.kept, sums, slices.n, sizes.size(), to.layers.dw1);
  write_gradient(pool, second.kept, sums + sizes.first, slices.n, sizes.size(), to.layers.dw2);
  const float *const db2 = db1 + sizes.hidden, *const d_scale = db2 + out;
  write(db1, g1.out, mlp.b1 ? to.layers.db1 : nullptr);
  write(db2, out, mlp.b2 ? to.layers.db2 : nullptr);
  write(d_scale, in, pruned.scale ? to.scale : nullptr);
  write(d_scale + in, in, pruned.shift ? to.shift : nullptr);
  write(d_scale + 2 * in, out, pruned.after ? to.after : nullptr);
}

}  // namespace sparsemlp
