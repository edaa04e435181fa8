// Vectors of 16 float32 numbers, which all kernels compute with, whatever the type in memory.
//
// They are vector extensions of the compiler, which splits them on a processor whose own vectors are shorter.
// Intrinsics are used only where the compiler finds no good instructions.

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
typedef float Vec16 __attribute__((vector_size(64)));
typedef int32_t Int32x16 __attribute__((vector_size(64)));
typedef uint32_t UInt32x16 __attribute__((vector_size(64)));
typedef uint16_t UInt16x16 __attribute__((vector_size(32)));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

constexpr int64_t GRAIN = 1 << 14;  // elements for which starting a thread pays

// The number of groups of `unit` elements that hold `size` elements.
inline int64_t ceil_div(int64_t size, int64_t unit) { return (size + unit - 1) / unit; }

// `size` rounded up to a multiple of `unit`.
inline int64_t padded(int64_t size, int64_t unit = LANES) { return ceil_div(size, unit) * unit; }

inline Vec16 broadcast(float x) { return x - Vec16{}; }
inline Vec16 maximum(Vec16 a, Vec16 b) { return a > b ? a : b; }  // b where a or b is NaN

inline Vec16 load(const float* p) {
  Vec16 x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

inline void store(float* p, Vec16 x) { std::memcpy(p, &x, sizeof(x)); }

inline UInt32x16 zero_extend(UInt16x16 x) {
#ifdef __AVX512F__
  return (UInt32x16)_mm512_cvtepu16_epi32((__m256i)x);  // one instruction, where the compiler takes several
#else
  return __builtin_convertvector(x, UInt32x16);
#endif
}

inline Vec16 load(const at::BFloat16* p) {
  UInt16x16 bits;
  std::memcpy(&bits, p, sizeof(bits));
  return (Vec16)(zero_extend(bits) << 16);
}

// The bits of the nearest bfloat16 numbers; ties go to the even one.
inline UInt16x16 to_bfloat16(Vec16 x) {
#ifdef __AVX512BF16__
  return (UInt16x16)_mm512_cvtneps_pbh((__m512)x);
#else
  const UInt32x16 bits = (UInt32x16)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return __builtin_convertvector(x == x ? rounded : rounded * 0 + 0x7fc0, UInt16x16);
#endif
}

inline void store(at::BFloat16* p, Vec16 x) {
  const UInt16x16 bits = to_bfloat16(x);
  std::memcpy(p, &bits, sizeof(bits));
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)

// A mask of the first `count` lanes, for count <= LANES.
inline __mmask16 first_lanes(int64_t count) { return __mmask16((1u << count) - 1); }

inline Vec16 load_partial(const float* p, int64_t count, float fill) {
  return (Vec16)_mm512_mask_loadu_ps((__m512)broadcast(fill), first_lanes(count), p);
}

inline Vec16 load_partial(const at::BFloat16* p, int64_t count, float fill) {
  const UInt16x16 filled = to_bfloat16(broadcast(fill));
  return (Vec16)(zero_extend((UInt16x16)_mm256_mask_loadu_epi16((__m256i)filled, first_lanes(count), p)) << 16);
}

inline void store_partial(float* p, Vec16 x, int64_t count) { _mm512_mask_storeu_ps(p, first_lanes(count), (__m512)x); }

inline void store_partial(at::BFloat16* p, Vec16 x, int64_t count) {
  _mm256_mask_storeu_epi16(p, first_lanes(count), (__m256i)to_bfloat16(x));
}

#else

template <typename T>
Vec16 load_partial(const T* p, int64_t count, float fill) {
  T part[LANES];
  std::fill(part, part + LANES, T(fill));
  std::copy(p, p + count, part);
  return load(part);
}

template <typename T>
void store_partial(T* p, Vec16 x, int64_t count) {
  T part[LANES];
  store(part, x);
  std::copy(part, part + count, p);
}

#endif

// load and store near the end of an array, of which `count` numbers are left: if these are fewer than LANES, the other
// lanes are loaded as `fill` and not stored.
template <typename T>
[[gnu::always_inline]] inline Vec16 load(const T* p, int64_t count, float fill = 0.0f) {
  return count >= LANES ? load(p) : load_partial(p, count, fill);
}

template <typename T>
[[gnu::always_inline]] inline void store(T* p, Vec16 x, int64_t count) {
  count >= LANES ? store(p, x) : store_partial(p, x, count);
}

// Permutations that swap lanes 8, 4, 2 and 1 apart.
constexpr Int32x16 LANE_SWAPS[] = {
    {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7},
    {4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11},
    {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13},
    {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14},
};

inline float horizontal_sum(Vec16 x) {
  for (const Int32x16& swap : LANE_SWAPS) x += __builtin_shuffle(x, swap);
  return x[0];
}

inline float horizontal_max(Vec16 x) {
  for (const Int32x16& swap : LANE_SWAPS) x = maximum(x, __builtin_shuffle(x, swap));
  return x[0];
}

// Transposes a square of 16 x 16 words.
inline void transpose16(UInt32x16 (&rows)[LANES]) {
  for (uint32_t step = 1; step < LANES; step *= 2) {
    UInt32x16 low, high;
    for (uint32_t c = 0; c < LANES; ++c) {
      low[c] = c & step ? LANES + c - step : c;
      high[c] = c & step ? LANES + c : c + step;
    }
    for (uint32_t i = 0; i < LANES; ++i) {
      if (i & step) continue;
      const UInt32x16 a = rows[i], b = rows[i + step];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + step] = __builtin_shuffle(a, b, high);
    }
  }
}

// e^x for x <= 0 with a relative error of about 1e-7; 0 below -87, where e^x leaves the normal range of float32; NaN
// for NaN.
inline Vec16 exp_nonpositive(Vec16 x) {
  const Vec16 clamped = maximum(x, broadcast(-87.0f));
  const Int32x16 n = __builtin_convertvector(clamped * 1.44269504f - 0.5f, Int32x16);  // truncated: the nearest
  const Vec16 whole = __builtin_convertvector(n, Vec16);
  const Vec16 r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // NaN where x is NaN, and so is the result
  Vec16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Vec16 result = p * (Vec16)((n + 127) << 23);
  return x < -87.0f ? Vec16{} : result;
}

// Writes softmax(scale * in) of `size` numbers to `out`, which has room for padded(size) and may be `in`. All results are
// NaN if a number is NaN or infinite, or if all are -infinite: maximum() may lose a NaN, but the sum keeps it.
inline void softmax(const float* in, int64_t size, float scale, float* out) {
  Vec16 highest = broadcast(-INFINITE), sum = {};
  for (int64_t i = 0; i < size; i += LANES) highest = maximum(highest, load(in + i, size - i, -INFINITE));
  const float top = horizontal_max(highest);
  for (int64_t i = 0; i < size; i += LANES) {
    const Vec16 e = exp_nonpositive((load(in + i, size - i, -INFINITE) - top) * scale);
    sum += e;
    store(out + i, e);
  }
  const float inverse = 1.0f / horizontal_sum(sum);
  for (int64_t i = 0; i < size; i += LANES) store(out + i, load(out + i) * inverse);
}

// The axis of a matrix that a product sums over.
enum class InnerAxis { rows, columns };

}  // namespace nmt
