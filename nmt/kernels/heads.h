// Products of the small matrices of one attention head: on the tiles of AMX for bfloat16, otherwise in float32.

#pragma once

#include "lanes.h"
#include "packing.h"

#include <memory>
#include <type_traits>

namespace nmt {

// A matrix whose rows are dense and lie `stride` numbers apart.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride, rows, cols;
};

// out (ROWS, cols) = a (ROWS, inner) b (inner, cols). Elements of a lie `row` and `col` apart, rows of b `ld_b` and
// rows of out `ld`; `cols` is a multiple of LANES.
template <int64_t ROWS>
[[gnu::noinline]] inline void product_of_rows(const float* a, int64_t row, int64_t col, const float* b, int64_t ld_b,
                                              float* out, int64_t ld, int64_t inner, int64_t cols) {
  for (int64_t j = 0; j < cols; j += LANES) {
    Vec sum[ROWS] = {};
    for (int64_t k = 0; k < inner; ++k) {
      const Vec right = load(b + k * ld_b + j);
      for (int64_t i = 0; i < ROWS; ++i) sum[i] += a[i * row + k * col] * right;
    }
    for (int64_t i = 0; i < ROWS; ++i) store(out + i * ld + j, sum[i]);
  }
}

// Both classes write a product to rows of `out` that lie `ld` numbers apart. The plain class pads the product to
// columns of LANES, the class on tiles to tiles of EDGE x EDGE, and needs room for blocks of BLOCK x BLOCK. They have
// room for the factors of an attention over T queries and S keys of C channels: (T or S, C), and (T, S) on the left.
class PlainProducts {
 public:
  PlainProducts(int64_t T, int64_t S, int64_t C)
      : left_(buffer(T * padded(std::max(S, C)))),
        right_(buffer(std::max(T, S) * padded(C))),
        transposed_(buffer(padded(S) * C)) {}

  template <InnerAxis A, InnerAxis B, typename L, typename R>
  void operator()(const Matrix<L>& a, const Matrix<R>& b, float* out, int64_t ld) {
    const Matrix<const float> left = floats(a, left_.get()), right = copied(b, right_.get());
    const int64_t row = A == InnerAxis::columns ? left.stride : 1, col = A == InnerAxis::columns ? 1 : left.stride;
    const int64_t rows = A == InnerAxis::columns ? a.rows : a.cols, inner = A == InnerAxis::columns ? a.cols : a.rows;
    const float* numbers = right.data;
    const int64_t cols = padded(B == InnerAxis::rows ? b.cols : b.rows);
    if (B == InnerAxis::columns) {
      transpose(right, transposed_.get(), cols);
      numbers = transposed_.get();
    }
    int64_t i = 0;
    const auto step = [&](auto count) {
      constexpr int64_t ROWS = decltype(count)::value;
      for (; i + ROWS <= rows; i += ROWS)
        product_of_rows<ROWS>(left.data + i * row, row, col, numbers, cols, out + i * ld, ld, inner, cols);
    };
    step(std::integral_constant<int64_t, 8>{});
    step(std::integral_constant<int64_t, 4>{});
    step(std::integral_constant<int64_t, 1>{});
  }

 private:
  using Buffer = std::unique_ptr<float[]>;
  static Buffer buffer(int64_t size) { return std::make_unique_for_overwrite<float[]>(size); }

  // `in` as float32: itself if it has this type, otherwise a copy.
  template <typename T>
  static Matrix<const float> floats(const Matrix<T>& in, float* buffer) {
    if constexpr (std::is_same_v<std::remove_const_t<T>, float>) return {in.data, in.stride, in.rows, in.cols};
    return copied(in, buffer);
  }

  // A copy of `in` with dense rows, padded to LANES with zeros.
  template <typename T>
  static Matrix<const float> copied(const Matrix<T>& in, float* buffer) {
    const int64_t ld = padded(in.cols);
    for (int64_t r = 0; r < in.rows; ++r) {
      for (int64_t c = 0; c < in.cols; c += LANES) {
        store(buffer + r * ld + c, load(in.data + r * in.stride + c, in.cols - c));
      }
    }
    return {buffer, ld, in.rows, in.cols};
  }

  static void transpose(const Matrix<const float>& in, float* out, int64_t ld) {
    for (int64_t c = 0; c < in.cols; ++c) {
      for (int64_t r = 0; r < in.rows; ++r) out[c * ld + r] = in.data[r * in.stride + c];
      for (int64_t r = in.rows; r < ld; ++r) out[c * ld + r] = 0.0f;
    }
  }

  Buffer left_, right_, transposed_;
};

#ifdef NMT_TILES

class TileProducts {
 public:
  TileProducts(int64_t T, int64_t S, int64_t C) : left_(std::max(T, S), std::max(S, C)), right_(std::max(T, S), C) {}

  template <InnerAxis A, InnerAxis B, typename L, typename R>
  void operator()(const Matrix<L>& a, const Matrix<R>& b, float* out, int64_t ld) {
    const int64_t inner = A == InnerAxis::rows ? a.rows : a.cols;
    const int64_t rows = A == InnerAxis::rows ? a.cols : a.rows, cols = B == InnerAxis::rows ? b.cols : b.rows;
    const PackedMatrix left(rows, inner, left_), right(cols, inner, right_);
    pack_part<false, A>(a.data, a.stride, a.rows, a.cols, left, 0, left.depths);
    pack_part<true, B>(b.data, b.stride, b.rows, b.cols, right, 0, right.depths);
    for (int64_t i = 0; i < left.panels; ++i) {
      for (int64_t j = 0; j < right.panels; ++j) {
        const auto multiply = [&]<int64_t ROWS, int64_t COLS>() {
          clear_sums();
          add_products<ROWS, COLS>(left.panel(i), right.panel(j), left.depths);
          store_sums<ROWS, COLS>(out + i * BLOCK * ld + j * BLOCK, ld);
        };
        const bool lower = rows - i * BLOCK > EDGE, wide = cols - j * BLOCK > EDGE;  // most sentences are short
        if (lower) {
          wide ? multiply.template operator()<BLOCK, BLOCK>() : multiply.template operator()<BLOCK, EDGE>();
        } else {
          wide ? multiply.template operator()<EDGE, BLOCK>() : multiply.template operator()<EDGE, EDGE>();
        }
      }
    }
  }

 private:
  const Tiles tiles_;
  const PackedMatrix left_, right_;
};

#endif

// Calls f with a null pointer to the class of products for matrices of T.
template <typename T, typename F>
void with_products(const F& f) {
#ifdef NMT_TILES
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    if (has_tiles()) return f(static_cast<TileProducts*>(nullptr));
  }
#endif
  f(static_cast<PlainProducts*>(nullptr));
}

}  // namespace nmt
