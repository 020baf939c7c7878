// Memory that is fetched while something else is computed.
#pragma once

#include <algorithm>

#include "simd.h"

namespace sparsemlp {

// Brings a stretch of memory nearer, a little at each call, so that it arrives beside the work.
class Prefetcher {
 public:
  Prefetcher(const void* data, int64_t bytes, int64_t n_calls)
      : data_(static_cast<const char*>(data)), bytes_(bytes),
        step_(round_up(ceil_div(bytes, std::max<int64_t>(1, n_calls)), 64)) {}
  void operator()() {
    const int64_t stop = std::min(bytes_, done_ + step_);
    for (; done_ < stop; done_ += 64) __builtin_prefetch(data_ + done_, 0, 2);
  }

 private:
  const char* data_;
  int64_t bytes_, step_, done_ = 0;
};

}  // namespace sparsemlp
