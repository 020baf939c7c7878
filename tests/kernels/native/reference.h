// What the kernels compute, in double and by plain loops, and a bound for their rounding errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "blocks.h"

namespace sparsemlp {

inline std::mt19937 random_bits(1);

// A value, and the sum of all magnitudes that rounding errors in it are proportional to.
struct Number {
  double value = 0, scale = 0;
};

inline Number operator+(Number a, Number b) { return {a.value + b.value, a.scale + b.scale}; }
inline Number operator*(Number a, Number b) {
  return {a.value * b.value, std::abs(a.value) * b.scale + a.scale * std::abs(b.value)};
}

// |gelu'| < 1.13 and |gelu''| < 0.8.
inline Number gelu_of(Number x) {
  return {x.value * std::erfc(-x.value * std::sqrt(0.5)) / 2, 1.13 * x.scale};
}
inline Number gelu_slope(Number x) {
  const double density = std::exp(-x.value * x.value / 2) / std::sqrt(8 * std::atan(1));
  return {std::erfc(-x.value * std::sqrt(0.5)) / 2 + x.value * density, 1 + x.scale};
}

using Numbers = std::vector<Number>;

template <typename T>
std::vector<T> draw(int64_t n, double largest = 1) {
  std::vector<T> values(n);
  for (T& value : values) {
    narrow(static_cast<float>(largest * (random_bits() / 2147483648.0 - 1)), &value);
  }
  return values;
}

template <typename T>
Numbers exact(const std::vector<T>& values) {
  Numbers numbers;
  for (const T& value : values) numbers.push_back({widen(value), std::abs(widen(value))});
  return numbers;
}

template <typename F>
Numbers map(Numbers numbers, const F& f) {
  for (Number& number : numbers) number = f(number);
  return numbers;
}

template <typename F>
Numbers map(Numbers a, const Numbers& b, const F& f) {
  for (size_t i = 0; i < a.size(); ++i) a[i] = f(a[i], b[i]);
  return a;
}

enum class Keep { kNone, kOne, kSome, kAll };
constexpr Keep kKeeps[] = {Keep::kNone, Keep::kOne, Keep::kSome, Keep::kAll};

// kSome leaves one row and one column of blocks empty.
inline std::vector<int32_t> ids_of(const Grid& grid, Keep keep) {
  const int64_t down = grid.down(), across = grid.across();
  std::vector<int32_t> ids;
  for (int64_t id = 0; id < down * across; ++id) {
    const bool some =
        random_bits() % 2 && id / across != down / 2 && id % across != across / 2;
    if (keep == Keep::kAll || (keep == Keep::kSome && some) ||
        (keep == Keep::kOne && id == down * across - 1)) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return {ids.begin(), ids.end()};  // without spare capacity
}

template <typename T>
struct Layer {
  Grid grid;
  std::vector<int32_t> ids;
  std::vector<T> kernel, bias;  // no bias: empty
  Numbers weights;              // the kernel, zero in dropped blocks

  Layer(const Grid& grid, Keep keep, bool biased)
      : grid(grid), ids(ids_of(grid, keep)),
        kernel(draw<T>(grid.in * grid.out, 2 / std::sqrt(grid.in + 1.0))),
        bias(draw<T>(biased ? grid.out : 0)), weights(exact(kernel)) {
    for (int64_t i = 0; i < grid.in * grid.out; ++i) {
      const int64_t down = i / grid.out / grid.cols, across = i % grid.out / grid.rows;
      if (std::binary_search(ids.begin(), ids.end(), down * grid.across() + across)) continue;
      weights[i] = {};
      narrow(std::nanf(""), &kernel[i]);
    }
  }
  Kept kept() const { return {grid, ids.data(), static_cast<int64_t>(ids.size())}; }
  const T* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }

  // y [n, out, channels] of x [n, in, channels], or, transposed, dx of dy.
  Numbers product(const Numbers& x, int64_t n, int64_t channels, bool transposed) const {
    const int64_t n_in = transposed ? grid.out : grid.in, n_out = transposed ? grid.in : grid.out;
    const Numbers b = transposed ? Numbers() : exact(bias);
    Numbers y(n * n_out * channels);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t o = 0; o < n_out; ++o) {
        Number* to = y.data() + (r * n_out + o) * channels;
        for (int64_t c = 0; c < channels; ++c) to[c] = b.empty() ? Number{} : b[o];
        for (int64_t i = 0; i < n_in; ++i) {
          const Number weight = weights[transposed ? o * n_in + i : i * n_out + o];
          if (weight.scale == 0) continue;
          const Number* from = x.data() + (r * n_in + i) * channels;
          for (int64_t c = 0; c < channels; ++c) to[c] = to[c] + weight * from[c];
        }
      }
    }
    return y;
  }

  // dW, zero in dropped blocks unless `whole`, of x [n, in, channels] and dy [n, out, channels].
  Numbers gradient(const Numbers& x, const Numbers& dy, int64_t n, int64_t channels,
                   bool whole = false) const {
    Numbers dw(grid.in * grid.out);
    for (int64_t i = 0; i < grid.in; ++i) {
      for (int64_t o = 0; o < grid.out; ++o) {
        if (!whole && weights[i * grid.out + o].scale == 0) continue;
        Number sum;
        for (int64_t r = 0; r < n; ++r) {
          for (int64_t c = 0; c < channels; ++c) {
            sum = sum + x[(r * grid.in + i) * channels + c] * dy[(r * grid.out + o) * channels + c];
          }
        }
        dw[i * grid.out + o] = sum;
      }
    }
    return dw;
  }

  // db of dy [n, out, channels]; empty if there is no bias.
  Numbers sums(const Numbers& dy, int64_t n, int64_t channels) const {
    Numbers db(bias.size());
    for (int64_t i = 0; !db.empty() && i < n * grid.out * channels; ++i) {
      Number& sum = db[i / channels % grid.out];
      sum = sum + dy[i];
    }
    return db;
  }
};

}  // namespace sparsemlp
