// The instructions of AVX-512 and AMX that the kernels name, in plain C++: with `-include` of this file, any processor
// with AVX2 computes what the kernels do on one with tiles, slowly. Tiny numbers count as zero where Intel's manual says
// so; the order in which the products of tiles are added up is not that of the processor. With `-DNMT_SKYLAKE` the
// processor is one of the first with AVX-512: without its later instructions (VNNI, BF16) and without tiles. With
// `-DNMT_ALDERLAKE` it is one of today's for desks and laptops: without AVX-512, but with the VNNI of AVX.

#pragma once

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

template <typename T, typename From>
inline T bits(const From& from) {
  static_assert(sizeof(T) == sizeof(From));
  T to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T, int N>
struct Lanes {
  T at[N];
};

using Words = Lanes<int32_t, 16>;
using Floats = Lanes<float, 16>;
using Halves = Lanes<uint16_t, 16>;

template <typename F>
inline __m512i words(const F& f) {
  Words out;
  for (int i = 0; i < 16; ++i) out.at[i] = int32_t(f(i));
  return bits<__m512i>(out);
}

inline __m512i add(__m512i a, __m512i b) {
  const auto x = bits<Words>(a), y = bits<Words>(b);
  return words([&](int i) { return uint32_t(x.at[i]) + uint32_t(y.at[i]); });
}

inline __m512i set(int32_t word) {
  return words([&](int) { return word; });
}

inline __m512i nearest(__m512 a) {
  const auto x = bits<Floats>(a);
  return words([&](int i) {
    const float whole = std::nearbyint(x.at[i]);
    return whole >= -0x1p31f && whole < 0x1p31f ? int32_t(whole) : INT32_MIN;
  });
}

inline __m128i saturated_bytes(__m512i a) {
  const auto x = bits<Lanes<uint32_t, 16>>(a);
  Lanes<uint8_t, 16> out;
  for (int i = 0; i < 16; ++i) out.at[i] = uint8_t(std::min(x.at[i], 255u));
  return bits<__m128i>(out);
}

inline __m512i set_halves(int16_t half) { return set(uint32_t(uint16_t(half)) * 0x10001u); }

inline __m512i sums_of_two_products(__m512i left, __m512i right) {
  const auto a = bits<Lanes<uint8_t, 64>>(left);
  const auto b = bits<Lanes<int8_t, 64>>(right);
  Lanes<int16_t, 32> out;
  for (int i = 0; i < 32; ++i) {
    const int sum = a.at[2 * i] * b.at[2 * i] + a.at[2 * i + 1] * b.at[2 * i + 1];
    out.at[i] = int16_t(std::clamp(sum, -32768, 32767));
  }
  return bits<__m512i>(out);
}

inline __m512i products_of_halves(__m512i left, __m512i right) {
  const auto a = bits<Lanes<int16_t, 32>>(left), b = bits<Lanes<int16_t, 32>>(right);
  return words([&](int i) {
    uint32_t sum = 0;
    for (int j = 2 * i; j < 2 * i + 2; ++j) sum += uint32_t(int32_t(a.at[j]) * int32_t(b.at[j]));
    return sum;
  });
}

template <typename V>
inline V add_products_of_bytes(V sums, V left, V right) {
  auto s = bits<Lanes<uint32_t, sizeof(V) / 4>>(sums);
  const auto a = bits<Lanes<uint8_t, sizeof(V)>>(left);
  const auto b = bits<Lanes<int8_t, sizeof(V)>>(right);
  for (size_t i = 0; i < sizeof(V); ++i) s.at[i / 4] += uint32_t(int32_t(a.at[i]) * int32_t(b.at[i]));
  return bits<V>(s);
}

inline __m512i zero_extended(__m256i a) {
  const auto x = bits<Halves>(a);
  return words([&](int i) { return x.at[i]; });
}

inline float without_tiny(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

inline __m256bh rounded(__m512 a) {
  const auto x = bits<Floats>(a);
  Halves out;
  for (int i = 0; i < 16; ++i) {
    const uint32_t word = bits<uint32_t>(without_tiny(x.at[i]));
    out.at[i] = uint16_t(x.at[i] != x.at[i] ? word >> 16 | 0x40 : (word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  return bits<__m256bh>(out);
}

// `otherwise` where the mask has no bit: memory there is not read.
template <typename V, typename T>
inline V masked_load(V otherwise, __mmask16 mask, const void* p) {
  auto out = bits<Lanes<T, 16>>(otherwise);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) std::memcpy(&out.at[i], static_cast<const T*>(p) + i, sizeof(T));
  }
  return bits<V>(out);
}

template <typename V, typename T>
inline void masked_store(void* p, __mmask16 mask, V x) {
  const auto in = bits<Lanes<T, 16>>(x);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) std::memcpy(static_cast<T*>(p) + i, &in.at[i], sizeof(T));
  }
}

struct Tiles {
  bool configured;
  uint8_t config[64];
  alignas(64) uint8_t rows[8][16][64];
};

inline thread_local Tiles tiles;

inline void load_config(const void* p) {
  std::memcpy(tiles.config, p, 64);
  tiles.configured = tiles.config[0] == 1;
  std::memset(tiles.rows, 0, sizeof(tiles.rows));
}

inline void store_config(void* p) { std::memcpy(p, tiles.config, 64); }

// Ends the process as an instruction without a configuration does.
inline auto& tile(int number) {
  if (!tiles.configured) __builtin_trap();
  return tiles.rows[number];
}

inline void zero(int to) { std::memset(tile(to), 0, sizeof(tiles.rows[0])); }

inline void load_tile(int to, const void* p, int64_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(tile(to)[r], static_cast<const char*>(p) + r * stride, 64);
}

inline void store_tile(int from, void* p, int64_t stride) {
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(p) + r * stride, tile(from)[r], 64);
}

inline void add_products_of_tiles(int sums, int left, int right) {
  for (int m = 0; m < 16; ++m) {
    float row[16];
    std::memcpy(row, tile(sums)[m], 64);
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 16; ++k) {
        const auto number = [&](const uint8_t* words, int i) {
          uint32_t word;
          std::memcpy(&word, words + 4 * i, 4);
          return without_tiny(bits<float>(half ? word & 0xffff0000u : word << 16));
        };
        const float factor = number(tile(left)[m], k);
        for (int n = 0; n < 16; ++n) row[n] = without_tiny(std::fma(factor, number(tile(right)[k], n), row[n]));
      }
    }
    std::memcpy(tile(sums)[m], row, 64);
  }
}

inline void add_products_of_byte_tiles(int sums, int left, int right) {
  for (int m = 0; m < 16; ++m) {
    uint32_t row[16];
    std::memcpy(row, tile(sums)[m], 64);
    for (int n = 0; n < 16; ++n) {
      for (int k = 0; k < 64; ++k) {
        row[n] += uint32_t(int32_t(tile(left)[m][k]) * int32_t(int8_t(tile(right)[k / 4][4 * n + k % 4])));
      }
    }
    std::memcpy(tile(sums)[m], row, 64);
  }
}

}  // namespace emulated

#ifdef NMT_ALDERLAKE
#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 emulated::add_products_of_bytes<__m256i>
#else
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#ifndef NMT_SKYLAKE
#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#endif

#define _mm512_add_epi32 emulated::add
#define _mm512_set1_epi32 emulated::set
#define _mm512_cvtps_epi32 emulated::nearest
#define _mm512_cvtusepi32_epi8 emulated::saturated_bytes
#define _mm512_dpbusd_epi32 emulated::add_products_of_bytes<__m512i>
#define _mm512_set1_epi16 emulated::set_halves
#define _mm512_maddubs_epi16 emulated::sums_of_two_products
#define _mm512_madd_epi16 emulated::products_of_halves
#define _mm512_cvtepu16_epi32 emulated::zero_extended
#define _mm512_cvtneps_pbh emulated::rounded
#define _mm512_mask_loadu_ps emulated::masked_load<__m512, float>
#define _mm512_mask_storeu_ps emulated::masked_store<__m512, float>
#define _mm256_mask_loadu_epi16 emulated::masked_load<__m256i, uint16_t>
#define _mm256_maskz_loadu_epi16(mask, p) emulated::masked_load<__m256i, uint16_t>(__m256i{}, mask, p)
#define _mm256_mask_storeu_epi16 emulated::masked_store<__m256i, uint16_t>

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig emulated::load_config
#define _tile_storeconfig emulated::store_config
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load_tile
#define _tile_stored emulated::store_tile
#define _tile_dpbf16ps emulated::add_products_of_tiles
#define _tile_dpbusd emulated::add_products_of_byte_tiles

#define syscall(...) 0  // Linux grants the tiles
#endif
