// Products of float32 rows with weights of 8 bits, for processors that multiply and add such numbers in one instruction
// (VNNI).
//
// Each row of x is divided by its largest magnitude and rounded to 8 bits, sums are exact, and one pass over them
// scales and finishes. The definition in plain torch is nmt/layers/low_precision.py.
//
// Shapes: M rows, I inputs, O outputs. The weights lie in panels of PANEL outputs: word [p][i / 4][o] of a panel holds
// inputs i to i + 3 of output o, as the instruction takes them.

#pragma once

#include "arguments.h"
#include "lanes.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define NMT_INT8 1

namespace nmt {

constexpr float MOST_UNITS = 127.0f;    // of a row
constexpr float SMALLEST_ROW = 1e-30f;  // a row of smaller numbers counts as 0
constexpr int32_t SHIFT = 128;          // added to the left factor, which the instruction takes without a sign

// Writes a row rounded to 8 bits, plus SHIFT, and returns the size of a unit: NaN where the row is not finite.
inline float round_row(const float* x, int64_t inputs, uint8_t* rounded) {
  Vec16 largest = {}, nothing = {};
  for (int64_t i = 0; i < inputs; i += LANES) {
    const Vec16 v = load(x + i, inputs - i);
    largest = maximum((Vec16)((Int32x16)v & 0x7fffffff), largest);
    nothing += v * 0.0f;
  }
  const float most = horizontal_max(largest), per_unit = most > SMALLEST_ROW ? MOST_UNITS / most : 0.0f;
  for (int64_t i = 0; i < inputs; i += LANES) {
    const __m512i units = _mm512_cvtps_epi32((__m512)(load(x + i, inputs - i) * per_unit));
    const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_add_epi32(units, _mm512_set1_epi32(SHIFT)));
    std::memcpy(rounded + i, &bytes, sizeof(bytes));
  }
  return most / MOST_UNITS + horizontal_sum(nothing);
}

// What `pack_int8` has made of a matrix (O, I): its panels, SHIFT times the sum of each row, which is subtracted from
// the sums, and the scale of each row.
class Int8Matrix {
 public:
  static constexpr int64_t WORD = 4, VECTORS = 4, PANEL = VECTORS * LANES;
  static constexpr int64_t MOST_INPUTS = 1 << 16;  // for which no sum overflows

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
    const auto rounded = std::make_unique_for_overwrite<uint8_t[]>(M * depth + LANES);  // whole vectors are written
    const auto units = std::make_unique_for_overwrite<float[]>(M);
    for (int64_t m = 0; m < M; ++m) units[m] = round_row(x + m * inputs, inputs, rounded.get() + m * depth);
    at::parallel_for(0, num_panels, GRAIN / (M * depth + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        int64_t row = 0;
        const auto take = [&](auto count) {
          for (; row + count <= M; row += count) {
            alignas(64) int32_t sums[count][PANEL];
            multiply_rows<count>(rounded.get() + row * depth, packed + p * PANEL * depth, sums);
            for (int64_t r = 0; r < count; ++r) write(packed, sums[r], units[row + r], row + r, p * PANEL, out, finish);
          }
        };
        take(std::integral_constant<int64_t, 6>{});
        take(std::integral_constant<int64_t, 2>{});
        take(std::integral_constant<int64_t, 1>{});
      }
    });
  }

 private:
  // Multiplies R rows with a panel. The sums stay in registers only where the compiler is told to unroll the loops.
  template <int64_t R>
  void multiply_rows(const uint8_t* left, const int8_t* panel, int32_t (&found)[R][PANEL]) const {
    __m512i sums[R][VECTORS];
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int64_t v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_setzero_si512();
    for (int64_t i = 0; i < depth; i += WORD, panel += PANEL * WORD) {
      __m512i right[VECTORS];
#pragma GCC unroll 8
      for (int64_t v = 0; v < VECTORS; ++v) right[v] = _mm512_loadu_si512(panel + v * LANES * WORD);
#pragma GCC unroll 8
      for (int64_t r = 0; r < R; ++r) {
        int32_t word;
        std::memcpy(&word, left + r * depth + i, sizeof(word));
        const __m512i factor = _mm512_set1_epi32(word);
#pragma GCC unroll 8
        for (int64_t v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_dpbusd_epi32(sums[r][v], factor, right[v]);
      }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int64_t v = 0; v < VECTORS; ++v) _mm512_store_si512(found[r] + v * LANES, sums[r][v]);
  }

  // Writes the results of a row and a panel whose first output is `o`; a unit of the row is `unit`.
  template <typename F>
  void write(const int8_t* packed, const int32_t* sums, float unit, int64_t row, int64_t o, float* out,
             const F& finish) const {
    const int8_t *const shifts = packed + shifts_at(), *const scales = packed + scales_at();
    for (const int64_t last = std::min(outputs, o + PANEL); o < last; o += LANES, sums += LANES) {
      const __m512i exact = _mm512_sub_epi32(_mm512_load_si512(sums), _mm512_loadu_si512(shifts + o * sizeof(int32_t)));
      const Vec16 scale = (Vec16)_mm512_loadu_ps(scales + o * sizeof(float));
      const Vec16 y = (Vec16)_mm512_cvtepi32_ps(exact) * (scale * unit);
      store(out + row * outputs + o, finish(row, o, y, last - o), last - o);
    }
  }
};

}  // namespace nmt

#endif
