// The gradient of narrow blocks, number by number: each is the product of two rows that lie along
// the samples, one of x and one of dY.
#pragma once

#include <tuple>

#include "blocks.h"
#include "turn.h"

namespace sparsemlp {

constexpr int kDots = 16;  // of a tile

// Some numbers of dW: those of 1, 2 or 4 rows of one operand, from `shared` on, with each of the
// rows `listed` of the other, kDots at most.
struct DotTile {
  int32_t shared, n;
  int32_t listed[kDots];
};

// All numbers of the kept blocks, in tiles; of those that are `live`, if that is given.
struct DotPlan {
  Grid grid;
  bool shares_inputs;  // of x, with outputs listed, else the other way around
  int64_t height;      // rows that are shared
  std::vector<DotTile> tiles;

  explicit DotPlan(const Kept& kept, const std::vector<char>* live = nullptr) : grid(kept.grid) {
    const int64_t of_inputs = height_of(grid.cols), of_outputs = height_of(grid.rows);
    // What is listed is read again and again, so it had better be the smaller operand.
    shares_inputs = of_inputs != of_outputs ? of_inputs > of_outputs : grid.in > grid.out;
    height = shares_inputs ? of_inputs : of_outputs;
    const int64_t shared_size = shares_inputs ? grid.cols : grid.rows;
    const int64_t listed_size = shares_inputs ? grid.rows : grid.cols;
    const Groups groups = group(kept, shares_inputs, live);
    const int64_t most = kDots / height;
    int64_t n = 0;
    for (int64_t o = 0; o < groups.count(); ++o) {
      n += ceil_div((groups.begin[o + 1] - groups.begin[o]) * listed_size, most);
    }
    tiles.reserve(n * (shared_size / height));
    for (int64_t o = 0; o < groups.count(); ++o) {
      const int64_t begin = groups.begin[o] * listed_size, end = groups.begin[o + 1] * listed_size;
      for (int64_t row = 0; row < shared_size; row += height) {
        for (int64_t first = begin; first < end; first += most) {
          DotTile tile{};
          tile.shared = static_cast<int32_t>(o * shared_size + row);
          tile.n = static_cast<int32_t>(std::min(most, end - first));
          for (int64_t i = 0; i < tile.n; ++i) {
            const int64_t place = first + i, block = groups.input[place / listed_size];
            tile.listed[i] = static_cast<int32_t>(block * listed_size + place % listed_size);
          }
          tiles.push_back(tile);
        }
      }
    }
  }

  int64_t n_tiles() const { return static_cast<int64_t>(tiles.size()); }
  int64_t n_floats() const { return n_tiles() * kDots; }

  static int64_t height_of(int64_t size) { return size % 4 == 0 ? 4 : size % 2 == 0 ? 2 : 1; }
};

// Both operands of a chunk of samples: feature f of x in segment s is x[s * x_step + f * stride],
// `depth` floats from there, whole vectors.
struct DotOperands {
  const float *x, *dy;
  int64_t x_step, dy_step, stride, n_segments, depth;
};

// sums[i * A + k] = the product of the listed row i and the shared row k.
template <int A, int N>
SPARSEMLP_INLINE void multiply_rows(const float* shared, int64_t shared_step, const float* listed,
                                    int64_t listed_step, const DotOperands& operands,
                                    const int32_t* rows, Vec* results) {
  Vec sums[A * N] = {};
  for (int64_t s = 0; s < operands.n_segments; ++s) {
    const float *a[A], *b[N];
    unroll<A>([&](auto k) SPARSEMLP_LAMBDA {
      a[k] = shared + s * shared_step + k * operands.stride;
    });
    unroll<N>([&](auto i) SPARSEMLP_LAMBDA {
      b[i] = listed + s * listed_step + rows[i] * operands.stride;
    });
    for (int64_t d = 0; d < operands.depth; d += kLanes) {
      Vec factors[A];
      unroll<A>([&](auto k) SPARSEMLP_LAMBDA { factors[k] = load(a[k] + d); });
      unroll<N>([&](auto i) SPARSEMLP_LAMBDA {
        const Vec row = load(b[i] + d);
        unroll<A>([&](auto k) SPARSEMLP_LAMBDA { sums[i * A + k] += row * factors[k]; });
      });
    }
  }
  unroll<A * N>([&](auto i) SPARSEMLP_LAMBDA { results[i] = sums[i]; });
}

template <int A, int N>
inline void multiply_listed(int64_t n, const float* shared, int64_t shared_step,
                            const float* listed, int64_t listed_step, const DotOperands& operands,
                            const int32_t* rows, Vec* results) {
  if constexpr (N > 1) {
    if (n < N) {
      return multiply_listed<A, N - 1>(n, shared, shared_step, listed, listed_step, operands, rows,
                                       results);
    }
  }
  multiply_rows<A, N>(shared, shared_step, listed, listed_step, operands, rows, results);
}

// Adds the products of a tile to its kDots sums.
template <int A>
void add_dots(const DotPlan& plan, const DotTile& tile, const DotOperands& operands, float* sums) {
  // Rows that are listed together, as many as there are registers for their sums and pointers.
  constexpr int kSums = kTileRows == 12 ? 16 : 8, kTogether = std::min(8, kSums / A);
  const auto [shared, shared_step, listed, listed_step] =
      plan.shares_inputs
          ? std::tuple(operands.x, operands.x_step, operands.dy, operands.dy_step)
          : std::tuple(operands.dy, operands.dy_step, operands.x, operands.x_step);
  Vec results[kDots] = {};
  for (int64_t i = 0; i < tile.n; i += kTogether) {
    multiply_listed<A, kTogether>(tile.n - i, shared + tile.shared * operands.stride, shared_step,
                                  listed, listed_step, operands, tile.listed + i,
                                  results + i * A);
  }
  for (int i = 0; i < kDots; i += kLanes) {
    Vec some[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) some[lane] = results[i + lane];
    store(sums + i, load(sums + i) + sums_of(some));
  }
}

// Adds the products of tiles [begin, end) of a plan to its sums.
inline void add_dots(const DotPlan& plan, const DotOperands& operands, int64_t begin, int64_t end,
                     float* sums) {
  const auto add = plan.height == 4 ? add_dots<4> : plan.height == 2 ? add_dots<2> : add_dots<1>;
  for (int64_t t = begin; t < end; ++t) add(plan, plan.tiles[t], operands, sums + t * kDots);
}

// Adds up the slices of a plan's sums, and writes them among zeros to dw [in, out].
template <typename T>
void write_dots(const Pool& pool, const DotPlan& plan, const float* sums, int64_t n_slices,
                int64_t slice_size, T* dw) {
  constexpr int64_t kTasks = 16;
  const int64_t size = plan.grid.in * plan.grid.out, run = ceil_div(size, kTasks);
  parallel_for(pool, kTasks, [&](int64_t task) {
    std::fill(dw + std::min(size, task * run), dw + std::min(size, (task + 1) * run), T{});
  });
  const int64_t n_tiles = plan.n_tiles();
  const int64_t tiles_of_a_task = std::max<int64_t>(1, ceil_div(n_tiles, kTasks));
  parallel_for(pool, kTasks, [&](int64_t task) {
    const int64_t end = std::min(n_tiles, (task + 1) * tiles_of_a_task);
    for (int64_t t = task * tiles_of_a_task; t < end; ++t) {
      const DotTile& tile = plan.tiles[t];
      alignas(64) float totals[kDots] = {};
      for (int64_t slice = 0; slice < n_slices; ++slice) {
        const float* own = sums + slice * slice_size + t * kDots;
        for (int i = 0; i < kDots; ++i) totals[i] += own[i];
      }
      for (int64_t i = 0; i < tile.n; ++i) {
        for (int64_t k = 0; k < plan.height; ++k) {
          const int64_t shared = tile.shared + k, listed = tile.listed[i];
          const int64_t in = plan.shares_inputs ? shared : listed;
          const int64_t out = plan.shares_inputs ? listed : shared;
          narrow(totals[i * plan.height + k], dw + in * plan.grid.out + out);
        }
      }
    }
  });
}

}  // namespace sparsemlp
