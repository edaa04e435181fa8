// Fused steps of training on CPU, for float32 and bfloat16: dropout and layer norm.
//
// Each function makes one pass over memory where torch makes several. The arithmetic is float32 whatever the type of
// the tensors. Dropout masks are never stored: a hash of (seed, i) decides whether element i is kept, so that backward
// repeats the decision of forward, whatever the number of threads.
// `nmt/kernels/fused.py` is the only caller, and has the plain torch code that each function is tested against.
//
// Shapes: M rows, D width.

#include "arguments.h"
#include "dropout.h"
#include "lanes.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

// ---- dropout

// Calls f(first, count) for `size` elements, LANES or fewer at a time, on all threads.
template <typename F>
void for_each_vector(int64_t size, const F& f) {
  at::parallel_for(0, ceil_div(size, LANES), GRAIN / LANES, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) f(g * LANES, std::min(LANES, size - g * LANES));
  });
}

// residual + dropout(x), in the type of residual.
Tensor add_dropout(const Tensor& residual, const Tensor& x, double rate, int64_t seed) {
  Tensor out = at::empty_like(residual);
  const Dropout drop(rate, seed);
  dispatch("residual", residual.scalar_type(), [&](auto* type) {
    using R = Pointee<decltype(type)>;
    const R* r = data_of<R>("residual", residual, x.sizes());
    R* o = out.data_ptr<R>();
    dispatch("x", x.scalar_type(), [&](auto* type) {
      const auto* a = data_of<Pointee<decltype(type)>>("x", x, x.sizes());
      for_each_vector(x.numel(), [=](int64_t i, int64_t n) {
        store(o + i, load(r + i, n) + load(a + i, n) * drop.factors(uint32_t(i)), n);
      });
    });
  });
  return out;
}

// dropout(x) in the type `dtype`. Applied to a gradient, the function is its own backward.
Tensor dropout(const Tensor& x, double rate, int64_t seed, at::ScalarType dtype) {
  Tensor out = at::empty_like(x, x.options().dtype(dtype));
  const Dropout drop(rate, seed);
  dispatch("x", x.scalar_type(), [&](auto* type) {
    const auto* a = data_of<Pointee<decltype(type)>>("x", x, x.sizes());
    dispatch("dtype", dtype, [&](auto* type) {
      auto* o = out.data_ptr<Pointee<decltype(type)>>();
      for_each_vector(x.numel(),
                      [=](int64_t i, int64_t n) { store(o + i, load(a + i, n) * drop.factors(uint32_t(i)), n); });
    });
  });
  return out;
}

// dropout(relu(x)).
Tensor relu_dropout(const Tensor& x, double rate, int64_t seed) {
  Tensor out = at::empty_like(x);
  const Dropout drop(rate, seed);
  dispatch("x", x.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T* a = data_of<T>("x", x, x.sizes());
    T* o = out.data_ptr<T>();
    for_each_vector(x.numel(), [=](int64_t i, int64_t n) {
      store(o + i, maximum(Vec16{}, load(a + i, n)) * drop.factors(uint32_t(i)), n);
    });
  });
  return out;
}

// The gradient of relu_dropout, by ReluDropoutGradient.
Tensor relu_dropout_backward(const Tensor& grad, const Tensor& out, double rate) {
  Tensor result = at::empty_like(grad);
  const ReluDropoutGradient gradient(rate);
  dispatch("grad", grad.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T *g = data_of<T>("grad", grad, out.sizes()), *o = data_of<T>("out", out, out.sizes());
    T* r = result.data_ptr<T>();
    for_each_vector(grad.numel(),
                    [=](int64_t i, int64_t n) { store(r + i, gradient(load(g + i, n), load(o + i, n)), n); });
  });
  return result;
}

// ---- layer norm

// The number and the width of the rows of x.
std::pair<int64_t, int64_t> rows_of(const Tensor& x) {
  TORCH_CHECK(x.dim() > 0 && x.size(-1) > 0, "x must have rows of at least one number, but its shape is ",
              in_words(x.sizes()));
  return {x.numel() / x.size(-1), x.size(-1)};
}

// The layer norm of x (M, D) in the type `dtype`, with mean and 1 / standard deviation (M,) of its rows for backward.
std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                                              at::ScalarType dtype) {
  const auto [rows, width] = rows_of(x);
  const float *w = data_of<float>("weight", weight, {width}), *b = data_of<float>("bias", bias, {width});
  Tensor out = at::empty_like(x, x.options().dtype(dtype));
  Tensor mean = at::empty({rows}, weight.options()), scale = at::empty_like(mean);
  float *means = mean.data_ptr<float>(), *scales = scale.data_ptr<float>();
  dispatch("x", x.scalar_type(), [&](auto* type) {
    const auto* in = data_of<Pointee<decltype(type)>>("x", x, x.sizes());
    dispatch("dtype", dtype, [&](auto* type) {
      auto* o = out.data_ptr<Pointee<decltype(type)>>();
      at::parallel_for(0, rows, GRAIN / width + 1, [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
          const auto* row = in + m * width;
          Vec16 sum = {}, squares = {};
          for (int64_t i = 0; i < width; i += LANES) sum += load(row + i, width - i);
          const float center = horizontal_sum(sum) / float(width);
          for (int64_t i = 0; i < width; i += LANES) {
            const Vec16 d = load(row + i, width - i, center) - center;
            squares += d * d;
          }
          const float s = 1.0f / std::sqrt(horizontal_sum(squares) / float(width) + float(eps));
          means[m] = center;
          scales[m] = s;
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            store(o + m * width + i, (load(row + i, n) - center) * s * load(w + i, n) + load(b + i, n), n);
          }
        }
      });
    });
  });
  return {out, mean, scale};
}

// Gradients of x, in the type of x, and of weight and bias.
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                       const Tensor& mean, const Tensor& scale) {
  const auto [rows, width] = rows_of(x);
  const float *w = data_of<float>("weight", weight, {width}), *means = data_of<float>("mean", mean, {rows});
  const float* scales = data_of<float>("scale", scale, {rows});
  Tensor grad_x = at::empty_like(x);
  // Sums over parts of fixed size, added up in order, do not depend on the number of threads.
  const int64_t part = 256, parts = ceil_div(rows, part);
  Tensor grad_weight = at::zeros({parts, width}, weight.options()), grad_bias = at::zeros_like(grad_weight);
  float *all_gw = grad_weight.data_ptr<float>(), *all_gb = grad_bias.data_ptr<float>();
  dispatch("grad", grad.scalar_type(), [&](auto* type) {
    const auto* g = data_of<Pointee<decltype(type)>>("grad", grad, x.sizes());
    dispatch("x", x.scalar_type(), [&](auto* type) {
      using T = Pointee<decltype(type)>;
      const T* in = data_of<T>("x", x, x.sizes());
      T* gx = grad_x.data_ptr<T>();
      at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t m = first * part; m < std::min(rows, last * part); ++m) {
          float *gw = all_gw + m / part * width, *gb = all_gb + m / part * width;
          const float center = means[m], s = scales[m];
          const auto* g_row = g + m * width;
          const T* row = in + m * width;
          Vec16 sums = {}, dots = {};
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            const Vec16 normed = (load(row + i, n) - center) * s, gi = load(g_row + i, n);
            store(gw + i, load(gw + i, n) + gi * normed, n);
            store(gb + i, load(gb + i, n) + gi, n);
            const Vec16 weighted = gi * load(w + i, n);
            sums += weighted;
            dots += weighted * normed;
          }
          const float sum = horizontal_sum(sums) / float(width), dot = horizontal_sum(dots) / float(width);
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            const Vec16 normed = (load(row + i, n) - center) * s;
            store(gx + m * width + i, s * (load(g_row + i, n) * load(w + i, n) - sum - normed * dot), n);
          }
        }
      });
    });
  });
  return {grad_x, grad_weight.sum(0), grad_bias.sum(0)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def("add_dropout(Tensor residual, Tensor x, float rate, int seed) -> Tensor", &add_dropout);
  m.def("dropout(Tensor x, float rate, int seed, ScalarType dtype) -> Tensor", &dropout);
  m.def("relu_dropout(Tensor x, float rate, int seed) -> Tensor", &relu_dropout);
  m.def("relu_dropout_backward(Tensor grad, Tensor out, float rate) -> Tensor", &relu_dropout_backward);
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
        &layer_norm);
  m.def(
      "layer_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor mean, Tensor scale) -> "
      "(Tensor, Tensor, Tensor)",
      &layer_norm_backward);
}
