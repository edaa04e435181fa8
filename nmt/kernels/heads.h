// Products of the small matrices of one attention head: on the tiles of AMX for bfloat16, else in float32.

#pragma once

#include "lanes.h"
#include "packing.h"

#include <memory>
#include <type_traits>

namespace nmt {

// Dense rows, `stride` numbers apart.
template <typename T>
struct Matrix {
  T* data;
  int64_t stride, rows, cols;
};

// out (rows, cols) = a (rows, inner) b (inner, cols); strides of a as given, rows of b and out `ld` apart.
// The columns are padded to LANES.
template <int64_t ROWS>
[[gnu::noinline]] inline void product_of_rows(const float* a, int64_t row, int64_t col, const float* b, int64_t ld_b,
                                              float* out, int64_t ld, int64_t inner, int64_t cols) {
  for (int64_t j = 0; j < cols; j += LANES) {
    Lanes sum[ROWS] = {};
    for (int64_t k = 0; k < inner; ++k) {
      const Lanes right = load(b + k * ld_b + j);
      for (int64_t i = 0; i < ROWS; ++i) sum[i] += a[i * row + k * col] * right;
    }
    for (int64_t i = 0; i < ROWS; ++i) store(out + i * ld + j, sum[i]);
  }
}

constexpr int64_t SIDE = 32;  // rows and columns that a product may write at a time

inline int64_t sides(int64_t size) { return ceil_div(size, SIDE) * SIDE; }

// Both classes write a product to rows of `out` that are `ld` numbers apart, the plain one on to whole LANES, the one
// on tiles on to whole squares of SIDE. They hold the factors of an attention over T queries and S keys of C channels:
// (T or S, C), and (T, S) on the left.
class PlainProducts {
 public:
  PlainProducts(int64_t T, int64_t S, int64_t C)
      : left_(room(T * padded(std::max(S, C)))),
        right_(room(std::max(T, S) * padded(C))),
        transposed_(room(padded(S) * C)) {}

  template <Over A, Over B, typename L, typename R>
  void operator()(const Matrix<L>& a, const Matrix<R>& b, float* out, int64_t ld) {
    const Matrix<const float> left = floats(a, left_.get()), right = copied(b, right_.get());
    const int64_t row = A == Over::columns ? left.stride : 1, col = A == Over::columns ? 1 : left.stride;
    const int64_t rows = A == Over::columns ? a.rows : a.cols, inner = A == Over::columns ? a.cols : a.rows;
    const float* numbers = right.data;
    const int64_t cols = padded(B == Over::rows ? b.cols : b.rows);
    if (B == Over::columns) {
      transpose(right, transposed_.get(), cols);
      numbers = transposed_.get();
    }
    int64_t i = 0;
    const auto some = [&](auto count) {
      constexpr int64_t ROWS = decltype(count)::value;
      for (; i + ROWS <= rows; i += ROWS)
        product_of_rows<ROWS>(left.data + i * row, row, col, numbers, cols, out + i * ld, ld, inner, cols);
    };
    some(std::integral_constant<int64_t, 8>{});
    some(std::integral_constant<int64_t, 4>{});
    some(std::integral_constant<int64_t, 1>{});
  }

 private:
  using Room = std::unique_ptr<float[]>;
  static Room room(int64_t size) { return std::make_unique_for_overwrite<float[]>(size); }

  // As float32, where it lies if it is.
  template <typename T>
  static Matrix<const float> floats(const Matrix<T>& in, float* room) {
    if constexpr (std::is_same_v<std::remove_const_t<T>, float>) return {in.data, in.stride, in.rows, in.cols};
    return copied(in, room);
  }

  // Close together, padded to LANES with zeros.
  template <typename T>
  static Matrix<const float> copied(const Matrix<T>& in, float* room) {
    const int64_t ld = padded(in.cols);
    for (int64_t r = 0; r < in.rows; ++r) {
      for (int64_t c = 0; c < in.cols; c += LANES) {
        store(room + r * ld + c, load(in.data + r * in.stride + c, in.cols - c));
      }
    }
    return {room, ld, in.rows, in.cols};
  }

  static void transpose(const Matrix<const float>& in, float* out, int64_t ld) {
    for (int64_t c = 0; c < in.cols; ++c) {
      for (int64_t r = 0; r < in.rows; ++r) out[c * ld + r] = in.data[r * in.stride + c];
      for (int64_t r = in.rows; r < ld; ++r) out[c * ld + r] = 0.0f;
    }
  }

  Room left_, right_, transposed_;
};

#ifdef NMT_TILES

static_assert(SIDE == BLOCK);

class TileProducts {
 public:
  TileProducts(int64_t T, int64_t S, int64_t C) : left_(std::max(T, S), std::max(S, C)), right_(std::max(T, S), C) {}

  template <Over A, Over B, typename L, typename R>
  void operator()(const Matrix<L>& a, const Matrix<R>& b, float* out, int64_t ld) {
    const int64_t inner = A == Over::rows ? a.rows : a.cols;
    const Packed left(A == Over::rows ? a.cols : a.rows, inner, left_);
    const Packed right(B == Over::rows ? b.cols : b.rows, inner, right_);
    pack_part<false, A>(a.data, a.stride, a.rows, a.cols, left, 0, left.depths);
    pack_part<true, B>(b.data, b.stride, b.rows, b.cols, right, 0, right.depths);
    for (int64_t i = 0; i < left.panels; ++i) {
      for (int64_t j = 0; j < right.panels; ++j) {
        clear_sums();
        add_products(left.panel(i), right.panel(j), left.depths);
        store_sums(out + i * BLOCK * ld + j * BLOCK, ld);
      }
    }
  }

 private:
  const Tiles tiles_;
  const Packed left_, right_;
};

#endif

// Calls f with a null pointer to the class of products that is for matrices of T.
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
