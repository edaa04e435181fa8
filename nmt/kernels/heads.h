// Products of the small matrices of one attention head: on the tiles of AMX for bfloat16, else in float32.

#pragma once

#include "lanes.h"
#include "packing.h"

#include <type_traits>
#include <vector>

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
inline void product_of_rows(
    const float* a, int64_t row, int64_t col, const float* b, int64_t ld_b, float* out, int64_t ld,
    int64_t inner, int64_t cols) {
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

// Both write a product to rows of `out` that are `ld` numbers apart, and on to whole squares of SIDE; the factors have
// no more than `longest` rows or columns.
class PlainProducts {
 public:
  explicit PlainProducts(int64_t longest) : left_(padded(longest) * longest), turned_(left_), right_(left_) {}

  template <Over A, Over B, typename L, typename R>
  void operator()(const Matrix<L>& a, const Matrix<R>& b, float* out, int64_t ld) {
    gather(a, left_.data());
    const int64_t ld_a = padded(a.cols), row = A == Over::columns ? ld_a : 1, col = A == Over::columns ? 1 : ld_a;
    const int64_t rows = A == Over::columns ? a.rows : a.cols, inner = A == Over::columns ? a.cols : a.rows;
    const int64_t ld_b = padded(B == Over::rows ? b.cols : b.rows);
    if (B == Over::rows) {
      gather(b, right_.data());
    } else {
      gather(b, turned_.data());
      transpose(turned_.data(), padded(b.cols), right_.data(), ld_b, b.rows, b.cols);
    }
    int64_t i = 0;
    const auto some = [&](auto count) {
      constexpr int64_t ROWS = decltype(count)::value;
      for (; i + ROWS <= rows; i += ROWS)
        product_of_rows<ROWS>(left_.data() + i * row, row, col, right_.data(), ld_b, out + i * ld, ld, inner, ld_b);
    };
    some(std::integral_constant<int64_t, 8>{});
    some(std::integral_constant<int64_t, 4>{});
    some(std::integral_constant<int64_t, 1>{});
  }

 private:
  // As float32, its rows padded to LANES with zeros.
  template <typename T>
  static void gather(const Matrix<T>& in, float* out) {
    const int64_t ld = padded(in.cols);
    for (int64_t r = 0; r < in.rows; ++r) {
      for (int64_t c = 0; c < in.cols; c += LANES) {
        store(out + r * ld + c, load(in.data + r * in.stride + c, in.cols - c));
      }
    }
  }

  static void transpose(const float* in, int64_t ld_in, float* out, int64_t ld_out, int64_t rows, int64_t cols) {
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = 0; r < rows; ++r) out[c * ld_out + r] = in[r * ld_in + c];
      for (int64_t r = rows; r < ld_out; ++r) out[c * ld_out + r] = 0.0f;
    }
  }

  std::vector<float> left_, turned_, right_;
};

#ifdef NMT_TILES

static_assert(SIDE == BLOCK);

class TileProducts {
 public:
  explicit TileProducts(int64_t longest) : left_(longest, longest), right_(longest, longest) {}

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
