// Every kernel of engine `cpu`, without XLA: shapes that stress borders, compared with plain loops
// in double, and bit for bit between pools of 1, 2 and 5 threads. `.ci/sanitize` runs it.
//
// Operands, results and scratch lie each in an allocation of exactly their size, scratch in a new
// one for every call. What is allocated is NaN until it is written, and so are dropped blocks.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

// A sanitizer does not see a streaming store, so there it is a plain one.
#if defined(SANITIZED) && defined(__AVX__)
#include <immintrin.h>
#define _mm256_stream_ps(p, v) static_cast<void>(*reinterpret_cast<__m256*>(p) = (v))
#define _mm512_stream_ps(p, v) static_cast<void>(*reinterpret_cast<__m512*>(p) = (v))
#endif

#include "compact.h"
#include "gradient.h"
#include "largest_blocks.h"
#include "mlp_gradient.h"
#include "product.h"
#include "pruned.h"
#include "reference.h"

__attribute__((noinline)) void* allocate(size_t size, size_t alignment) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
  return std::memset(memory, 0xff, size);
}
void* operator new(size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace sparsemlp {
namespace {

int64_t every = 1, n_cases = 0, n_calls = 0;

bool is_left_out() { return ++n_cases % every != 0; }

// A pool of n threads: the caller and n - 1 of its own.
class Threads {
 public:
  explicit Threads(int n) : pool{n, [this](auto task) { schedule(std::move(task)); }} {
    for (int i = 1; i < n; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Threads() {
    for (size_t i = 0; i < threads_.size(); ++i) schedule(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }
  const Pool pool;

 private:
  void schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  void work() {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (!task) return;
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
};

template <typename T>
void compare(const std::string& what, size_t result, const std::vector<T>& got,
             const Numbers& want) {
  const double epsilon = std::is_same_v<T, float> ? 0 : 1.0 / 256;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(widen(got[i]) - want[i].value);
    const double allowed = 4 * 1.2e-7 * want[i].scale + epsilon * std::abs(want[i].value);
    if (error <= allowed) continue;  // not if NaN
    std::printf("%s: result %zu has %g instead of %g at %zu of %zu, error %g > %g\n", what.c_str(),
                result, widen(got[i]), want[i].value, i, want.size(), error, allowed);
    std::exit(1);
  }
}

// Results that are not written yet.
template <typename T>
std::vector<std::vector<T>> unwritten(const std::vector<Numbers>& like) {
  std::vector<std::vector<T>> results;
  for (const Numbers& numbers : like) {
    results.emplace_back(numbers.size());
    for (T& value : results.back()) narrow(std::nanf(""), &value);
  }
  return results;
}

// Runs call(pool, results) and checks the results. The first time it has a thread of its own, where
// the scratch that threads keep is new; later, others' scratch is there.
template <typename T, typename Call>
void check(std::string what, const std::vector<Numbers>& want, const Call& call) {
  static Threads one(1), two(2), five(5);
  what += std::is_same_v<T, float> ? ", float32" : ", bfloat16";
  std::vector<std::vector<T>> first = unwritten<T>(want);
  std::thread([&] { call(one.pool, first); }).join();
  for (size_t i = 0; i < want.size(); ++i) compare(what, i, first[i], want[i]);
  for (const Threads* threads : {&two, &five}) {
    std::vector<std::vector<T>> got = unwritten<T>(want);
    call(threads->pool, got);
    for (size_t i = 0; i < want.size(); ++i) {
      const size_t size = got[i].size() * sizeof(T);
      if (size == 0 || std::memcmp(got[i].data(), first[i].data(), size) == 0) continue;
      std::printf("%s: result %zu differs on %d threads\n", what.c_str(), i,
                  static_cast<int>(threads->pool.n_threads));
      std::exit(1);
    }
  }
  ++n_calls;
}

std::string describe(const Grid& grid, Keep keep) {
  return "kernel " + std::to_string(grid.in) + "x" + std::to_string(grid.out) + " block " +
         std::to_string(grid.rows) + "x" + std::to_string(grid.cols) + " keep " +
         std::to_string(static_cast<int>(keep));
}

// The three products of a layer, along the tokens if `tokens`, else along the features.
template <typename T>
void check_layer(const Grid& grid, Keep keep, int64_t n, bool tokens, int64_t channels) {
  if (is_left_out()) return;
  const bool biased = random_bits() % 2;
  const Layer<T> layer(grid, keep, biased);
  const std::vector<T> x = draw<T>(n * grid.in * channels), dy = draw<T>(n * grid.out * channels);
  const Numbers exact_x = exact(x), exact_dy = exact(dy);
  const std::string what = describe(grid, keep) + (biased ? " bias" : "") + " n " +
                           std::to_string(n) + (tokens ? " channels " : " features ") +
                           std::to_string(channels);
  const auto check_product = [&](bool transposed, const T* from, const Numbers& want) {
    const T* bias = transposed ? nullptr : layer.bias_or_null();
    check<T>((transposed ? "dx: " : "y: ") + what, {want}, [&](const Pool& pool, auto& to) {
      if (tokens) {
        multiply_tokens(pool, from, n, channels, layer.kernel.data(), bias, layer.kept(),
                        transposed, to[0].data());
      } else {
        multiply_features(pool, from, n, layer.kernel.data(), bias, layer.kept(), transposed,
                          to[0].data());
      }
    });
  };
  check_product(false, x.data(), layer.product(exact_x, n, channels, false));
  check_product(true, dy.data(), layer.product(exact_dy, n, channels, true));
  const std::vector<Numbers> want{layer.gradient(exact_x, exact_dy, n, channels),
                                  layer.sums(exact_dy, n, channels)};
  check<T>("dw, db: " + what, want, [&](const Pool& pool, auto& to) {
    T* db = biased ? to[1].data() : nullptr;
    if (tokens) {
      const TokenOperands<T> operands(x.data(), dy.data(), channels, grid);
      kernel_gradient(pool, operands, n, layer.kept(), to[0].data(), db);
    } else {
      const FeatureOperands<T> operands(x.data(), dy.data(), grid);
      kernel_gradient(pool, operands, n, layer.kept(), to[0].data(), db);
    }
  });
}

template <typename T>
void check_mlp(const Layer<T>& first, const Layer<T>& second, const std::string& kept, int64_t n,
               bool residual) {
  Mlp<T> mlp{first.kept(), second.kept(), first.kernel.data(), first.bias_or_null(),
             second.kernel.data(), second.bias_or_null(), residual, false};
  const std::vector<T> x = draw<T>(n * mlp.in()), dy = draw<T>(n * mlp.out());
  const Numbers exact_x = exact(x), exact_dy = exact(dy);
  const auto add = [](Number a, Number b) { return a + b; };
  const auto times = [](Number a, Number b) { return a * b; };
  const Numbers hidden = first.product(exact_x, n, 1, false), units = map(hidden, gelu_of);
  Numbers y = second.product(units, n, 1, false);
  const Numbers dh = map(second.product(exact_dy, n, 1, true), map(hidden, gelu_slope), times);
  Numbers dx = first.product(dh, n, 1, true);
  if (residual) y = map(y, exact_x, add), dx = map(dx, exact_dy, add);
  const std::string what = kept + " n " + std::to_string(n) + (first.bias.empty() ? "" : " b1") +
                           (second.bias.empty() ? "" : " b2") + (residual ? " residual" : "");
  check<T>("mlp: " + what, {y}, [&](const Pool& pool, auto& to) {
    multiply_mlp(pool, mlp, x.data(), n, to[0].data());
  });
  for (const bool straight_through : {false, true}) {
    mlp.straight_through = straight_through;
    const std::vector<Numbers> want{dx, first.gradient(exact_x, dh, n, 1, straight_through),
                                    first.sums(dh, n, 1),
                                    second.gradient(units, exact_dy, n, 1, straight_through),
                                    second.sums(exact_dy, n, 1)};
    check<T>((straight_through ? "straight-through mlp gradients: " : "mlp gradients: ") + what,
             want, [&](const Pool& pool, auto& to) {
               mlp_gradients(pool, mlp, x.data(), dy.data(), n,
                             MlpGradients<T>{to[0].data(), to[1].data(), to[2].data(),
                                             to[3].data(), to[4].data()});
             });
  }
}

// dW from the kept blocks of an activation [n, in]: its dropped blocks are zero in the definition.
template <typename T>
void check_compact(int64_t height, int64_t width, int64_t down, int64_t across, int64_t out,
                   int64_t channels, bool tokens, Keep keep) {
  if (is_left_out()) return;
  const int64_t n = down * height, in = across * width;
  // A grid whose outputs are the inputs of this layer: its blocks have the same ids.
  const Layer<T> activation({n, in, width, height}, keep, false);
  const Kept blocks = activation.kept();
  std::vector<T> values(blocks.n * height * width);
  Numbers x(n * in);
  for (int64_t s = 0; s < blocks.n; ++s) {
    for (int64_t r = 0; r < height; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t row = blocks.down(s) * height + r, column = blocks.across(s) * width + c;
        const T value = activation.kernel[row * in + column];
        values[(s * height + r) * width + c] = value;
        // Along the tokens x is [samples, in, channels], a row the channel of a sample.
        const int64_t place = tokens ? (row / channels * in + column) * channels + row % channels
                                     : row * in + column;
        x[place] = {widen(value), std::abs(widen(value))};
      }
    }
  }
  const std::vector<T> dy = draw<T>(n * out);
  const Layer<T> whole({in, out, out ? out : 1, in ? in : 1}, Keep::kAll, false);
  const int64_t samples = tokens ? n / channels : n;
  const std::string what = "dw from blocks " + std::to_string(height) + "x" +
                           std::to_string(width) + " of " + std::to_string(n) + "x" +
                           std::to_string(in) + (tokens ? " tokens" : " features") + " out " +
                           std::to_string(out) + " keep " + std::to_string(static_cast<int>(keep));
  const Compact kept{n, in, height, width, blocks.ids, blocks.n};
  check<T>(what, {whole.gradient(x, exact(dy), samples, tokens ? channels : 1)},
           [&](const Pool& pool, auto& to) {
             if (tokens) {
               compact_gradient(pool, kept, values.data(), TokenStrips<T>{dy.data(), out, channels},
                                out, to[0].data());
             } else {
               compact_gradient(pool, kept, values.data(), FeatureStrips<T>{dy.data(), out}, out,
                                to[0].data());
             }
           });
}

template <typename T>
void check_compacts() {
  const int64_t shapes[][4] = {{1, 1, 5, 3}, {4, 4, 3, 2},  {8, 8, 9, 4},   {2, 17, 6, 2},
                               {33, 5, 2, 3}, {8, 32, 200, 1}, {300, 4, 4, 2}, {4, 8, 0, 2}};
  for (const auto& [height, width, down, across] : shapes) {
    for (const Keep keep : kKeeps) {
      for (const int64_t out : {1, 16, 40, 77}) {
        check_compact<T>(height, width, down, across, out, 1, false, keep);
        check_compact<T>(height, width, down, across, out, 1, true, keep);
        if (height * down % 6 == 0) {
          check_compact<T>(height, width, down, across, out, 6, true, keep);
        }
      }
    }
  }
}

// The blocks of an activation with the largest norm. All entries of a block have one magnitude, a
// small integer, so that norms are exact and many of them equal.
template <typename T>
void check_largest_blocks(int64_t height, int64_t width, int64_t down, int64_t across, int64_t k,
                          int64_t channels, bool tokens) {
  if (is_left_out()) return;
  const BlockGrid grid{down * height, across * width, height, width};
  std::vector<int64_t> magnitudes(grid.count()), order(grid.count());
  for (int64_t i = 0; i < grid.count(); ++i) magnitudes[i] = random_bits() % 5, order[i] = i;
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return magnitudes[a] > magnitudes[b] || (magnitudes[a] == magnitudes[b] && a < b);
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  std::vector<T> x(grid.n * grid.in);
  Numbers values(k * height * width);
  for (int64_t row = 0; row < grid.n; ++row) {
    for (int64_t column = 0; column < grid.in; ++column) {
      const int64_t id = row / height * across + column / width;
      const double sign = random_bits() % 2 ? 1 : -1;
      const int64_t place = tokens ? (row / channels * grid.in + column) * channels + row % channels
                                   : row * grid.in + column;
      narrow(static_cast<float>(sign * magnitudes[id]), &x[place]);
      const auto found = std::lower_bound(order.begin(), order.end(), id);
      if (found == order.end() || *found != id) continue;
      const int64_t s = found - order.begin();
      values[(s * height + row % height) * width + column % width] = {sign * magnitudes[id], 0};
    }
  }
  const std::string what = "largest " + std::to_string(k) + " blocks " + std::to_string(height) +
                           "x" + std::to_string(width) + " of " + std::to_string(grid.n) + "x" +
                           std::to_string(grid.in) + (tokens ? " tokens" : " features");
  check<T>(what, {values}, [&](const Pool& pool, auto& to) {
    std::vector<int32_t> ids(k, -1);
    if (tokens) {
      take_largest(pool, grid, TokenBlocks<T>{x.data(), channels}, k, ids.data(), to[0].data());
    } else {
      take_largest(pool, grid, FeatureBlocks<T>{x.data()}, k, ids.data(), to[0].data());
    }
    if (std::equal(ids.begin(), ids.end(), order.begin())) return;
    std::printf("%s: other ids\n", what.c_str());
    std::exit(1);
  });
}

template <typename T>
void check_largest_blocks() {
  const int64_t shapes[][4] = {{1, 1, 6, 3},   {4, 4, 3, 2},    {8, 8, 9, 4},    {2, 17, 6, 2},
                               {33, 5, 2, 3},  {8, 32, 200, 1}, {300, 4, 4, 40}, {4, 8, 0, 2},
                               {6, 16, 70, 11}};
  for (const auto& [height, width, down, across] : shapes) {
    const int64_t count = down * across;
    for (const int64_t k : {int64_t{0}, std::min<int64_t>(1, count), count / 2, count}) {
      check_largest_blocks<T>(height, width, down, across, k, 1, false);
      check_largest_blocks<T>(height, width, down, across, k, 1, true);
      if (height * down % 6 == 0) check_largest_blocks<T>(height, width, down, across, k, 6, true);
    }
  }
}

// dX from the largest of every m neighbours in rows of dY, with ties and zeros among them; with
// positions > 0 rescaled.
template <typename T>
void check_pruned(int64_t rows, int64_t in, int64_t out, Neighbours kept, int64_t positions) {
  if (is_left_out()) return;
  std::vector<T> dy = draw<T>(rows * out);
  for (T& value : dy) {
    if (random_bits() % 3 == 0) narrow(std::round(2 * widen(value)), &value);
  }
  const Layer<T> layer({in, out, out ? out : 1, in ? in : 1}, Keep::kAll, false);
  Numbers used(rows * out);
  for (int64_t i = 0; i < rows * out; ++i) {
    const int64_t first = i / kept.m * kept.m;
    int64_t before = 0;
    for (int64_t j = first; j < first + kept.m; ++j) {
      const double other = std::abs(widen(dy[j])), own = std::abs(widen(dy[i]));
      before += other > own || (other == own && j < i);
    }
    if (before < kept.n) used[i] = {widen(dy[i]), std::abs(widen(dy[i]))};
  }
  for (int64_t i = 0; positions > 0 && i < rows / positions * out; ++i) {
    double whole = 0, part = 0;
    const int64_t first = i / out * positions * out + i % out;
    for (int64_t p = 0; p < positions; ++p) {
      whole += std::abs(widen(dy[first + p * out]));
      part += used[first + p * out].scale;
    }
    if (part == 0) continue;
    const float factor = rounded<T>(static_cast<float>(whole / part));
    for (int64_t p = 0; p < positions; ++p) {
      Number& number = used[first + p * out];
      number.value = rounded<T>(static_cast<float>(number.value * factor));
      // A sum that is rounded another way may move factor and product to the next T each.
      number.scale = std::abs(number.value) * (std::is_same_v<T, float> ? 1 : 30000);
    }
  }
  const std::string what = "dx of " + std::to_string(kept.n) + ":" + std::to_string(kept.m) +
                           " of " + std::to_string(rows) + "x" + std::to_string(out) + " to " +
                           std::to_string(in) + " positions " + std::to_string(positions);
  check<T>(what, {layer.product(used, rows, 1, true)}, [&](const Pool& pool, auto& to) {
    multiply_largest(pool, dy.data(), rows, layer.kernel.data(), in, out, kept, positions,
                     to[0].data());
  });
}

template <typename T>
void check_pruneds() {
  const Neighbours every[] = {{1, 1}, {1, 2}, {2, 4}, {3, 4}, {1, 8}, {7, 8}, {4, 32}, {16, 32}};
  for (const Neighbours& kept : every) {
    for (const int64_t groups : {0, 1, 3, 9}) {
      for (const int64_t in : {0, 1, 16, 37, 150}) {
        check_pruned<T>(0, in, groups * kept.m, kept, 0);
        check_pruned<T>(13, in, groups * kept.m, kept, 0);
        check_pruned<T>(150, in, groups * kept.m, kept, 50);
        check_pruned<T>(34, in, groups * kept.m, kept, 1);
        check_pruned<T>(300, in, groups * kept.m, kept, groups == 1 ? 300 : 0);
      }
    }
  }
}

constexpr bool kTokens = true, kFeatures = false;

template <typename T>
void check_layers() {
  const Grid grids[] = {
      {1, 1, 1, 1},     {4, 6, 1, 1},      {6, 10, 2, 3},     {26, 39, 13, 13},  {51, 34, 17, 17},
      {40, 57, 19, 8},  {36, 99, 33, 12},  {64, 64, 16, 16},  {96, 128, 64, 32}, {64, 64, 64, 32},
      {16, 1024, 8, 4}, {1024, 16, 16, 2}, {0, 8, 4, 4},      {8, 0, 4, 4},      {0, 0, 1, 1},
  };
  for (const Grid& grid : grids) {
    for (const Keep keep : kKeeps) {
      const bool small = grid.in * grid.out <= 1200;
      for (const int64_t n : {0, 1, 13, 37, small ? 300 : 100}) {
        check_layer<T>(grid, keep, n, kFeatures, 1);
      }
      check_layer<T>(grid, keep, 0, kTokens, 19);
      check_layer<T>(grid, keep, 3, kTokens, 0);
      check_layer<T>(grid, keep, 13, kTokens, 1);
      check_layer<T>(grid, keep, 3, kTokens, 19);
      check_layer<T>(grid, keep, 2, kTokens, 64);
      if (small) {  // the sum of dW in slices
        check_layer<T>(grid, keep, 800, kFeatures, 1);
        check_layer<T>(grid, keep, 13, kTokens, 64);
      }
    }
  }
}

template <typename T>
void check_mlps() {
  const Grid pairs[][2] = {
      {{1, 1, 1, 1}, {1, 1, 1, 1}},         {{6, 10, 2, 3}, {10, 6, 3, 2}},
      {{16, 64, 16, 16}, {64, 16, 16, 16}}, {{38, 57, 19, 19}, {57, 38, 19, 19}},
      {{24, 96, 32, 8}, {96, 24, 8, 12}},   {{17, 66, 33, 17}, {66, 20, 20, 22}},
      {{8, 48, 4, 8}, {48, 8, 8, 48}},      {{1024, 16, 16, 64}, {16, 1024, 64, 16}},
      {{8, 1024, 64, 4}, {1024, 8, 8, 64}}, {{0, 8, 4, 4}, {8, 0, 4, 4}},
      {{8, 0, 4, 4}, {0, 8, 4, 4}},         {{0, 0, 1, 1}, {0, 0, 1, 1}},
  };
  for (const auto& [g1, g2] : pairs) {
    for (const Keep keep1 : kKeeps) {
      for (const Keep keep2 : kKeeps) {
        for (const int64_t n : {0, 1, 37, g1.in * g1.out > 1200 ? 50 : 300}) {
          if (is_left_out()) continue;
          const Layer<T> first(g1, keep1, random_bits() % 4), second(g2, keep2, random_bits() % 4);
          check_mlp(first, second, describe(g1, keep1) + " -> " + describe(g2, keep2), n,
                    g1.in == g2.out && random_bits() % 2);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparsemlp

// Takes every case, or only every so many if a number is given.
int main(int n_arguments, char** arguments) {
  if (n_arguments > 1) sparsemlp::every = std::max(1, std::atoi(arguments[1]));
  sparsemlp::check_layers<float>();
  sparsemlp::check_layers<sparsemlp::BFloat16>();
  sparsemlp::check_compacts<float>();
  sparsemlp::check_compacts<sparsemlp::BFloat16>();
  sparsemlp::check_largest_blocks<float>();
  sparsemlp::check_largest_blocks<sparsemlp::BFloat16>();
  sparsemlp::check_pruneds<float>();
  sparsemlp::check_pruneds<sparsemlp::BFloat16>();
  sparsemlp::check_mlps<float>();
  sparsemlp::check_mlps<sparsemlp::BFloat16>();
  std::printf("%lld calls are right, %d lanes\n", static_cast<long long>(sparsemlp::n_calls),
              sparsemlp::kLanes);
}
