// Every kernel of engine `cpu`, without XLA: shapes that stress borders, compared with plain loops
// in double, and bit for bit between pools of 1, 2 and 5 threads. `.ci/sanitize` runs it.

#include <algorithm>
#include <cstdio>
#include <cstdlib>

// A sanitizer does not see a streaming store, so there it is a plain one.
#if defined(SANITIZED) && defined(__AVX__)
#include <immintrin.h>
#define _mm256_stream_ps(p, v) static_cast<void>(*reinterpret_cast<__m256*>(p) = (v))
#define _mm512_stream_ps(p, v) static_cast<void>(*reinterpret_cast<__m512*>(p) = (v))
#endif

#include "allocation.h"

#include "check_activations.h"
#include "check_convolutions.h"
#include "check_layers.h"
#include "check_mlps.h"
#include "check_pruned.h"
#include "check_pruned_mlps.h"

// Takes every case, or only every so many if a number is given.
int main(int n_arguments, char** arguments) {
  if (n_arguments > 1) sparsemlp::every = std::max(1, std::atoi(arguments[1]));
  sparsemlp::check_layers<float>();
  sparsemlp::check_layers<sparsemlp::BFloat16>();
  sparsemlp::check_convolutions<float>();
  sparsemlp::check_convolutions<sparsemlp::BFloat16>();
  sparsemlp::check_compacts<float>();
  sparsemlp::check_compacts<sparsemlp::BFloat16>();
  sparsemlp::check_largest_blocks<float>();
  sparsemlp::check_largest_blocks<sparsemlp::BFloat16>();
  sparsemlp::check_pruneds<float>();
  sparsemlp::check_pruneds<sparsemlp::BFloat16>();
  sparsemlp::check_mlps<float>();
  sparsemlp::check_mlps<sparsemlp::BFloat16>();
  sparsemlp::check_pruned_mlps<float>();
  sparsemlp::check_pruned_mlps<sparsemlp::BFloat16>();
  std::printf("%lld calls are right, %d lanes\n", static_cast<long long>(sparsemlp::n_calls),
              sparsemlp::kLanes);
}
