// How a call is checked: against numbers in double, and bit for bit between pools of threads.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "pool_of_threads.h"
#include "reference.h"

namespace sparsemlp {

// Of the cases one of so many is checked.
inline int64_t every = 1, n_cases = 0, n_calls = 0;

inline bool is_left_out() { return ++n_cases % every != 0; }

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

inline std::string describe(const Grid& grid, Keep keep) {
  return "kernel " + std::to_string(grid.in) + "x" + std::to_string(grid.out) + " block " +
         std::to_string(grid.rows) + "x" + std::to_string(grid.cols) + " keep " +
         std::to_string(static_cast<int>(keep));
}

}  // namespace sparsemlp
