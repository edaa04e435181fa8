// Products of float32 rows with weights of 8 bits: on processors that multiply four pairs of such numbers and add them
// in one instruction (VNNI, of AVX-512 or of AVX), and on others with AVX-512 or AVX2 in three, whose sums of two
// products have 16 bits: the weights have 7 bits there, so that no sum overflows.
//
// The tiles of AMX multiply many rows by the same panels.
//
// Each row of x is divided by its largest magnitude and rounded to 8 bits, sums are exact, and one pass over them
// scales and finishes: all processors find the same numbers for the same weights. The definition in plain torch is
// nmt/layers/low_precision.py.
//
// Shapes: M rows, I inputs, O outputs. The weights lie in panels of PANEL outputs: place [p][i / WORD][o] of a panel
// holds WORD inputs from i on of output o, as the instructions take them.

#pragma once

#include "arguments.h"
#include "lanes.h"
#include "products.h"
#include "torch.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

namespace nmt {

constexpr int32_t MOST_UNITS = 127;  // of a number of a row
constexpr int32_t SHIFT = 128;       // added to the numbers of a row, which the instructions take without a sign

}  // namespace nmt

#ifdef __AVX512BW__
#define NMT_INT8 1

namespace nmt {

using Words = __m512i;          // words of four numbers that are multiplied at once, or sums of these products
constexpr int64_t VECTORS = 4;  // of a panel
constexpr int64_t ROWS = 6;     // whose sums with a panel stay in registers

// Writes the nearest whole numbers, plus SHIFT.
inline void store_rounded(uint8_t* p, Vec x) {
  const __m512i shifted = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)x), _mm512_set1_epi32(SHIFT));
  const __m128i bytes = _mm512_cvtusepi32_epi8(shifted);
  std::memcpy(p, &bytes, sizeof(bytes));
}

#ifdef __AVX512VNNI__

constexpr int32_t MOST_WEIGHT = 127;

// sums + the products of the numbers in `word` with those of each word of `weights`, added up.
inline Words add_products(Words sums, int32_t word, Words weights) {
  return _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(word), weights);
}

#else

constexpr int32_t MOST_WEIGHT = 64;  // 2 * 255 * 64 has 16 bits

inline Words add_products(Words sums, int32_t word, Words weights) {
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi32(word), weights);
  return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

#endif

}  // namespace nmt

#elif defined(__AVX2__) && !defined(__AVX512F__)
#define NMT_INT8 1

namespace nmt {

using Words = __m256i;
constexpr int64_t VECTORS = 2;
constexpr int64_t ROWS = 5;

inline void store_rounded(uint8_t* p, Vec x) {
  const __m256i shifted = _mm256_add_epi32(_mm256_cvtps_epi32((__m256)x), _mm256_set1_epi32(SHIFT));
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(halves, halves));
}

#ifdef __AVXVNNI__

constexpr int32_t MOST_WEIGHT = 127;

inline Words add_products(Words sums, int32_t word, Words weights) {
  return _mm256_dpbusd_avx_epi32(sums, _mm256_set1_epi32(word), weights);
}

#else

constexpr int32_t MOST_WEIGHT = 64;

inline Words add_products(Words sums, int32_t word, Words weights) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi32(word), weights);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#endif

}  // namespace nmt

#endif

#ifdef NMT_INT8

namespace nmt {

constexpr float SMALLEST_ROW = 1e-30f;  // a row of smaller numbers counts as 0

// Writes a row rounded to 8 bits, plus SHIFT, and returns the size of a unit: NaN where the row is not finite.
inline float round_row(const float* x, int64_t inputs, uint8_t* rounded) {
  Vec largest = {}, nothing = {};
  for (int64_t i = 0; i < inputs; i += LANES) {
    const Vec v = load(x + i, inputs - i);
    largest = maximum((Vec)((IntVec)v & 0x7fffffff), largest);
    nothing += v * 0.0f;
  }
  const float most = horizontal_max(largest), per_unit = most > SMALLEST_ROW ? float(MOST_UNITS) / most : 0.0f;
  for (int64_t i = 0; i < inputs; i += LANES) {
    store_rounded(rounded + i, load(x + i, inputs - i) * per_unit);
  }
  return most / float(MOST_UNITS) + horizontal_sum(nothing);
}

// What `pack_int8` has made of a matrix (O, I): its panels, SHIFT times the sum of each row, which is subtracted from
// the sums, and the scale of each row.
class Int8Matrix {
 public:
  static constexpr int64_t WORD = sizeof(int32_t), SUMS = sizeof(Words) / sizeof(int32_t);
  static constexpr int64_t PANEL = VECTORS * SUMS;
  static constexpr int64_t MOST_INPUTS = 1 << 16;  // for which no sum overflows
  static constexpr int64_t CACHED = 24 << 10;      // bytes of rounded rows that stay in the first cache for all panels

  const int64_t outputs, inputs, depth, num_panels;

  Int8Matrix(int64_t outputs, int64_t inputs)
      : outputs(outputs), inputs(inputs), depth(padded(inputs, WORD)), num_panels(ceil_div(outputs, PANEL)) {
    TORCH_CHECK(inputs >= 0 && inputs <= MOST_INPUTS, "inputs must be from 0 to ", MOST_INPUTS, ", but are ", inputs);
    TORCH_CHECK(outputs >= 0 && outputs <= MAX_SIZE, "outputs must be from 0 to ", MAX_SIZE, ", but are ", outputs);
  }

  int64_t bytes() const { return scales_at() + num_panels * PANEL * sizeof(float); }
  int64_t shifts_at() const { return num_panels * PANEL * depth; }
  int64_t scales_at() const { return shifts_at() + num_panels * PANEL * sizeof(int32_t); }

  // out (M, O) = finish(x W^T) of x (M, I); finish(r, c, sums, n) gives the n results of row r from column c on.
  template <typename F>
  void multiply(const int8_t* packed, const float* x, int64_t M, float* out, const F& finish) const {
    const auto rounded = std::make_unique_for_overwrite<uint8_t[]>(padded(M, BLOCK) * depth + LANES);
    const auto units = std::make_unique_for_overwrite<float[]>(M);
    // Whole vectors are written, if need be over the beginning of the next row, which then must come later.
    const int64_t grain = depth % LANES == 0 ? GRAIN / (depth + 1) + 1 : M;
    at::parallel_for(0, M, grain, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) units[m] = round_row(x + m * inputs, inputs, rounded.get() + m * depth);
    });
#ifdef NMT_TILES
    if (M >= TILED_ROWS && depth % TILE_ROW == 0 && has_tiles()) {
      multiply_in_tiles(packed, rounded.get(), units.get(), M, out, finish);
      return;
    }
#endif
    const int64_t together = std::max<int64_t>(1, CACHED / (ROWS * depth + 1)) * ROWS;
    at::parallel_for(0, num_panels, GRAIN / (M * depth + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t first = 0; first < M; first += together) {
        const int64_t last = std::min(M, first + together);
        for (int64_t p = begin; p < end; ++p) {
          int64_t row = first;
          const auto take = [&](auto count) {
            for (; row + count <= last; row += count) {
              alignas(64) int32_t sums[count][PANEL];
              for (int64_t r = 0; r < count; ++r) prefetch<true>(out + (row + r) * outputs + p * PANEL, PANEL);
              multiply_rows<count>(rounded.get() + row * depth, packed + p * PANEL * depth, sums);
              for (int64_t r = 0; r < count; ++r)
                write(packed, sums[r], units[row + r], row + r, p * PANEL, out, finish);
            }
          };
          take(std::integral_constant<int64_t, ROWS>{});
          take(std::integral_constant<int64_t, 2>{});
          take(std::integral_constant<int64_t, 1>{});
        }
      }
    });
  }

 private:
#ifdef NMT_TILES
  static constexpr int64_t TILED_ROWS = 5;  // from which on tiles are faster

  // The product of rows in tiles. A panel has two blocks of outputs, whose words lie as a right factor's do.
  template <typename F>
  void multiply_in_tiles(const int8_t* packed, const uint8_t* rounded, const float* units, int64_t M, float* out,
                         const F& finish) const {
    static_assert(PANEL == 2 * BLOCK);
    constexpr int64_t row = PANEL * WORD, next = EDGE * row;  // bytes
    const auto panel = [&](int64_t p, int64_t d) {
      const int8_t* first = packed + p / 2 * PANEL * depth + p % 2 * BLOCK * WORD + d * next;
      return Panel{first, first + EDGE * WORD, row, next};
    };
    const auto left = [&](int64_t top) {
      const uint8_t* block = rounded + top * depth;
      const int64_t rows_left = std::max<int64_t>(0, std::min(BLOCK, M - top - BLOCK));
      return LeftBlock{{block, block + EDGE * depth, depth, TILE_ROW},
                       {block + BLOCK * depth, 64, rows_left * depth / 64}};
    };
    const auto scaled = [&, this](int64_t r, int64_t c, Vec sums, int64_t n) {
      return finish(r, c, values_of(packed, (IntVec)sums, units[r], c), n);
    };
    multiply_blocks<Factors::bytes>(M, outputs, depth / TILE_ROW, [&] { return left; }, panel, out, scaled);
  }
#endif

  // The results that LANES sums from output `o` on stand for, of a row whose unit is `unit`.
  Vec values_of(const int8_t* packed, IntVec sums, float unit, int64_t o) const {
    IntVec shift;
    Vec scale;
    std::memcpy(&shift, packed + shifts_at() + o * sizeof(int32_t), sizeof(shift));
    std::memcpy(&scale, packed + scales_at() + o * sizeof(float), sizeof(scale));
    return __builtin_convertvector(sums - shift, Vec) * (scale * unit);
  }

  // Multiplies R rows with a panel. The sums stay in registers only where the compiler is told to unroll the loops.
  template <int64_t R>
  void multiply_rows(const uint8_t* left, const int8_t* panel, int32_t (&found)[R][PANEL]) const {
    Words sums[R][VECTORS];
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int64_t v = 0; v < VECTORS; ++v) sums[r][v] = Words{};
    for (int64_t i = 0; i < depth; i += WORD, panel += PANEL * WORD) {
      Words right[VECTORS];
#pragma GCC unroll 8
      for (int64_t v = 0; v < VECTORS; ++v) std::memcpy(&right[v], panel + v * sizeof(Words), sizeof(Words));
#pragma GCC unroll 8
      for (int64_t r = 0; r < R; ++r) {
        int32_t word;
        std::memcpy(&word, left + r * depth + i, sizeof(word));
#pragma GCC unroll 8
        for (int64_t v = 0; v < VECTORS; ++v) sums[r][v] = add_products(sums[r][v], word, right[v]);
      }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int64_t v = 0; v < VECTORS; ++v) std::memcpy(found[r] + v * SUMS, &sums[r][v], sizeof(Words));
  }

  // Writes the results of a row and a panel whose first output is `o`; a unit of the row is `unit`.
  template <typename F>
  void write(const int8_t* packed, const int32_t* sums, float unit, int64_t row, int64_t o, float* out,
             const F& finish) const {
    for (const int64_t last = std::min(outputs, o + PANEL); o < last; o += LANES, sums += LANES) {
      IntVec exact;
      std::memcpy(&exact, sums, sizeof(exact));
      const Vec y = values_of(packed, exact, unit, o);
      store(out + row * outputs + o, finish(row, o, y, last - o), last - o);
    }
  }
};

}  // namespace nmt

#endif
