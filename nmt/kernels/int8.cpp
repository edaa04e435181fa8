// The product of search with 8-bit weights, for processors that multiply and add such numbers in one instruction (VNNI).
//
// Each row of x is divided by its largest magnitude and rounded to 8 bits, sums are exact, and one pass over them
// scales, adds the bias and applies ReLU. The definition in plain torch is nmt/layers/low_precision.py.
//
// Shapes: M rows, I inputs, O outputs. The right factor lies in panels of PANEL outputs: word [p][i / 4][o] of a panel
// holds inputs i to i + 3 of output o, as the instruction takes them.

#include "arguments.h"
#include "lanes.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define NMT_INT8 1
#endif

namespace {

using namespace nmt;
using at::Tensor;

bool has_int8() {
#ifdef NMT_INT8
  return true;
#else
  return false;
#endif
}

#ifdef NMT_INT8

constexpr int64_t WORD = 4, VECTORS = 4, PANEL = VECTORS * LANES, MOST_ROWS = 6;
constexpr int32_t SHIFT = 128;  // added to the left factor, which the instruction takes without a sign
constexpr float LARGEST = 127.0f, SMALLEST = 1e-30f;  // of the units of a row, and of its numbers: less counts as 0
constexpr int64_t MOST_INPUTS = 1 << 16;             // for which no sum overflows

// The panels of weight (O, I) int8, and SHIFT times the sum of each of its rows: what is subtracted from the sums.
std::tuple<Tensor, Tensor> pack_int8(const Tensor& weight) {
  const auto [outputs, inputs] = sizes_of<2>("weight", weight);
  TORCH_CHECK(inputs <= MOST_INPUTS, "weight must have at most ", MOST_INPUTS, " inputs, but has ", inputs);
  const int8_t* w = data_of<int8_t>("weight", weight, {outputs, inputs});
  const int64_t depth = padded(inputs, WORD);
  Tensor panels = at::zeros({ceil_div(outputs, PANEL), depth / WORD, PANEL, WORD}, weight.options());
  Tensor shifts = at::zeros({padded(outputs, PANEL)}, weight.options().dtype(at::kInt));
  int8_t* packed = panels.data_ptr<int8_t>();
  int32_t* shift = shifts.data_ptr<int32_t>();
  for (int64_t o = 0; o < outputs; ++o) {
    int8_t* panel = packed + o / PANEL * PANEL * depth + o % PANEL * WORD;
    for (int64_t i = 0; i < inputs; ++i) {
      panel[i / WORD * PANEL * WORD + i % WORD] = w[o * inputs + i];
      shift[o] += SHIFT * w[o * inputs + i];
    }
  }
  return {panels, shifts};
}

// Writes a row rounded to 8 bits, plus SHIFT, and returns the size of a unit: NaN where the row is not finite.
float round_row(const float* x, int64_t inputs, uint8_t* rounded) {
  Vec16 largest = {}, nothing = {};
  for (int64_t i = 0; i < inputs; i += LANES) {
    const Vec16 v = load(x + i, inputs - i);
    largest = maximum((Vec16)((Int32x16)v & 0x7fffffff), largest);
    nothing += v * 0.0f;
  }
  const float most = horizontal_max(largest), per_unit = most > SMALLEST ? LARGEST / most : 0.0f;
  for (int64_t i = 0; i < inputs; i += LANES) {
    const __m512i units = _mm512_cvtps_epi32((__m512)(load(x + i, inputs - i) * per_unit));
    const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_add_epi32(units, _mm512_set1_epi32(SHIFT)));
    std::memcpy(rounded + i, &bytes, sizeof(bytes));
  }
  return most / LARGEST + horizontal_sum(nothing);
}

// What turns sums into results: for each output a scale, a sum to subtract, and perhaps a bias; then perhaps ReLU.
struct Results {
  const float *scales, *bias;
  const int32_t* shifts;
  float* out;
  int64_t outputs;
  bool relu;

  // Writes the results of a row and a panel whose first output is `o`.
  void store_sums(const int32_t* sums, float unit, int64_t row, int64_t o) const {
    for (int64_t last = std::min(outputs, o + PANEL); o < last; o += LANES, sums += LANES) {
      const int64_t n = last - o;
      const __m512i exact = _mm512_sub_epi32(_mm512_load_si512(sums), _mm512_loadu_si512(shifts + o));
      Vec16 y = (Vec16)_mm512_cvtepi32_ps(exact) * (load(scales + o, n) * unit);
      if (bias != nullptr) y += load(bias + o, n);
      if (relu) y = y < 0.0f ? Vec16{} : y;  // NaN stays
      store(out + row * outputs + o, y, n);
    }
  }
};

// Multiplies R rows with a panel. The sums stay in registers only where the compiler is told to unroll the loops.
template <int64_t R>
void multiply_rows(const uint8_t* rows, const float* units, int64_t row, int64_t depth, const int8_t* panel,
                   int64_t first_output, const Results& results) {
  __m512i sums[R][VECTORS];
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int64_t v = 0; v < VECTORS; ++v) sums[r][v] = _mm512_setzero_si512();
  const uint8_t* left = rows + row * depth;
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
  alignas(64) int32_t found[R][PANEL];
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int64_t v = 0; v < VECTORS; ++v) _mm512_store_si512(found[r] + v * LANES, sums[r][v]);
  for (int64_t r = 0; r < R; ++r) results.store_sums(found[r], units[row + r], row + r, first_output);
}

// x (M, I) times weights that pack_int8 has packed, times `scales` (O), plus bias (O), then ReLU where asked for: (M, O).
Tensor int8_linear(const Tensor& x, const Tensor& panels, const Tensor& shifts, const Tensor& scales,
                   const std::optional<Tensor>& bias, bool relu) {
  const auto [rows, inputs] = sizes_of<2>("x", x);
  const int64_t outputs = sizes_of<1>("scales", scales)[0], depth = padded(inputs, WORD);
  const int64_t num_panels = ceil_div(outputs, PANEL);
  const float* in = data_of<float>("x", x, {rows, inputs});
  const int8_t* packed = data_of<int8_t>("panels", panels, {num_panels, depth / WORD, PANEL, WORD});
  Tensor out = at::empty({rows, outputs}, x.options());
  const Results results{data_of<float>("scales", scales, {outputs}), data_of<float>("bias", bias, {outputs}),
                        data_of<int32_t>("shifts", shifts, {num_panels * PANEL}), out.data_ptr<float>(), outputs, relu};
  std::vector<uint8_t> rounded(rows * depth + LANES);  // whole vectors are written: rows one after the other
  std::vector<float> units(rows);
  for (int64_t m = 0; m < rows; ++m) units[m] = round_row(in + m * inputs, inputs, rounded.data() + m * depth);
  at::parallel_for(0, num_panels, GRAIN / (rows * depth + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int8_t* panel = packed + p * PANEL * depth;
      const auto multiply = [&](auto count, int64_t row) {
        multiply_rows<count>(rounded.data(), units.data(), row, depth, panel, p * PANEL, results);
      };
      int64_t row = 0;
      for (; row + MOST_ROWS <= rows; row += MOST_ROWS) multiply(std::integral_constant<int64_t, MOST_ROWS>{}, row);
      for (; row + 2 <= rows; row += 2) multiply(std::integral_constant<int64_t, 2>{}, row);
      if (row < rows) multiply(std::integral_constant<int64_t, 1>{}, row);
    }
  });
  return out;
}

#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def("has_int8() -> bool", &has_int8);
#ifdef NMT_INT8
  m.def("pack_int8(Tensor weight) -> (Tensor, Tensor)", &pack_int8);
  m.def("int8_linear(Tensor x, Tensor panels, Tensor shifts, Tensor scales, Tensor? bias, bool relu) -> Tensor",
        &int8_linear);
#endif
}
