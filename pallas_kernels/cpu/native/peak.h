// What the processor can do at most: multiply-adds on registers alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "simd.h"

namespace sparsemlp {

// Operations a second of one thread, the best of several short stretches.
inline double peak_of_a_thread() {
  constexpr int kChains = 2 * kTileRows, kSteps = 100000, kStretches = 30;
  double best = 0;
  for (int stretch = 0; stretch < kStretches; ++stretch) {
    Vec sums[kChains];
    for (int i = 0; i < kChains; ++i) sums[i] = broadcast(static_cast<float>(i));
    volatile float source = 0.999f;  // hides the factors' values from the compiler
    const Vec factor = broadcast(source), term = broadcast(1.0f - source);
    const auto began = std::chrono::steady_clock::now();
    for (int step = 0; step < kSteps; ++step) {
#pragma GCC unroll 24
      for (int i = 0; i < kChains; ++i) sums[i] = sums[i] * factor + term;
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
    Vec total{};
    for (int i = 0; i < kChains; ++i) total += sums[i];
    volatile float sink = total[0];
    static_cast<void>(sink);
    best = std::max(best, 2.0 * kLanes * kChains * kSteps / elapsed.count());
  }
  return best;
}

// The sum over so many threads at once.
inline double peak_flops(int n_threads) {
  std::vector<double> found(n_threads);
  std::vector<std::thread> threads;
  for (double& place : found) threads.emplace_back([&place] { place = peak_of_a_thread(); });
  double total = 0;
  for (int i = 0; i < n_threads; ++i) {
    threads[i].join();
    total += found[i];
  }
  return total;
}

}  // namespace sparsemlp
