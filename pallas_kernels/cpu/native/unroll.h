// Loops that are gone before the compiler decides what lives in registers.
#pragma once

#include <type_traits>
#include <utility>

#include "simd.h"

#define SPARSEMLP_LAMBDA __attribute__((always_inline))
#define SPARSEMLP_INLINE inline __attribute__((always_inline))

namespace sparsemlp {

template <typename Body, int... i>
SPARSEMLP_INLINE void unroll(std::integer_sequence<int, i...>, const Body& body) {
  (body(std::integral_constant<int, i>{}), ...);
}

// Calls body(0) .. body(N - 1), each argument a constant.
template <int N, typename Body>
SPARSEMLP_INLINE void unroll(const Body& body) {
  unroll(std::make_integer_sequence<int, N>{}, body);
}

// Keeps the compiler from addressing what follows by offsets of its own from earlier pointers: it
// would need more of them than there are registers.
template <typename T>
SPARSEMLP_INLINE void hide(T*& pointer) {
  asm("" : "+r"(pointer));
}

}  // namespace sparsemlp
