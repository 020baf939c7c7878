// Vectors of float32 in the width of the processor, and bfloat16 at the border of the kernels.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace sparsemlp {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileRows = 12;  // 12 x 2 accumulators of 32 registers
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kTileRows = 6;  // 6 x 2 of 16
#elif defined(__aarch64__)
constexpr int kLanes = 4;
constexpr int kTileRows = 12;
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 6;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef float UnalignedVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }

// Whether `stream` can store to p.
inline bool streams(const float* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(Vec) == 0;
}

// Stores past the caches where the processor can: a large result that is written once need not be
// read first.
inline void stream(float* p, Vec v) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, __m512(v));
#elif defined(__AVX__)
  _mm256_stream_ps(p, __m256(v));
#else
  store(p, v);
#endif
}

// Lets no later store be seen before the streamed ones.
inline void finish_streams() {
#if defined(__AVX__)
  _mm_sfence();
#endif
}

inline Vec broadcast(float x) { return x - Vec{}; }

typedef uint32_t VecBits __attribute__((vector_size(4 * kLanes)));

inline Vec absolute(Vec x) {
  return reinterpret_cast<Vec>(reinterpret_cast<VecBits>(x) & 0x7fffffff);
}

struct BFloat16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(BFloat16 x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline void narrow(float x, float* out) { *out = x; }
// Rounds to nearest, ties to even; NaN stays NaN.
inline void narrow(float x, BFloat16* out) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  out->bits = static_cast<uint16_t>(x == x ? rounded : (bits >> 16) | 0x40);
}

inline Vec load_widened(const float* p) { return load(p); }
inline Vec load_widened(const BFloat16* p) {
  typedef uint16_t Half __attribute__((vector_size(2 * kLanes)));
  typedef uint16_t UnalignedHalf __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
  typedef uint32_t Word __attribute__((vector_size(4 * kLanes)));
  const Half half = *reinterpret_cast<const UnalignedHalf*>(p);
  return reinterpret_cast<Vec>(__builtin_convertvector(half, Word) << 16);
}

template <typename T>
inline void widen_row(const T* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load_widened(in + i));
  for (; i < n; ++i) out[i] = widen(in[i]);
}

inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

}  // namespace sparsemlp
