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

#include "largest_blocks.h"
#include "mlp_gradient.h"
#include "pruned_outer.h"

namespace sparsemlp {

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

// What takes part in y: where G is pruned by the norms of its blocks, every hidden unit.
template <typename T>
Live find_live_for_outputs(const PrunedMlp<T>& pruned) {
  return pruned.second.takes_blocks() ? find_all_live(pruned.mlp) : find_live(pruned.mlp);
}

// y [n, out]; of the blocks of A and G that are pruned the norms. `after` is a part of W2 and b2.
template <typename T>
void multiply_pruned_mlp(const Pool& pool, const PrunedMlp<T>& pruned, const T* x, int64_t n, T* y,
                         float* norms1, float* norms2) {
  const Mlp<T>& mlp = pruned.mlp;
  expect_writes(y, n * mlp.out() * sizeof(T));
  const Live live = find_live_for_outputs(pruned);
  const BiasGelu constants = gelu_of_bias(mlp);
  PanelProduct expand(pool, mlp.w1, mlp.first, false, live.first);
  PanelProduct contract(pool, mlp.w2, mlp.second, false, live.second);
  expand.bias = padded_bias(mlp.b1, mlp.hidden());
  contract.bias = output_bias(mlp, live, constants);
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

}  // namespace sparsemlp
