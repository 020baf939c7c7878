// The gradients of the two layers of pruned_mlp.h, from x, dy and the ids of kept blocks alone.
#pragma once

#include "pruned_mlp.h"

namespace sparsemlp {

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

// What takes part in the gradients: hidden units that W2 uses, constant ones among them; straight-
// through, and where windows of means may reach from one to others, all.
template <typename T>
Live find_live_for_gradients(const PrunedMlp<T>& pruned) {
  const Mlp<T>& mlp = pruned.mlp;
  Live live = find_all_live(mlp);
  if (mlp.straight_through || pruned.second.takes_means()) return live;
  const std::vector<char> used = find_used(mlp);
  for (size_t o = 0; o < used.size(); ++o) {
    live.computed[o] &= used[o];
    live.filled[o] &= used[o];
  }
  for (int64_t s = 0; s < mlp.first.n; ++s) live.first[s] = live.computed[mlp.first.across(s)];
  return live;
}

// Keeps the largest neighbours in some columns of the rows of a panel, whole samples of them where
// it rescales.
inline void keep_in_panel(const Pruning& pruning, float* panel, int64_t stride, int64_t n_rows,
                          int64_t columns) {
  const Neighbours kept = pruning.gradient;
  if (kept.m == 0 || columns == 0) return;
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
  Summed first(mlp.first, mlp.straight_through);
  const Summed second(mlp.second, mlp.straight_through);
  const Live live = find_live_for_gradients(pruned);
  if (!mlp.straight_through) first.live = live.first;
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
  // Neighbours, blocks of W2 or windows may reach from hidden units that W2 uses to others, or all
  // may take part.
  const int64_t m = pruned.first.gradient.m;
  const bool mixes = (m > 0 && g1.rows % m != 0) || g1.rows != g2.cols || mlp.straight_through ||
                     pruned.first.takes_means() || pruned.second.takes_means();

  const auto add_outer_of = [](const Summed& summed, const Pruning& pruning, const Compact& kept,
                               int64_t begin, int64_t n_rows, const float* a, int64_t a_stride,
                               const float* b, int64_t b_stride, float* to) {
    if (pruning.takes_means()) {
      return add_pooled_outer(summed, pruning, n_rows, a, a_stride, b, b_stride, to);
    }
    const PanelBlocks blocks = pruning.takes_blocks()
                                   ? kept_in_panel(kept, begin, n_rows, a_stride, b_stride)
                                   : PanelBlocks(n_rows, summed.kept.grid.in);
    add_outer(summed, blocks, a, a_stride, b, b_stride, to);
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
      scale_rows(dy_rows, out, n_rows, out, after.data(), nullptr, dz, dz_stride);
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
        } else if (mixes) {
          for (int64_t r = 0; r < n_rows; ++r) {
            std::fill_n(dh + r * stride + d * g2.cols, g2.cols, 0.0f);
          }
        }
      }
      for (int64_t o = 0; o < g1.across(); ++o) {
        if (!live.computed[o] && !live.filled[o]) continue;
        multiply_rows(slopes + o * g1.rows, stride, n_rows, g1.rows, dh + o * g1.rows);
        sum_columns(dh + o * g1.rows, stride, n_rows, g1.rows, db1 + o * g1.rows);
      }
      add_outer_of(first, pruned.first, kept1, begin, n_rows, a, a_stride, dh, stride, dw1);
      if (mixes) {
        keep_in_panel(pruned.first, dh, stride, n_rows, mlp.hidden());
      } else {
        for (int64_t o = 0, end; o < g1.across(); o = end + 1) {
          for (end = o; end < g1.across() && live.computed[end];) ++end;
          keep_in_panel(pruned.first, dh + o * g1.rows, stride, n_rows, (end - o) * g1.rows);
        }
      }
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
