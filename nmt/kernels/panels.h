// Products of float32 rows with float32 weights, in whole vectors of 512 bits.
//
// The library that torch multiplies with (MKL) uses half of such a vector on processors that are not Intel's: this takes
// about half the time there, and the results are finished in the same pass. In vectors of 256 bits it is no faster.
//
// Shapes: M rows, I inputs, O outputs. Each panel of PANEL weights is transposed to (I, PANEL) before rows meet it.

#pragma once

#include "lanes.h"
#include "torch.h"

#include <algorithm>
#include <cstdint>
#include <memory>

namespace nmt {

// Whether `multiply_by_panels` is faster than torch on this processor.
inline bool gains_from_panels() {
#ifdef __AVX512F__
  static const bool gains = !__builtin_cpu_is("intel");
  return gains;
#else
  return false;
#endif
}

// 6 rows of sums with a panel stay in registers.
constexpr int64_t PANEL_VECTORS = REGISTERS / 8, PANEL = PANEL_VECTORS * LANES;

// Writes weights `o` to o + PANEL - 1 of W (O, I) as (I, PANEL), the last one again and again beyond O.
inline void transpose_panel(const float* weights, int64_t o, int64_t outputs, int64_t inputs, float* panel) {
  for (int64_t first = 0; first < PANEL; first += LANES) {
    for (int64_t i = 0; i < inputs; i += LANES) {
      UIntVec square[LANES];
      for (int64_t r = 0; r < LANES; ++r) {
        const float* row = weights + std::min(o + first + r, outputs - 1) * inputs;
        square[r] = (UIntVec)load(row + i, inputs - i);
      }
      transpose(square);
      for (int64_t r = 0; r < std::min(LANES, inputs - i); ++r) store(panel + (i + r) * PANEL + first, (Vec)square[r]);
    }
  }
}

// The products of R rows x (R, I) with a panel. They stay in registers only where the compiler is told to unroll.
template <int64_t R>
inline void multiply_panel(const float* x, int64_t inputs, const float* panel, Vec (&sums)[R][PANEL_VECTORS]) {
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int64_t v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = Vec{};
  for (int64_t i = 0; i < inputs; ++i, panel += PANEL) {
    Vec right[PANEL_VECTORS];
#pragma GCC unroll 8
    for (int64_t v = 0; v < PANEL_VECTORS; ++v) right[v] = load(panel + v * LANES);
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) {
      const Vec left = broadcast(x[r * inputs + i]);
#pragma GCC unroll 8
      for (int64_t v = 0; v < PANEL_VECTORS; ++v) sums[r][v] += left * right[v];
    }
  }
}

// out (M, O) = finish(x W^T) of x (M, I) and W (O, I); finish(r, c, sums, n) gives the n results of row r from column c on.
template <typename F>
void multiply_by_panels(const float* x, int64_t M, int64_t inputs, const float* weights, int64_t outputs, float* out,
                        const F& finish) {
  at::parallel_for(0, ceil_div(outputs, PANEL), GRAIN / (M * inputs + 1) + 1, [&](int64_t begin, int64_t end) {
    const auto panel = std::make_unique_for_overwrite<float[]>(inputs * PANEL);
    for (int64_t o = begin * PANEL; o < std::min(outputs, end * PANEL); o += PANEL) {
      transpose_panel(weights, o, outputs, inputs, panel.get());
      int64_t row = 0;
      const auto take = [&](auto count) {
        for (; row + count <= M; row += count) {
          Vec sums[count][PANEL_VECTORS];
          multiply_panel<count>(x + row * inputs, inputs, panel.get(), sums);
          for (int64_t r = 0; r < count; ++r) {
            for (int64_t v = 0, c = o; v < PANEL_VECTORS && c < outputs; ++v, c += LANES) {
              store(out + (row + r) * outputs + c, finish(row + r, c, sums[r][v], outputs - c), outputs - c);
            }
          }
        }
      };
      take(std::integral_constant<int64_t, 6>{});
      take(std::integral_constant<int64_t, 2>{});
      take(std::integral_constant<int64_t, 1>{});
    }
  });
}

}  // namespace nmt
