// Fused steps of training on CPU, for float32 and bfloat16: dropout, layer norm, and RMS norm, which search calls, too.
//
// Each function makes one pass over memory where torch makes several. The arithmetic is float32 whatever the type of
// the tensors. Dropout masks are never stored: a hash of (seed, i) decides whether element i is kept, so that backward
// repeats the decision of forward, whatever the number of threads.
// `nmt/kernels/fused.py` is the only caller, and has the plain torch code that each function is tested against.
//
// Shapes: M rows, D width.

#include "arguments.h"
#include "deal.h"
#include "dropout.h"
#include "lanes.h"
#include "torch.h"

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
  deal(ceil_div(size, LANES), GRAIN / LANES, [&](int64_t begin, int64_t end) {
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
      store(o + i, maximum(Vec{}, load(a + i, n)) * drop.factors(uint32_t(i)), n);
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

// ---- norms of rows

// The number and the width of the rows of x.
std::pair<int64_t, int64_t> rows_of(const Tensor& x) {
  TORCH_CHECK(x.dim() > 0 && x.size(-1) > 0, "x must have rows of at least one number, but its shape is ",
              in_words(x.sizes()));
  return {x.numel() / x.size(-1), x.size(-1)};
}

// The norm of the rows of x (M, D) in the type `dtype`: of their deviations from the mean (layer norm) or, with null
// for `bias` and `means`, of the rows as they are (RMS norm). Writes mean and 1 / root of the mean square (M).
template <bool CENTERS>
Tensor normed(const Tensor& x, const float* weight, const float* bias, double eps, at::ScalarType dtype, float* means,
              float* scales) {
  const auto [rows, width] = rows_of(x);
  Tensor out = at::empty_like(x, x.options().dtype(dtype));
  dispatch("x", x.scalar_type(), [&](auto* type) {
    const auto* in = data_of<Pointee<decltype(type)>>("x", x, x.sizes());
    dispatch("dtype", dtype, [&](auto* type) {
      auto* o = out.data_ptr<Pointee<decltype(type)>>();
      deal(rows, GRAIN / width + 1, [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
          const auto* row = in + m * width;
          Vec sum = {}, squares = {};
          for (int64_t i = 0; CENTERS && i < width; i += LANES) sum += load(row + i, width - i);
          const float center = CENTERS ? horizontal_sum(sum) / float(width) : 0.0f;
          for (int64_t i = 0; i < width; i += LANES) {
            const Vec d = load(row + i, width - i, center) - center;
            squares += d * d;
          }
          const float s = 1.0f / std::sqrt(horizontal_sum(squares) / float(width) + float(eps));
          if (CENTERS) means[m] = center;
          scales[m] = s;
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            const Vec y = (load(row + i, n) - center) * s * load(weight + i, n);
            store(o + m * width + i, CENTERS ? y + load(bias + i, n) : y, n);
          }
        }
      });
    });
  });
  return out;
}

// Gradients of x, in the type of x, and of weight and bias; of an RMS norm, without `means`, that of the bias is none.
template <bool CENTERS>
std::tuple<Tensor, Tensor, Tensor> normed_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                   const float* means, const float* scales) {
  const auto [rows, width] = rows_of(x);
  const float* w = data_of<float>("weight", weight, {width});
  Tensor grad_x = at::empty_like(x);
  // Sums over parts of fixed size, added up in order, do not depend on the number of threads.
  const int64_t part = 256, parts = ceil_div(rows, part);
  Tensor grad_weight = at::zeros({parts, width}, weight.options());
  Tensor grad_bias = at::zeros({CENTERS ? parts : 0, width}, weight.options());
  float *all_gw = grad_weight.data_ptr<float>(), *all_gb = grad_bias.data_ptr<float>();
  dispatch("grad", grad.scalar_type(), [&](auto* type) {
    const auto* g = data_of<Pointee<decltype(type)>>("grad", grad, x.sizes());
    dispatch("x", x.scalar_type(), [&](auto* type) {
      using T = Pointee<decltype(type)>;
      const T* in = data_of<T>("x", x, x.sizes());
      T* gx = grad_x.data_ptr<T>();
      deal(parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t m = first * part; m < std::min(rows, last * part); ++m) {
          float *gw = all_gw + m / part * width, *gb = all_gb + m / part * width;
          const float center = CENTERS ? means[m] : 0.0f, s = scales[m];
          const auto* g_row = g + m * width;
          const T* row = in + m * width;
          Vec sums = {}, dots = {};
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            const Vec unit = (load(row + i, n) - center) * s, gi = load(g_row + i, n);
            store(gw + i, load(gw + i, n) + gi * unit, n);
            if (CENTERS) store(gb + i, load(gb + i, n) + gi, n);
            const Vec weighted = gi * load(w + i, n);
            sums += weighted;
            dots += weighted * unit;
          }
          const float sum = CENTERS ? horizontal_sum(sums) / float(width) : 0.0f;
          const float dot = horizontal_sum(dots) / float(width);
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            const Vec unit = (load(row + i, n) - center) * s;
            store(gx + m * width + i, s * (load(g_row + i, n) * load(w + i, n) - sum - unit * dot), n);
          }
        }
      });
    });
  });
  return {grad_x, grad_weight.sum(0), grad_bias.sum(0)};
}

// The layer norm of x (M, D) in the type `dtype`, with mean and 1 / standard deviation (M,) of its rows for backward.
std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                                              at::ScalarType dtype) {
  const auto [rows, width] = rows_of(x);
  const float *w = data_of<float>("weight", weight, {width}), *b = data_of<float>("bias", bias, {width});
  Tensor mean = at::empty({rows}, weight.options()), scale = at::empty_like(mean);
  Tensor out = normed<true>(x, w, b, eps, dtype, mean.data_ptr<float>(), scale.data_ptr<float>());
  return {out, mean, scale};
}

// Gradients of x, weight and bias.
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                       const Tensor& mean, const Tensor& scale) {
  const int64_t rows = rows_of(x).first;
  const float *means = data_of<float>("mean", mean, {rows}), *scales = data_of<float>("scale", scale, {rows});
  return normed_backward<true>(grad, x, weight, means, scales);
}

// The RMS norm of x (M, D) in the type `dtype`, with 1 / root of the mean square (M,) of its rows for backward.
std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps, at::ScalarType dtype) {
  const auto [rows, width] = rows_of(x);
  const float* w = data_of<float>("weight", weight, {width});
  Tensor scale = at::empty({rows}, weight.options());
  Tensor out = normed<false>(x, w, nullptr, eps, dtype, nullptr, scale.data_ptr<float>());
  return {out, scale};
}

// Gradients of x and weight.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                             const Tensor& scale) {
  const float* scales = data_of<float>("scale", scale, {rows_of(x).first});
  const auto [grad_x, grad_weight, none] = normed_backward<false>(grad, x, weight, nullptr, scales);
  return {grad_x, grad_weight};
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
  m.def("rms_norm(Tensor x, Tensor weight, float eps, ScalarType dtype) -> (Tensor, Tensor)", &rms_norm);
  m.def("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor scale) -> (Tensor, Tensor)",
        &rms_norm_backward);
}
