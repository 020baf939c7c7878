// Vectors whose lanes change places with their numbers: matrices are transposed, and sums taken.
#pragma once

#include "simd.h"

namespace sparsemlp {

#if defined(__AVX512F__)
// Numbers of two vectors in one, from each quarter of both or whole quarters. The forms with a mask
// are the same instructions, and GCC does not warn of what the others begin with.
inline Vec low(Vec a, Vec b) {
  return Vec(_mm512_maskz_unpacklo_ps(0xffff, __m512(a), __m512(b)));
}
inline Vec high(Vec a, Vec b) {
  return Vec(_mm512_maskz_unpackhi_ps(0xffff, __m512(a), __m512(b)));
}
template <int which>
inline Vec numbers(Vec a, Vec b) {
  return Vec(_mm512_maskz_shuffle_ps(0xffff, __m512(a), __m512(b), which));
}
template <int which>
inline Vec quarters(Vec a, Vec b) {
  return Vec(_mm512_maskz_shuffle_f32x4(0xffff, __m512(a), __m512(b), which));
}
#endif

// Lane r of vector c becomes lane c of vector r.
inline void turn(Vec (&v)[kLanes]) {
#if defined(__AVX512F__)
  Vec fours[16];  // number i has in quarter q column 4 q + i % 4 of the four rows from i / 4 * 4 on
  for (int i = 0; i < 16; i += 4) {
    const Vec a = low(v[i], v[i + 1]), b = high(v[i], v[i + 1]);
    const Vec c = low(v[i + 2], v[i + 3]), d = high(v[i + 2], v[i + 3]);
    fours[i] = numbers<0x44>(a, c);
    fours[i + 1] = numbers<0xee>(a, c);
    fours[i + 2] = numbers<0x44>(b, d);
    fours[i + 3] = numbers<0xee>(b, d);
  }
  for (int i = 0; i < 4; ++i) {
    const Vec even = quarters<0x88>(fours[i], fours[4 + i]);
    const Vec odd = quarters<0xdd>(fours[i], fours[4 + i]);
    const Vec even_below = quarters<0x88>(fours[8 + i], fours[12 + i]);
    const Vec odd_below = quarters<0xdd>(fours[8 + i], fours[12 + i]);
    v[i] = quarters<0x88>(even, even_below);
    v[4 + i] = quarters<0x88>(odd, odd_below);
    v[8 + i] = quarters<0xdd>(even, even_below);
    v[12 + i] = quarters<0xdd>(odd, odd_below);
  }
#elif defined(__AVX__)
  Vec fours[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(__m256(v[i]), __m256(v[i + 1]));
    const __m256 b = _mm256_unpackhi_ps(__m256(v[i]), __m256(v[i + 1]));
    const __m256 c = _mm256_unpacklo_ps(__m256(v[i + 2]), __m256(v[i + 3]));
    const __m256 d = _mm256_unpackhi_ps(__m256(v[i + 2]), __m256(v[i + 3]));
    fours[i] = Vec(_mm256_shuffle_ps(a, c, 0x44));
    fours[i + 1] = Vec(_mm256_shuffle_ps(a, c, 0xee));
    fours[i + 2] = Vec(_mm256_shuffle_ps(b, d, 0x44));
    fours[i + 3] = Vec(_mm256_shuffle_ps(b, d, 0xee));
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = Vec(_mm256_permute2f128_ps(__m256(fours[i]), __m256(fours[4 + i]), 0x20));
    v[4 + i] = Vec(_mm256_permute2f128_ps(__m256(fours[i]), __m256(fours[4 + i]), 0x31));
  }
#else
  for (int r = 0; r < kLanes; ++r) {
    for (int c = 0; c < r; ++c) {
      const float below = v[r][c];
      v[r][c] = v[c][r];
      v[c][r] = below;
    }
  }
#endif
}

// The sum of the lanes of each of some vectors, in the lane of its number.
inline Vec sums_of(Vec (&v)[kLanes]) {
#if defined(__AVX512F__)
  // Vectors are folded together two by two, so that half as many are left each time.
  for (int i = 0; i < 8; ++i) v[i] = low(v[2 * i], v[2 * i + 1]) + high(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 4; ++i) {
    v[i] = numbers<0x44>(v[2 * i], v[2 * i + 1]) + numbers<0xee>(v[2 * i], v[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    v[i] = quarters<0x44>(v[2 * i], v[2 * i + 1]) + quarters<0xee>(v[2 * i], v[2 * i + 1]);
  }
  return quarters<0x88>(v[0], v[1]) + quarters<0xdd>(v[0], v[1]);
#else
  turn(v);
  Vec total = v[0];
  for (int i = 1; i < kLanes; ++i) total += v[i];
  return total;
#endif
}

// The part of `transpose` that fills no square of vectors.
template <typename T>
inline void transpose_odd(const T* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
                          int64_t out_stride) {
  int64_t r = 0;
#if defined(__SSE__)
  if constexpr (std::is_same_v<T, float>) {
    for (; r + 4 <= rows; r += 4) {
      const float* from = in + r * in_stride;
      int64_t c = 0;
      for (; c + 4 <= columns; c += 4) {
        __m128 a = _mm_loadu_ps(from + c), b = _mm_loadu_ps(from + in_stride + c);
        __m128 d = _mm_loadu_ps(from + 2 * in_stride + c);
        __m128 e = _mm_loadu_ps(from + 3 * in_stride + c);
        _MM_TRANSPOSE4_PS(a, b, d, e);
        float* to = out + c * out_stride + r;
        _mm_storeu_ps(to, a);
        _mm_storeu_ps(to + out_stride, b);
        _mm_storeu_ps(to + 2 * out_stride, d);
        _mm_storeu_ps(to + 3 * out_stride, e);
      }
      for (; c < columns; ++c) {
        for (int i = 0; i < 4; ++i) out[c * out_stride + r + i] = from[i * in_stride + c];
      }
    }
  }
#endif
  for (in += r * in_stride, out += r; r < rows; ++r, in += in_stride, ++out) {
    float* to = out;
    for (int64_t c = 0; c < columns; ++c, to += out_stride) *to = widen(in[c]);
  }
}

// out[c * out_stride + r] = in[r * in_stride + c] for r < rows and c < columns.
template <typename T>
inline void transpose(const T* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
                      int64_t out_stride) {
  int64_t r = 0;
#if defined(__AVX__)
  for (; r + kLanes <= rows; r += kLanes) {
    int64_t c = 0;
    for (; c + kLanes <= columns; c += kLanes) {
      Vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) square[i] = load_widened(in + (r + i) * in_stride + c);
      turn(square);
      for (int i = 0; i < kLanes; ++i) store(out + (c + i) * out_stride + r, square[i]);
    }
    transpose_odd(in + r * in_stride + c, in_stride, kLanes, columns - c, out + c * out_stride + r,
                  out_stride);
  }
#endif
  transpose_odd(in + r * in_stride, in_stride, rows - r, columns, out + r, out_stride);
}

}  // namespace sparsemlp
