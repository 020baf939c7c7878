// A pool of threads as XLA has one, without XLA.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "parallel.h"

namespace sparsemlp {

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

}  // namespace sparsemlp
