// Fused steps of training on CPU, for float32 and bfloat16: dropout, layer norm and attention.
//
// Each function does in one pass over memory what takes torch several; the arithmetic is float32 whatever the
// type of the tensors. Dropout masks are never stored: whether element i is kept is a hash of (seed, i), so
// that backward repeats the decision of forward, whatever the number of threads.
// `nmt/fused.py` is the only caller, and has the plain torch code that each function is tested against.
//
// Shapes: M rows, D width, B sentences, H heads, C channels of a head, T queries, S keys.

#include "dispatch.h"
#include "lanes.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

// ---- dropout

const Words COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Dropout {
  uint32_t low, high, threshold;
  float scale;

  Dropout(double rate, int64_t seed)
      : low(uint32_t(seed)),
        high(uint32_t(uint64_t(seed) >> 32)),
        threshold(uint32_t(std::min(rate * 4294967296.0, 4294967295.0))),
        scale(float(1.0 / (1.0 - rate))) {}

  // What the elements from `first` on are multiplied with: 0, or 1 / (1 - rate).
  inline Lanes factors(uint32_t first) const {
    Words h = (COUNT + first) * 0x9e3779b9u + low;
    h ^= h >> 16;
    h *= 0x21f0aaadu;
    h ^= (h >> 15) ^ high;
    h *= 0xd35a2d97u;
    h ^= h >> 15;
    return h >= threshold ? all(scale) : Lanes{};
  }
};

// Calls f(first, count) for all of `size` elements, up to LANES at a time.
template <typename F>
void each(int64_t size, const F& f) {
  const int64_t groups = (size + LANES - 1) / LANES;
  at::parallel_for(0, groups, GRAIN / LANES, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) f(g * LANES, std::min(LANES, size - g * LANES));
  });
}

// residual + dropout(x), in the type of the residual
Tensor add_dropout(const Tensor& residual, const Tensor& x, double rate, int64_t seed) {
  Tensor out = at::empty_like(residual);
  const Dropout drop(rate, seed);
  dispatch(residual.scalar_type(), [&](auto* type) {
    using R = Pointee<decltype(type)>;
    const R* r = residual.const_data_ptr<R>();
    R* o = out.data_ptr<R>();
    dispatch(x.scalar_type(), [&](auto* type) {
      const auto* a = x.const_data_ptr<Pointee<decltype(type)>>();
      each(x.numel(), [=](int64_t i, int64_t n) {
        store(o + i, load(r + i, n) + load(a + i, n) * drop.factors(uint32_t(i)), n);
      });
    });
  });
  return out;
}

// dropout(x) in the type `dtype`; also its own backward
Tensor dropout(const Tensor& x, double rate, int64_t seed, at::ScalarType dtype) {
  Tensor out = at::empty_like(x, x.options().dtype(dtype));
  const Dropout drop(rate, seed);
  dispatch(x.scalar_type(), [&](auto* type) {
    const auto* a = x.const_data_ptr<Pointee<decltype(type)>>();
    dispatch(dtype, [&](auto* type) {
      auto* o = out.data_ptr<Pointee<decltype(type)>>();
      each(x.numel(), [=](int64_t i, int64_t n) { store(o + i, load(a + i, n) * drop.factors(uint32_t(i)), n); });
    });
  });
  return out;
}

// dropout(relu(x))
Tensor relu_dropout(const Tensor& x, double rate, int64_t seed) {
  Tensor out = at::empty_like(x);
  const Dropout drop(rate, seed);
  dispatch(x.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T* a = x.const_data_ptr<T>();
    T* o = out.data_ptr<T>();
    each(x.numel(), [=](int64_t i, int64_t n) {
      store(o + i, max_of(load(a + i, n), Lanes{}) * drop.factors(uint32_t(i)), n);
    });
  });
  return out;
}

// An output above 0 was neither cut off nor dropped.
Tensor relu_dropout_backward(const Tensor& grad, const Tensor& out, double rate) {
  Tensor result = at::empty_like(grad);
  const float scale = float(1.0 / (1.0 - rate));
  dispatch(grad.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T *g = grad.const_data_ptr<T>(), *o = out.const_data_ptr<T>();
    T* r = result.data_ptr<T>();
    each(grad.numel(), [=](int64_t i, int64_t n) {
      store(r + i, load(o + i, n) > 0.0f ? load(g + i, n) * scale : Lanes{}, n);
    });
  });
  return result;
}

// ---- layer norm

// x (M, D) to its norm in the type `dtype`, with mean and 1 / standard deviation (M,) for backward
std::tuple<Tensor, Tensor, Tensor> layer_norm(
    const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, at::ScalarType dtype) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  Tensor out = at::empty_like(x, x.options().dtype(dtype));
  Tensor mean = at::empty({rows}, x.options().dtype(at::kFloat)), scale = at::empty_like(mean);
  const float *w = weight.const_data_ptr<float>(), *b = bias.const_data_ptr<float>();
  float *means = mean.data_ptr<float>(), *scales = scale.data_ptr<float>();
  dispatch(x.scalar_type(), [&](auto* type) {
    const auto* in = x.const_data_ptr<Pointee<decltype(type)>>();
    dispatch(dtype, [&](auto* type) {
      auto* o = out.data_ptr<Pointee<decltype(type)>>();
      at::parallel_for(0, rows, GRAIN / width + 1, [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
          const auto* row = in + m * width;
          Lanes sum = {}, squares = {};
          for (int64_t i = 0; i < width; i += LANES) sum += load(row + i, width - i);
          const float center = sum_of(sum) / float(width);
          for (int64_t i = 0; i < width; i += LANES) {
            const Lanes d = load(row + i, width - i, center) - center;
            squares += d * d;
          }
          const float s = 1.0f / std::sqrt(sum_of(squares) / float(width) + float(eps));
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

// Gradients of x, in its type, and of weight and bias.
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& scale) {
  const int64_t width = x.size(-1), rows = x.numel() / width;
  Tensor grad_x = at::empty_like(x);
  // Parts of fixed size, added up in order: the sums do not depend on the number of threads.
  const int64_t part = 256, parts = (rows + part - 1) / part;
  Tensor grad_weight = at::zeros({parts, width}, weight.options()), grad_bias = at::zeros_like(grad_weight);
  const float *w = weight.const_data_ptr<float>(), *means = mean.const_data_ptr<float>();
  const float* scales = scale.const_data_ptr<float>();
  float *all_gw = grad_weight.data_ptr<float>(), *all_gb = grad_bias.data_ptr<float>();
  dispatch(grad.scalar_type(), [&](auto* type) {
    const auto* g = grad.const_data_ptr<Pointee<decltype(type)>>();
    dispatch(x.scalar_type(), [&](auto* type) {
      using T = Pointee<decltype(type)>;
      const T* in = x.const_data_ptr<T>();
      T* gx = grad_x.data_ptr<T>();
      at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t m = first * part; m < std::min(rows, last * part); ++m) {
          float *gw = all_gw + m / part * width, *gb = all_gb + m / part * width;
          const float center = means[m], s = scales[m];
          const auto* g_row = g + m * width;
          const T* row = in + m * width;
          Lanes sums = {}, dots = {};
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            const Lanes normed = (load(row + i, n) - center) * s, gi = load(g_row + i, n);
            store(gw + i, load(gw + i, n) + gi * normed, n);
            store(gb + i, load(gb + i, n) + gi, n);
            const Lanes weighted = gi * load(w + i, n);
            sums += weighted;
            dots += weighted * normed;
          }
          const float sum = sum_of(sums) / float(width), dot = sum_of(dots) / float(width);
          for (int64_t i = 0; i < width; i += LANES) {
            const int64_t n = width - i;
            const Lanes normed = (load(row + i, n) - center) * s;
            store(gx + m * width + i, s * (load(g_row + i, n) * load(w + i, n) - sum - normed * dot), n);
          }
        }
      });
    });
  });
  return {grad_x, grad_weight.sum(0), grad_bias.sum(0)};
}

// ---- attention

// out (rows, cols) = a (rows, inner) b (inner, cols); strides of a as given, rows of b and out `ld` apart.
// The columns are padded to LANES.
template <int64_t BLOCK>
inline void product_of_rows(
    const float* a, int64_t row, int64_t col, const float* b, int64_t ld_b, float* out, int64_t ld,
    int64_t inner, int64_t cols) {
  for (int64_t j = 0; j < cols; j += LANES) {
    Lanes sum[BLOCK] = {};
    for (int64_t k = 0; k < inner; ++k) {
      const Lanes right = load(b + k * ld_b + j);
      for (int64_t i = 0; i < BLOCK; ++i) sum[i] += a[i * row + k * col] * right;
    }
    for (int64_t i = 0; i < BLOCK; ++i) store(out + i * ld + j, sum[i]);
  }
}

void product(
    const float* a, int64_t row, int64_t col, const float* b, int64_t ld_b, float* out, int64_t ld,
    int64_t rows, int64_t inner, int64_t cols) {
  int64_t i = 0;
  for (; i + 8 <= rows; i += 8)
    product_of_rows<8>(a + i * row, row, col, b, ld_b, out + i * ld, ld, inner, cols);
  for (; i + 4 <= rows; i += 4)
    product_of_rows<4>(a + i * row, row, col, b, ld_b, out + i * ld, ld, inner, cols);
  for (; i < rows; ++i)
    product_of_rows<1>(a + i * row, row, col, b, ld_b, out + i * ld, ld, inner, cols);
}

// A matrix of one head as float32, its rows padded to LANES with zeros.
template <typename T>
void gather(const T* in, int64_t stride, float* out, int64_t rows, int64_t cols, float factor = 1.0f) {
  const int64_t ld = padded(cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; c += LANES) store(out + r * ld + c, load(in + r * stride + c, cols - c) * factor);
  }
}

// The way back.
template <typename T>
void scatter(const float* in, T* out, int64_t stride, int64_t rows, int64_t cols, float factor = 1.0f) {
  const int64_t ld = padded(cols);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; c += LANES) store(out + r * stride + c, load(in + r * ld + c) * factor, cols - c);
  }
}

void transpose(const float* in, int64_t ld_in, float* out, int64_t ld_out, int64_t rows, int64_t cols) {
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = 0; r < rows; ++r) out[c * ld_out + r] = in[r * ld_in + c];
    for (int64_t r = rows; r < ld_out; ++r) out[c * ld_out + r] = 0.0f;
  }
}

// The sizes of an attention, from q (B, T, H, C), k and v (B, S, H, C).
struct Sizes {
  int64_t sentences, heads, queries, keys, d_k, d_v, ld;

  Sizes(const Tensor& q, const Tensor& k, const Tensor& v)
      : sentences(q.size(0)),
        heads(q.size(2)),
        queries(q.size(1)),
        keys(k.size(1)),
        d_k(q.size(3)),
        d_v(v.size(3)),
        ld(padded(keys)) {}
};

// Turns scores (T, S) into softmax weights, before dropout; `mask` says which keys a query may see.
void softmax(float* scores, const Sizes& n, const bool* mask, int64_t mask_t, int64_t mask_s) {
  for (int64_t t = 0; t < n.queries; ++t) {
    float* row = scores + t * n.ld;
    if (mask != nullptr) {
      for (int64_t s = 0; s < n.keys; ++s) {
        if (!mask[t * mask_t + s * mask_s]) row[s] = -INFINITE;
      }
    }
    std::fill(row + n.keys, row + n.ld, -INFINITE);
    Lanes highest = all(-INFINITE), sum = {};
    for (int64_t s = 0; s < n.ld; s += LANES) highest = max_of(highest, load(row + s));
    const float top = highest_of(highest);
    for (int64_t s = 0; s < n.ld; s += LANES) {
      const Lanes e = exp_of(load(row + s) - top);
      sum += e;
      store(row + s, e);
    }
    const float share = 1.0f / sum_of(sum);
    for (int64_t s = 0; s < n.ld; s += LANES) store(row + s, load(row + s) * share);
  }
}

// Drops some of the weights (T, S) of head `item`, or the gradients of those that were not dropped.
void drop_weights(float* weights, const Sizes& n, const Dropout& drop, int64_t item) {
  for (int64_t i = 0; i < n.queries * n.ld; i += LANES) {
    store(weights + i, load(weights + i) * drop.factors(uint32_t(item * n.queries * n.ld + i)));
  }
}

// The matrix of one head in a tensor (B, T, H, C) whose last axis is dense.
template <typename T>
T* head(T* data, const Tensor& x, int64_t b, int64_t h) {
  return data + b * x.stride(0) + h * x.stride(2);
}

// softmax(q k^T / sqrt(C)) with dropout, times v: (B, T, H, C) of q (B, T, H, C), k and v (B, S, H, C), whose
// last axis is dense. `mask` broadcasts to (B, T, S). Also returns the weights (B, H, T, S padded) for backward.
std::tuple<Tensor, Tensor> attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double rate,
    int64_t seed) {
  const Sizes n(q, k, v);
  Tensor out = at::empty({n.sentences, n.queries, n.heads, n.d_v}, q.options());
  Tensor weights = at::empty({n.sentences, n.heads, n.queries, n.ld}, q.options().dtype(at::kFloat));
  const Tensor seen = mask ? mask->expand({n.sentences, n.queries, n.keys}) : Tensor();
  const Dropout drop(rate, seed);
  float* all_weights = weights.data_ptr<float>();
  dispatch(q.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T *qs = q.const_data_ptr<T>(), *ks = k.const_data_ptr<T>(), *vs = v.const_data_ptr<T>();
    T* os = out.data_ptr<T>();
    at::parallel_for(0, n.sentences * n.heads, 1, [&](int64_t begin, int64_t end) {
      const int64_t ld_k = padded(n.d_k), ld_v = padded(n.d_v);
      std::vector<float> query(n.queries * ld_k), key(n.keys * ld_k), turned(n.d_k * n.ld);
      std::vector<float> value(n.keys * ld_v), context(n.queries * ld_v), dropped(n.queries * n.ld);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t b = item / n.heads, h = item % n.heads;
        gather(head(qs, q, b, h), q.stride(1), query.data(), n.queries, n.d_k, 1.0f / std::sqrt(float(n.d_k)));
        gather(head(ks, k, b, h), k.stride(1), key.data(), n.keys, n.d_k);
        gather(head(vs, v, b, h), v.stride(1), value.data(), n.keys, n.d_v);
        transpose(key.data(), ld_k, turned.data(), n.ld, n.keys, n.d_k);
        float* w = all_weights + item * n.queries * n.ld;
        product(query.data(), ld_k, 1, turned.data(), n.ld, w, n.ld, n.queries, n.d_k, n.ld);
        softmax(w, n, mask ? seen.const_data_ptr<bool>() + b * seen.stride(0) : nullptr,
                mask ? seen.stride(1) : 0, mask ? seen.stride(2) : 0);
        const float* used = w;
        if (rate > 0.0) {
          std::copy(w, w + n.queries * n.ld, dropped.data());
          drop_weights(dropped.data(), n, drop, item);
          used = dropped.data();
        }
        product(used, n.ld, 1, value.data(), ld_v, context.data(), ld_v, n.queries, n.keys, ld_v);
        scatter(context.data(), head(os, out, b, h), out.stride(1), n.queries, n.d_v);
      }
    });
  });
  return {out, weights};
}

// Writes the gradients of q, k and v into tensors of the same shapes, whose last axes are dense.
void attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& weights, double rate,
    int64_t seed, Tensor grad_q, Tensor grad_k, Tensor grad_v) {
  const Sizes n(q, k, v);
  const Dropout drop(rate, seed);
  const float* all_weights = weights.const_data_ptr<float>();
  dispatch(q.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T *qs = q.const_data_ptr<T>(), *ks = k.const_data_ptr<T>(), *vs = v.const_data_ptr<T>();
    const T* gs = grad.const_data_ptr<T>();
    T *gq = grad_q.data_ptr<T>(), *gk = grad_k.data_ptr<T>(), *gv = grad_v.data_ptr<T>();
    at::parallel_for(0, n.sentences * n.heads, 1, [&](int64_t begin, int64_t end) {
      const int64_t ld_k = padded(n.d_k), ld_v = padded(n.d_v);
      const float scale = 1.0f / std::sqrt(float(n.d_k));
      std::vector<float> query(n.queries * ld_k), key(n.keys * ld_k), value(n.keys * ld_v), turned(n.d_v * n.ld);
      std::vector<float> context(n.queries * ld_v), dropped(n.queries * n.ld), scores(n.queries * n.ld);
      std::vector<float> result(std::max(n.queries, n.keys) * std::max(ld_k, ld_v));
      for (int64_t item = begin; item < end; ++item) {
        const int64_t b = item / n.heads, h = item % n.heads;
        gather(head(qs, q, b, h), q.stride(1), query.data(), n.queries, n.d_k);
        gather(head(ks, k, b, h), k.stride(1), key.data(), n.keys, n.d_k);
        gather(head(vs, v, b, h), v.stride(1), value.data(), n.keys, n.d_v);
        gather(head(gs, grad, b, h), grad.stride(1), context.data(), n.queries, n.d_v);
        const float* w = all_weights + item * n.queries * n.ld;
        std::copy(w, w + n.queries * n.ld, dropped.data());
        if (rate > 0.0) drop_weights(dropped.data(), n, drop, item);
        // Values: the weights, transposed, times the gradient.
        product(dropped.data(), 1, n.ld, context.data(), ld_v, result.data(), ld_v, n.keys, n.queries, ld_v);
        scatter(result.data(), head(gv, grad_v, b, h), grad_v.stride(1), n.keys, n.d_v);
        // Weights, then scores.
        transpose(value.data(), ld_v, turned.data(), n.ld, n.keys, n.d_v);
        product(context.data(), ld_v, 1, turned.data(), n.ld, scores.data(), n.ld, n.queries, n.d_v, n.ld);
        if (rate > 0.0) drop_weights(scores.data(), n, drop, item);
        for (int64_t t = 0; t < n.queries; ++t) {
          float* row = scores.data() + t * n.ld;
          const float* row_w = w + t * n.ld;
          Lanes dots = {};
          for (int64_t s = 0; s < n.ld; s += LANES) dots += load(row + s) * load(row_w + s);
          const float dot = sum_of(dots);
          for (int64_t s = 0; s < n.ld; s += LANES) store(row + s, load(row_w + s) * (load(row + s) - dot));
        }
        product(scores.data(), n.ld, 1, key.data(), ld_k, result.data(), ld_k, n.queries, n.keys, ld_k);
        scatter(result.data(), head(gq, grad_q, b, h), grad_q.stride(1), n.queries, n.d_k, scale);
        product(scores.data(), 1, n.ld, query.data(), ld_k, result.data(), ld_k, n.keys, n.queries, ld_k);
        scatter(result.data(), head(gk, grad_k, b, h), grad_k.stride(1), n.keys, n.d_k, scale);
      }
    });
  });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def("add_dropout(Tensor residual, Tensor x, float rate, int seed) -> Tensor", &add_dropout);
  m.def("dropout(Tensor x, float rate, int seed, ScalarType dtype) -> Tensor", &dropout);
  m.def("relu_dropout(Tensor x, float rate, int seed) -> Tensor", &relu_dropout);
  m.def("relu_dropout_backward(Tensor grad, Tensor out, float rate) -> Tensor", &relu_dropout_backward);
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
        &layer_norm);
  m.def("layer_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor mean, Tensor scale) -> "
        "(Tensor, Tensor, Tensor)", &layer_norm_backward);
  m.def("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float rate, int seed) -> (Tensor, Tensor)", &attention);
  m.def("attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor weights, float rate, int seed, "
        "Tensor(a!) grad_q, Tensor(b!) grad_k, Tensor(c!) grad_v) -> ()", &attention_backward);
}
