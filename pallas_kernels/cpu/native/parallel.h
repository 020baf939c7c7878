// Loops whose iterations run on several threads, and memory that each thread keeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "simd.h"

namespace sparsemlp {

// Where tasks run: XLA's thread pool, or a driver's own threads.
struct Pool {
  int64_t n_threads = 1;
  std::function<void(std::function<void()>)> schedule;
};

// Calls body(i) for all i < n, in any order, on the caller's thread and idle ones of the pool.
// What a body computes must not depend on who runs it, so results are the same for any pool.
// Never waits for a task that has not begun: a pool whose threads are all busy cannot deadlock.
template <typename Body>
void parallel_for(const Pool& pool, int64_t n, const Body& body) {
  const int64_t n_helpers = std::min<int64_t>(pool.n_threads, n) - 1;
  if (n_helpers < 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return finish_streams();
  }
  struct Shared {
    std::atomic<int64_t> next{0};
    int64_t n = 0;
    const Body* body = nullptr;
    std::mutex mutex;
    std::condition_variable finished;
    int64_t n_done = 0;

    void work() {
      int64_t done = 0;
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n; ++done) (*body)(i);
      if (done == 0) return;
      finish_streams();
      std::lock_guard<std::mutex> lock(mutex);
      n_done += done;
      if (n_done == n) finished.notify_all();
    }
  };
  auto shared = std::make_shared<Shared>();
  shared->n = n;
  shared->body = &body;
  for (int64_t i = 0; i < n_helpers; ++i) pool.schedule([shared] { shared->work(); });
  shared->work();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->finished.wait(lock, [&] { return shared->n_done == n; });
}

// Asks for huge pages under a large result that is about to be written whole. XLA takes fresh
// memory for the results of a program; faulting it in by 4 KiB can take longer than the product.
inline void expect_writes([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = 2 << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & -kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) & -kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// Memory for floats, aligned to a cache line; grows, and never shrinks.
class Buffer {
 public:
  float* at_least(int64_t n) {
    if (n > size_) {
      data_.reset(static_cast<float*>(::operator new(4 * n, std::align_val_t{64})));
      size_ = n;
    }
    return data_.get();
  }

 private:
  struct Delete {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float[], Delete> data_;
  int64_t size_ = 0;
};

}  // namespace sparsemlp
