// Vectors of float32 numbers, which all kernels compute with, whatever the type in memory.
//
// They are vector extensions of the compiler, as long as the processor's own: longer ones the compiler splits, but it
// keeps them in memory. Intrinsics are used only where the compiler finds no good instructions.

#pragma once

#include "torch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace nmt {

#ifdef __AVX512F__
constexpr int64_t LANES = 16, REGISTERS = 32;
#else
constexpr int64_t LANES = 8, REGISTERS = 16;
#endif
typedef float Vec __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t IntVec __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint32_t UIntVec __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t HalfVec __attribute__((vector_size(LANES * sizeof(uint16_t))));

template <int32_t... I>
constexpr IntVec in_order(std::integer_sequence<int32_t, I...>) {
  return IntVec{I...};
}

constexpr IntVec LANE = in_order(std::make_integer_sequence<int32_t, LANES>());  // the number of each

constexpr float INFINITE = std::numeric_limits<float>::infinity();

constexpr int64_t GRAIN = 1 << 14;  // elements for which starting a thread pays

// The number of groups of `unit` elements that hold `size` elements.
inline int64_t ceil_div(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

// `size` rounded up to a multiple of `unit`.
inline int64_t padded(int64_t size, int64_t unit = LANES) { return ceil_div(size, unit) * unit; }

inline Vec broadcast(float x) { return x - Vec{}; }
inline Vec maximum(Vec a, Vec b) { return a > b ? a : b; }  // b where a or b is NaN

inline Vec load(const float* p) {
  Vec x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

inline void store(float* p, Vec x) { std::memcpy(p, &x, sizeof(x)); }

// Fetches the `size` numbers at `p` into the cache; where `written`, to be written.
template <bool written = false, typename T>
inline void prefetch(const T* p, int64_t size) {
  for (int64_t i = 0; i < size; i += 64 / sizeof(T)) __builtin_prefetch(p + i, written);
}

inline UIntVec zero_extend(HalfVec x) {
#if defined(__AVX512F__)  // one instruction, where the compiler takes several
  return (UIntVec)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
  return (UIntVec)_mm256_cvtepu16_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, UIntVec);
#endif
}

inline Vec load(const at::BFloat16* p) {
  HalfVec bits;
  std::memcpy(&bits, p, sizeof(bits));
  return (Vec)(zero_extend(bits) << 16);
}

// The bits of the nearest bfloat16 numbers; ties go to the even one.
inline HalfVec to_bfloat16(Vec x) {
#ifdef __AVX512BF16__
  return (HalfVec)_mm512_cvtneps_pbh((__m512)x);
#else
  const UIntVec bits = (UIntVec)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector(x == x ? rounded : rounded * 0 + 0x7fc0, HalfVec);
#endif
}

inline void store(at::BFloat16* p, Vec x) {
  const HalfVec bits = to_bfloat16(x);
  std::memcpy(p, &bits, sizeof(bits));
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)

// A mask of the first `count` lanes, for count <= LANES.
inline __mmask16 first_lanes(int64_t count) { return __mmask16((1u << count) - 1); }

inline Vec load_partial(const float* p, int64_t count, float fill) {
  return (Vec)_mm512_mask_loadu_ps((__m512)broadcast(fill), first_lanes(count), p);
}

inline Vec load_partial(const at::BFloat16* p, int64_t count, float fill) {
  const HalfVec filled = to_bfloat16(broadcast(fill));
  return (Vec)(zero_extend((HalfVec)_mm256_mask_loadu_epi16((__m256i)filled, first_lanes(count), p)) << 16);
}

inline void store_partial(float* p, Vec x, int64_t count) { _mm512_mask_storeu_ps(p, first_lanes(count), (__m512)x); }

inline void store_partial(at::BFloat16* p, Vec x, int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), (__m256i)to_bfloat16(x));
}

#else

template <typename T>
Vec load_partial(const T* p, int64_t count, float fill) {
  T part[LANES];
  std::fill(part, part + LANES, T(fill));
  std::copy(p, p + count, part);
  return load(part);
}

template <typename T>
void store_partial(T* p, Vec x, int64_t count) {
  T part[LANES];
  store(part, x);
  std::copy(part, part + count, p);
}

#endif

// load and store near the end of an array, of which `count` numbers are left: if these are fewer than LANES, the other
// lanes are loaded as `fill` and not stored.
template <typename T>
[[gnu::always_inline]] inline Vec load(const T* p, int64_t count, float fill = 0.0f) {
  return count >= LANES ? load(p) : load_partial(p, count, fill);
}

template <typename T>
[[gnu::always_inline]] inline void store(T* p, Vec x, int64_t count) {
  count >= LANES ? store(p, x) : store_partial(p, x, count);
}

inline float horizontal_sum(Vec x) {
  for (int32_t step = LANES / 2; step > 0; step /= 2) x += __builtin_shuffle(x, LANE ^ step);
  return x[0];
}

inline float horizontal_max(Vec x) {
  for (int32_t step = LANES / 2; step > 0; step /= 2) x = maximum(x, __builtin_shuffle(x, LANE ^ step));
  return x[0];
}

// Transposes a square of LANES x LANES words.
inline void transpose(UIntVec (&rows)[LANES]) {
  for (uint32_t step = 1; step < LANES; step *= 2) {
    UIntVec low, high;
    for (uint32_t c = 0; c < LANES; ++c) {
      low[c] = c & step ? LANES + c - step : c;
      high[c] = c & step ? LANES + c : c + step;
    }
    for (uint32_t i = 0; i < LANES; ++i) {
      if (i & step) continue;
      const UIntVec a = rows[i], b = rows[i + step];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + step] = __builtin_shuffle(a, b, high);
    }
  }
}

// e^x for x <= 0 with a relative error of about 1e-7; 0 below -87, where e^x leaves the normal range of float32; NaN
// for NaN.
inline Vec exp_nonpositive(Vec x) {
  const Vec clamped = maximum(x, broadcast(-87.0f));
  const IntVec n = __builtin_convertvector(clamped * 1.44269504f - 0.5f, IntVec);  // truncated: the nearest
  const Vec whole = __builtin_convertvector(n, Vec);
  const Vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // NaN where x is NaN, and so is the result
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Vec result = p * (Vec)((n + 127) << 23);
  return x < -87.0f ? Vec{} : result;
}

// Writes softmax(scale * in) of `size` numbers to `out`, which has room for padded(size) and may be `in`. All results are
// NaN if a number is NaN or infinite, or if all are -infinite: maximum() may lose a NaN, but the sum keeps it.
inline void softmax(const float* in, int64_t size, float scale, float* out) {
  Vec highest = broadcast(-INFINITE), sum = {};
  for (int64_t i = 0; i < size; i += LANES) highest = maximum(highest, load(in + i, size - i, -INFINITE));
  const float top = horizontal_max(highest);
  for (int64_t i = 0; i < size; i += LANES) {
    const Vec e = exp_nonpositive((load(in + i, size - i, -INFINITE) - top) * scale);
    sum += e;
    store(out + i, e);
  }
  const float inverse = 1.0f / horizontal_sum(sum);
  for (int64_t i = 0; i < size; i += LANES) store(out + i, load(out + i) * inverse);
}

// The axis of a matrix that a product sums over.
enum class InnerAxis { rows, columns };

}  // namespace nmt
