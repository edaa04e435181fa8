// Linear maps of the rows of search: of many rows at once or of one, by float32 weights as they are, by bfloat16
// weights in tiles, or by weights of 8 bits in panels.

#pragma once

#include "arguments.h"
#include "int8.h"
#include "lanes.h"
#include "panels.h"
#include "products.h"
#include "torch.h"

#include <type_traits>

namespace nmt {

#ifdef NMT_TILES

// The matrix (I, O) that `pack_weights` has packed.
inline PackedMatrix packed_matrix(const at::Tensor& packed, int64_t outputs, int64_t inputs) {
  TORCH_CHECK(outputs >= 0 && outputs <= MAX_SIZE, "outputs must be from 0 to ", MAX_SIZE, ", but is ", outputs);
  data_of<uint8_t>("packed", packed, {PackedMatrix::bytes(outputs, inputs)});
  return PackedMatrix(outputs, inputs, packed);
}

#endif

// The sums of LANES vectors: lane i is that of vectors[i].
inline Vec sums_of(Vec (&vectors)[LANES]) {
  for (int32_t step = 1; step < LANES; step *= 2) {
    IntVec own, other;
    for (int32_t c = 0; c < LANES; ++c) {
      own[c] = c & step ? LANES + c : c;
      other[c] = own[c] ^ step;
    }
    for (int32_t i = 0; i < LANES; i += 2 * step) {
      const Vec a = vectors[i], b = vectors[i + step];
      vectors[i] = __builtin_shuffle(a, b, own) + __builtin_shuffle(a, b, other);
    }
  }
  return vectors[0];
}

// A weight (O, I), float32 or packed in 16 or 8 bits, with its bias, null if there is none.
class LinearMap {
 public:
  const int64_t outputs, inputs;

  LinearMap(const char* name, const at::Tensor& weight, const std::optional<at::Tensor>& bias, int64_t outputs,
            int64_t inputs)
      : outputs(outputs),
        inputs(inputs),
        weight_(weight),
        type_(weight.defined() ? weight.scalar_type() : at::kFloat),
        bias_(data_of<float>(name, bias, {outputs})) {
    if (type_ == at::kFloat) {
      rows_ = data_of<float>(name, weight, {outputs, inputs});
    } else if (type_ == at::kChar) {
#ifdef NMT_INT8
      bytes_ = data_of<int8_t>(name, weight, {Int8Matrix(outputs, inputs).bytes()});
#else
      data_of<float>(name, weight, {outputs, inputs});
#endif
    } else {
#ifdef NMT_TILES
      TORCH_CHECK(has_tiles(), "this machine has no tiles");
      packed_matrix(weight, outputs, inputs);
#else
      data_of<float>(name, weight, {outputs, inputs});
#endif
    }
  }

  // out (M, O) = finish(x W^T + b) of x (M, I), finish being that of `multiply`. Rows of bfloat16 are for weights in
  // tiles, which round rows of float32 to the same numbers.
  template <typename X, typename Y, typename F>
  void operator()(const X* x, int64_t M, Y* out, const F& finish) const {
    const float* bias = bias_;
    const auto whole = [&finish, bias](int64_t r, int64_t c, Vec sum, int64_t n) {
      return finish(r, c, bias == nullptr ? sum : sum + load(bias + c, n), n);
    };
    if constexpr (!std::is_same_v<X, float> || !std::is_same_v<Y, float>) {
      TORCH_CHECK(type_ == at::kByte, "weights must all be packed in 16 bits, but one is ", type_);
      multiply_packed(x, M, out, whole);
    } else if (type_ == at::kFloat) {
      multiply_float(x, M, out, whole);
    } else if (type_ == at::kChar) {
      multiply_int8(x, M, out, whole);
    } else {
      multiply_packed(x, M, out, whole);
    }
  }

  template <typename X>
  void operator()(const X* x, int64_t M, float* out) const {
    (*this)(x, M, out, [](int64_t, int64_t, Vec sum, int64_t) { return sum; });
  }

 private:
  static constexpr int64_t TOGETHER = 4;  // rows, or weights, whose dot products are computed at once
  static constexpr int64_t FEW = 8;       // rows that are not worth a product of matrices

  // The dot products of R rows of x with LANES rows of weights from `c` on; each weight is read once.
  template <int64_t R>
  void dot_products(const float* x, int64_t c, float (&sums)[R][LANES]) const {
    constexpr int64_t W = LANES / R;  // weights at once
    for (int64_t first = 0; first < LANES; first += W) {
      const float* w[W];
      for (int64_t i = 0; i < W; ++i) w[i] = rows_ + std::min(c + first + i, outputs - 1) * inputs;
      Vec dots[LANES] = {};
      const auto add = [&](int64_t k, int64_t n) {
        Vec left[R];
        for (int64_t r = 0; r < R; ++r) left[r] = load(x + r * inputs + k, n);
        for (int64_t i = 0; i < W; ++i) {
          const Vec right = load(w[i] + k, n);
          if (R == 1) __builtin_prefetch(w[i] + k + LANES * inputs);
          for (int64_t r = 0; r < R; ++r) dots[r * W + i] += left[r] * right;
        }
      };
      int64_t k = 0;
      for (; k + LANES <= inputs; k += LANES) add(k, LANES);
      if (k < inputs) add(k, inputs - k);
      const Vec found = sums_of(dots);
      for (int64_t r = 0; r < R; ++r) std::memcpy(sums[r] + first, (const float*)&found + r * W, W * sizeof(float));
    }
  }

  template <int64_t R, typename F>
  void write_products(const float* x, int64_t r, int64_t c, float* out, const F& finish) const {
    float sums[R][LANES];
    dot_products<R>(x + r * inputs, c, sums);
    for (int64_t i = 0; i < R; ++i, ++r)
      store(out + r * outputs + c, finish(r, c, load(sums[i]), outputs - c), outputs - c);
  }

  // Torch multiplies many rows faster, but takes several times as long for few.
  template <typename F>
  void multiply_float(const float* x, int64_t M, float* out, const F& finish) const {
    if (M > FEW && gains_from_panels()) {
      multiply_by_panels(x, M, inputs, rows_, outputs, out, finish);
      return;
    }
    if (M > FEW) {
      const at::Tensor products = at::from_blob(const_cast<float*>(x), {M, inputs}, at::kFloat).matmul(weight_.t());
      const float* sums = products.const_data_ptr<float>();
      at::parallel_for(0, M, ceil_div(GRAIN, outputs + 1), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          for (int64_t c = 0; c < outputs; c += LANES) {
            const int64_t place = r * outputs + c, n = outputs - c;
            store(out + place, finish(r, c, load(sums + place, n), n), n);
          }
        }
      });
      return;
    }
    at::parallel_for(0, ceil_div(outputs, LANES), ceil_div(GRAIN, LANES * inputs * M + 1),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t c = begin * LANES; c < std::min(outputs, end * LANES); c += LANES) {
                         int64_t r = 0;
                         for (; r + TOGETHER <= M; r += TOGETHER) write_products<TOGETHER>(x, r, c, out, finish);
                         for (; r < M; ++r) write_products<1>(x, r, c, out, finish);
                       }
                     });
  }

#ifdef NMT_TILES

  template <typename X, typename Y, typename F>
  void multiply_packed(const X* x, int64_t M, Y* out, const F& finish) const {
    const PackedMatrix weights(outputs, inputs, weight_);
    multiply(x, M, inputs, weights, out, outputs, finish);
  }

#else

  template <typename X, typename Y, typename F>
  void multiply_packed(const X*, int64_t, Y*, const F&) const {}  // refused by the constructor

#endif

#ifdef NMT_INT8

  template <typename F>
  void multiply_int8(const float* x, int64_t M, float* out, const F& finish) const {
    Int8Matrix(outputs, inputs).multiply(bytes_, x, M, out, finish);
  }

#else

  template <typename F>
  void multiply_int8(const float*, int64_t, float*, const F&) const {}  // refused by the constructor

#endif

  const at::Tensor weight_;
  const at::ScalarType type_;  // Float as it is, Char of 8 bits, else of 16
  const float *rows_ = nullptr, *bias_;
  const int8_t* bytes_ = nullptr;
};

}  // namespace nmt
