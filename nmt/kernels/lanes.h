// Numbers 16 at a time, as float32, whatever the type in memory; what all kernels compute with.
//
// Vector extensions of the compiler, not intrinsics: on a processor without vectors of 16 they are split.

#pragma once

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace nmt {

constexpr int64_t LANES = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

inline int64_t padded(int64_t size) { return (size + LANES - 1) / LANES * LANES; }
inline Lanes all(float x) { return x - Lanes{}; }
inline Lanes max_of(Lanes a, Lanes b) { return a > b ? a : b; }  // b where one is no number

inline Lanes load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

inline void store(float* p, Lanes x) { std::memcpy(p, &x, sizeof(x)); }

inline Words widened(Halves x) {
#ifdef __AVX512F__
  return (Words)_mm512_cvtepu16_epi32((__m256i)x);  // one instruction, where the compiler takes several
#else
  return __builtin_convertvector(x, Words);
#endif
}

inline Lanes load(const at::BFloat16* p) {
  Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  return (Lanes)(widened(halves) << 16);
}

inline Halves rounded(Lanes x) {  // to the nearest bfloat16, ties to even
#ifdef __AVX512BF16__
  return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
  const Words bits = (Words)x;
  return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
#endif
}

inline void store(at::BFloat16* p, Lanes x) {
  const Halves halves = rounded(x);
  std::memcpy(p, &halves, sizeof(halves));
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)

inline __mmask16 first(int64_t count) { return __mmask16((1u << count) - 1); }

inline Lanes load_part(const float* p, int64_t count, float filling) {
  return (Lanes)_mm512_mask_loadu_ps((__m512)all(filling), first(count), p);
}

inline Lanes load_part(const at::BFloat16* p, int64_t count, float filling) {
  const Halves fillings = rounded(all(filling));
  return (Lanes)(widened((Halves)_mm256_mask_loadu_epi16((__m256i)fillings, first(count), p)) << 16);
}

inline void store_part(float* p, Lanes x, int64_t count) { _mm512_mask_storeu_ps(p, first(count), (__m512)x); }

inline void store_part(at::BFloat16* p, Lanes x, int64_t count) {
  _mm256_mask_storeu_epi16(p, first(count), (__m256i)rounded(x));
}

#else

template <typename T>
Lanes load_part(const T* p, int64_t count, float filling) {
  T part[LANES];
  std::fill(part, part + LANES, T(filling));
  std::copy(p, p + count, part);
  return load(part);
}

template <typename T>
void store_part(T* p, Lanes x, int64_t count) {
  T part[LANES];
  store(part, x);
  std::copy(part, part + count, p);
}

#endif

// The same for the last `count` numbers of an array, should they be fewer than LANES.
template <typename T>
[[gnu::always_inline]] inline Lanes load(const T* p, int64_t count, float filling = 0.0f) {
  return count >= LANES ? load(p) : load_part(p, count, filling);
}

template <typename T>
[[gnu::always_inline]] inline void store(T* p, Lanes x, int64_t count) {
  count >= LANES ? store(p, x) : store_part(p, x, count);
}

constexpr Ints SHIFTED[] = {
    {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7},
    {4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11},
    {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13},
    {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14},
};

inline float sum_of(Lanes x) {
  for (const Ints& other : SHIFTED) x += __builtin_shuffle(x, other);
  return x[0];
}

inline float highest_of(Lanes x) {
  for (const Ints& other : SHIFTED) x = max_of(x, __builtin_shuffle(x, other));
  return x[0];
}

// e^x for x <= 0 to about 1e-7 of its value; 0 for what float32 rounds to 0.
inline Lanes exp_of(Lanes x) {
  const Lanes seen = max_of(x, all(-87.0f));
  const Ints n = __builtin_convertvector(seen * 1.44269504f - 0.5f, Ints);  // towards 0, so to the nearest
  const Lanes whole = __builtin_convertvector(n, Lanes);
  const Lanes r = (seen - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Lanes result = p * (Lanes)((n + 127) << 23);
  return x < -87.0f ? Lanes{} : result;
}

// The axis of a matrix that a product sums over.
enum class Over { rows, columns };

constexpr int64_t GRAIN = 1 << 14;  // elements that are worth a thread

// How many groups of `unit` elements it takes to hold `size`.
inline int64_t ceil_div(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

}  // namespace nmt
