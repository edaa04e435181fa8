// Fused steps of training on CPU, for float32 and bfloat16: dropout, layer norm, attention, the vocabulary loss.
//
// Each function does in one pass over memory what takes torch several; the arithmetic is float32 whatever the
// type of the tensors. Dropout masks are never stored: whether element i is kept is a hash of (seed, i), so
// that backward repeats the decision of forward, whatever the number of threads.
// `nmt/fused.py` is the only caller, and has the plain torch code that each function is tested against.
//
// Shapes: M rows, D width, B sentences, H heads, C channels of a head, T queries, S keys, V vocabulary.

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include <immintrin.h>

namespace {

using at::Tensor;

// Calls f with a null pointer of the C++ type that `type` stands for.
template <typename F>
void dispatch(at::ScalarType type, const F& f) {
  if (type == at::kFloat) {
    f(static_cast<float*>(nullptr));
  } else {
    TORCH_CHECK(type == at::kBFloat16, "float32 or bfloat16, not ", type);
    f(static_cast<at::BFloat16*>(nullptr));
  }
}

template <typename P>
using Pointee = std::remove_pointer_t<P>;

// ---- numbers: 16 at a time, as float32

constexpr int64_t LANES = 16;
typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

constexpr float INFINITE = std::numeric_limits<float>::infinity();

inline int64_t padded(int64_t size) { return (size + LANES - 1) / LANES * LANES; }
inline Lanes all(float x) { return x - Lanes{}; }
inline Lanes max_of(Lanes a, Lanes b) { return a > b ? a : b; }

inline Lanes load(const float* p) {
  Lanes x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

inline void store(float* p, Lanes x) { std::memcpy(p, &x, sizeof(x)); }

inline Lanes load(const at::BFloat16* p) {
  Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  return (Lanes)(__builtin_convertvector(halves, Words) << 16);
}

inline Halves rounded(Lanes x) {  // to the nearest bfloat16, ties to even
#ifdef __AVX512BF16__
  return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
  const Words bits = (Words)x;
  return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
#endif
}

inline void store(at::BFloat16* p, Lanes x) {
  const Halves halves = rounded(x);
  std::memcpy(p, &halves, sizeof(halves));
}

// The same for the last `count` < LANES numbers of an array.
template <typename T>
inline Lanes load(const T* p, int64_t count, float filling = 0.0f) {
  if (count >= LANES) return load(p);
  T part[LANES];
  std::fill(part, part + LANES, T(filling));
  std::copy(p, p + count, part);
  return load(part);
}

template <typename T>
inline void store(T* p, Lanes x, int64_t count) {
  if (count >= LANES) return store(p, x);
  T part[LANES];
  store(part, x);
  std::copy(part, part + count, p);
}

inline float sum_of(Lanes x) {
  float sum = 0.0f;
  for (int i = 0; i < LANES; ++i) sum += x[i];
  return sum;
}

inline float highest_of(Lanes x) {
  float highest = x[0];
  for (int i = 1; i < LANES; ++i) highest = std::max(highest, x[i]);
  return highest;
}

// e^x for x <= 0 to about 1e-7 of its value; 0 for what float32 rounds to 0.
inline Lanes exp_of(Lanes x) {
  const Lanes seen = max_of(x, all(-87.0f));
  const Ints n = __builtin_convertvector(seen * 1.44269504f - 0.5f, Ints);  // towards 0, so to the nearest
  const Lanes whole = __builtin_convertvector(n, Lanes);
  const Lanes r = (seen - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Lanes result = p * (Lanes)((n + 127) << 23);
  return x < -87.0f ? Lanes{} : result;
}

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

constexpr int64_t GRAIN = 1 << 14;  // elements that are worth a thread

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

// ---- loss

// Turns logits (M, V) into the gradient of the label-smoothed loss, in place; returns (M, 2): the negative log
// likelihood of each target, and the mean of that over the vocabulary.
Tensor smoothed_nll_(Tensor logits, const Tensor& targets, double smoothing) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  Tensor losses = at::empty({rows, 2}, logits.options().dtype(at::kFloat));
  float* out = losses.data_ptr<float>();
  const int64_t* wanted = targets.const_data_ptr<int64_t>();
  const float even = float(smoothing / double(vocabulary)), sure = float(1.0 - smoothing);
  dispatch(logits.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    T* all_logits = logits.data_ptr<T>();
    at::parallel_for(0, rows, 4, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(padded(vocabulary));
      float* e = buffer.data();
      for (int64_t m = begin; m < end; ++m) {
        T* row = all_logits + m * vocabulary;
        Lanes highest = all(-INFINITE), total = {}, sum = {};
        for (int64_t i = 0; i < vocabulary; i += LANES) {
          highest = max_of(highest, load(row + i, vocabulary - i, -INFINITE));
          total += load(row + i, vocabulary - i);
        }
        const float top = highest_of(highest), target = float(row[wanted[m]]);
        for (int64_t i = 0; i < vocabulary; i += LANES) {
          const Lanes x = exp_of(load(row + i, vocabulary - i, -INFINITE) - top);
          sum += x;
          store(e + i, x);
        }
        const float log_sum = top + std::log(sum_of(sum)), share = 1.0f / sum_of(sum);
        for (int64_t i = 0; i < vocabulary; i += LANES) store(row + i, load(e + i) * share - even, vocabulary - i);
        row[wanted[m]] = T(e[wanted[m]] * share - even - sure);
        out[2 * m] = log_sum - target;
        out[2 * m + 1] = log_sum - sum_of(total) / float(vocabulary);
      }
    });
  });
  return losses;
}

// ---- matrix products in bfloat16 on the tiles of AMX, for where has_tiles() of decode.cpp says so

#ifdef __AMX_BF16__

// Tiles have 16 rows of 64 bytes: 16 x 32 bfloat16, or 16 x 16 float32. The right matrix of a product is kept in
// tiles of pairs: word [p][c] holds rows 2p and 2p + 1 of column c.
constexpr int64_t EDGE = 16, DEPTH = 32, BLOCK = 2 * EDGE;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Configures the tiles of this thread, and restores what another library has set up.
class Tiles {
 public:
  Tiles() {
    _tile_storeconfig(&before_);
    const TileConfig wanted;
    _tile_loadconfig(&wanted);
  }
  ~Tiles() { _tile_loadconfig(&before_); }

 private:
  TileConfig before_;
};

// Turns a square of 16 x 16 words around its diagonal.
void turn(Words (&rows)[EDGE]) {
  for (uint32_t step = 1; step < EDGE; step *= 2) {
    Words low, high;
    for (uint32_t c = 0; c < EDGE; ++c) {
      low[c] = c & step ? EDGE + c - step : c;
      high[c] = c & step ? EDGE + c : c + step;
    }
    for (uint32_t i = 0; i < EDGE; ++i) {
      if (i & step) continue;
      const Words a = rows[i], b = rows[i + step];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + step] = __builtin_shuffle(a, b, high);
    }
  }
}

void turn_block(float* sums) {
  Words square[EDGE];
  const auto read = [&](int64_t i, int64_t j) {
    for (int64_t r = 0; r < EDGE; ++r) square[r] = (Words)load(sums + (i + r) * BLOCK + j);
    turn(square);
  };
  const auto write = [&](int64_t i, int64_t j, const Words* rows) {
    for (int64_t r = 0; r < EDGE; ++r) store(sums + (i + r) * BLOCK + j, (Lanes)rows[r]);
  };
  read(0, EDGE);
  Words upper[EDGE];
  std::copy(square, square + EDGE, upper);
  read(EDGE, 0);
  write(0, EDGE, square);
  write(EDGE, 0, upper);
  for (int64_t i = 0; i < BLOCK; i += EDGE) {
    read(i, i);
    write(i, i, square);
  }
}

// 16 numbers as bfloat16, of which `count` or all exist; the others are zeros.
inline Halves halves(const float* p, int64_t count) { return rounded(load(p, count)); }

inline Halves halves(const at::BFloat16* p, int64_t count) {
  Halves x = {};
  std::memcpy(&x, p, sizeof(at::BFloat16) * std::min(count, LANES));
  return x;
}

// 16 words of a column of pairs: elements of rows `r` and `r + 1`, columns from `c` on; beyond the matrix stand zeros.
template <typename T>
inline Words pairs(const T* in, int64_t ld, int64_t rows, int64_t cols, int64_t r, int64_t c) {
  if (r >= rows || c >= cols) return Words{};
  const Words first = __builtin_convertvector(halves(in + r * ld + c, cols - c), Words);
  if (r + 1 >= rows) return first;
  return first | __builtin_convertvector(halves(in + (r + 1) * ld + c, cols - c), Words) << 16;
}

// 16 words of a row: elements c .. c + 31 of row r.
template <typename T>
inline Words run(const T* in, int64_t ld, int64_t rows, int64_t cols, int64_t r, int64_t c) {
  Halves parts[2] = {};
  if (r < rows && c < cols) parts[0] = halves(in + r * ld + c, cols - c);
  if (r < rows && c + LANES < cols) parts[1] = halves(in + r * ld + c + LANES, cols - c - LANES);
  Words words;
  std::memcpy(&words, parts, sizeof(words));
  return words;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A matrix in tiles, ordered by blocks of EDGE rows (left) or columns (right), then by DEPTH along the inner axis.
struct Packed {
  int64_t edges, depths;
  Tensor words;

  Packed(int64_t size, int64_t inner)
      : edges(2 * ceil_div(size, BLOCK)),
        depths(ceil_div(inner, DEPTH)),
        words(at::empty({edges * depths * EDGE * EDGE}, at::kInt)) {}
  int32_t* tile(int64_t edge, int64_t depth) const {
    return words.data_ptr<int32_t>() + (edge * depths + depth) * EDGE * EDGE;
  }
};

enum class From { rows, columns };

// Writes the tiles `first` .. `last` along the inner axis of a matrix (rows, cols), which runs down its rows or along
// its columns. `PAIRED` tiles are those of a right factor.
template <bool PAIRED, From INNER, typename T>
void pack_part(const T* in, int64_t ld, int64_t rows, int64_t cols, const Packed& packed, int64_t first, int64_t last) {
  constexpr bool down = INNER == From::rows;
  Words tile[EDGE];
  int32_t* words = packed.tile(0, 0);
  for (int64_t d = first; d < last; ++d) {
    for (int64_t e = 0; e < packed.edges; ++e) {
      for (int64_t i = 0; i < EDGE; ++i) {
        tile[i] = down ? pairs(in, ld, rows, cols, d * DEPTH + 2 * i, e * EDGE)
                       : run(in, ld, rows, cols, e * EDGE + i, d * DEPTH);
      }
      if (PAIRED != down) turn(tile);
      std::memcpy(words + (e * packed.depths + d) * EDGE * EDGE, tile, sizeof(tile));
    }
  }
}

// The tiles of a matrix (rows, cols).
template <bool PAIRED, From INNER, typename T>
Packed pack(const T* in, int64_t ld, int64_t rows, int64_t cols) {
  constexpr bool down = INNER == From::rows;
  const Packed packed(down ? cols : rows, down ? rows : cols);
  at::parallel_for(0, packed.depths, 1 + 64 / packed.edges, [&](int64_t begin, int64_t end) {
    pack_part<PAIRED, INNER>(in, ld, rows, cols, packed, begin, end);
  });
  return packed;
}

// sums (BLOCK, BLOCK) = left (BLOCK, depth) right (depth, BLOCK), each given by its two first tiles of `depths`
inline void multiply_block(
    const int32_t* left0, const int32_t* left1, const int32_t* right0, const int32_t* right1, int64_t depths,
    float* sums) {
  constexpr int64_t tile = EDGE * EDGE, row = 64;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < depths; ++d) {
    _tile_loadd(4, left0 + d * tile, row);
    _tile_loadd(6, right0 + d * tile, row);
    _tile_loadd(5, left1 + d * tile, row);
    _tile_loadd(7, right1 + d * tile, row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, BLOCK * 4);
  _tile_stored(1, sums + EDGE, BLOCK * 4);
  _tile_stored(2, sums + EDGE * BLOCK, BLOCK * 4);
  _tile_stored(3, sums + EDGE * BLOCK + EDGE, BLOCK * 4);
}

constexpr int64_t CHUNK = 64;  // rows of the left factor that stay in the cache

// Calls use(row, col, sums, count) for 16 columns of left (rows, inner) times right, of which `count` or all exist.
template <typename F>
void multiply(const at::BFloat16* left, int64_t rows, int64_t inner, const Packed& right, int64_t cols, const F& use) {
  at::parallel_for(0, ceil_div(rows, CHUNK), 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    alignas(64) float sums[BLOCK * BLOCK];
    const Packed part(CHUNK, inner);
    for (int64_t first = begin * CHUNK; first < std::min(rows, end * CHUNK); first += CHUNK) {
      const int64_t count = std::min(CHUNK, rows - first);
      pack_part<false, From::columns>(left + first * inner, inner, count, inner, part, 0, part.depths);
      for (int64_t e = 0; e < right.edges; e += 2) {
        for (int64_t r = 0; r * EDGE < count; r += 2) {
          multiply_block(
              part.tile(r, 0), part.tile(r + 1, 0), right.tile(e, 0), right.tile(e + 1, 0), right.depths, sums);
          const int64_t top = r * EDGE, side = e * EDGE;
          for (int64_t i = 0; i < std::min(BLOCK, count - top); ++i) {
            for (int64_t j = 0; j < std::min(BLOCK, cols - side); j += LANES) {
              use(first + top + i, side + j, load(sums + i * BLOCK + j), cols - side - j);
            }
          }
        }
      }
    }
  });
}

// out (rows, cols) += left^T right, for left (size, rows) and right (size, cols), both bfloat16.
void add_outer(
    const at::BFloat16* left, int64_t rows, const at::BFloat16* right, int64_t cols, int64_t size, float* out) {
  // Turning around is dearer than pairing: turn the narrower one. It also is the one that stays in the cache.
  const bool swapped = cols < rows;
  const int64_t height = std::min(rows, cols), width = std::max(rows, cols);
  const Packed a = pack<false, From::rows>(swapped ? right : left, height, size, height);
  const Packed b = pack<true, From::rows>(swapped ? left : right, width, size, width);
  const int64_t step = std::max<int64_t>(256, (1 << 18) / height) / DEPTH;
  at::parallel_for(0, b.edges / 2, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    alignas(64) float sums[BLOCK * BLOCK];
    for (int64_t d = 0; d < a.depths; d += step) {
      const int64_t depths = std::min(step, a.depths - d);
      for (int64_t f = 2 * begin; f < 2 * end; f += 2) {
        for (int64_t e = 0; e < a.edges; e += 2) {
          multiply_block(a.tile(e, d), a.tile(e + 1, d), b.tile(f, d), b.tile(f + 1, d), depths, sums);
          if (swapped) turn_block(sums);
          const int64_t top = (swapped ? f : e) * EDGE, side = (swapped ? e : f) * EDGE;
          for (int64_t i = 0; i < std::min(BLOCK, rows - top); ++i) {
            for (int64_t j = 0; j < std::min(BLOCK, cols - side); j += LANES) {
              float* o = out + (top + i) * cols + side + j;
              const int64_t n = cols - side - j;
              store(o, load(o, n) + load(sums + i * BLOCK + j), n);
            }
          }
        }
      }
    }
  });
}

// x (M, K) weight^T + bias: bfloat16 (M, N), for x bfloat16, weight (N, K) and bias (N,) float32.
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const int64_t rows = x.size(0), inner = weight.size(1), cols = weight.size(0);
  Tensor out = at::empty({rows, cols}, x.options());
  at::BFloat16* o = out.data_ptr<at::BFloat16>();
  const float* b = bias ? bias->const_data_ptr<float>() : nullptr;
  const Packed right = pack<true, From::columns>(weight.const_data_ptr<float>(), inner, cols, inner);
  multiply(x.const_data_ptr<at::BFloat16>(), rows, inner, right, cols, [=](int64_t r, int64_t c, Lanes sum, int64_t n) {
    store(o + r * cols + c, b == nullptr ? sum : sum + load(b + c, n), n);
  });
  return out;
}

// Gradients of x, weight and bias; those of the last two are float32.
std::tuple<Tensor, Tensor, Tensor> linear_backward(
    const Tensor& grad, const Tensor& x, const Tensor& weight, bool needs_x, bool has_bias) {
  const int64_t rows = x.size(0), inner = weight.size(1), cols = weight.size(0);
  const at::BFloat16* g = grad.const_data_ptr<at::BFloat16>();
  Tensor grad_x, grad_bias, grad_weight = at::zeros_like(weight);
  if (needs_x) {
    grad_x = at::empty_like(x);
    at::BFloat16* o = grad_x.data_ptr<at::BFloat16>();
    const Packed right = pack<true, From::rows>(weight.const_data_ptr<float>(), inner, cols, inner);
    multiply(g, rows, cols, right, inner, [=](int64_t r, int64_t c, Lanes sum, int64_t n) {
      store(o + r * inner + c, sum, n);
    });
  }
  add_outer(g, cols, x.const_data_ptr<at::BFloat16>(), inner, rows, grad_weight.data_ptr<float>());
  if (has_bias) {
    grad_bias = at::zeros({cols}, weight.options());
    float* b = grad_bias.data_ptr<float>();
    at::parallel_for(0, ceil_div(cols, LANES), GRAIN / (LANES * rows + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t c = begin * LANES; c < std::min(cols, end * LANES); c += LANES) {
          const int64_t n = cols - c;
          store(b + c, load(b + c, n) + load(g + m * cols + c, n), n);
        }
      }
    });
  }
  return {grad_x, grad_weight, grad_bias};
}

// The label-smoothed loss of hidden states (M, D) times weight^T, for weight (V, D) float32; see `smoothed_nll_`.
// Returns (M, 2) losses and the gradients of hidden and weight. No more than LOGIT_ROWS rows of logits exist at a time.
std::tuple<Tensor, Tensor, Tensor> projected_nll(
    const Tensor& hidden, const Tensor& weight, const Tensor& targets, double smoothing) {
  constexpr int64_t LOGIT_ROWS = 1024;
  const int64_t rows = hidden.size(0), inner = weight.size(1), vocabulary = weight.size(0);
  Tensor losses = at::empty({rows, 2}, weight.options());
  Tensor grad_hidden = at::empty_like(hidden), grad_weight = at::zeros_like(weight);
  const Packed forward = pack<true, From::columns>(weight.const_data_ptr<float>(), inner, vocabulary, inner);
  const Packed backward = pack<true, From::rows>(weight.const_data_ptr<float>(), inner, vocabulary, inner);
  const Tensor buffer = at::empty({std::min(rows, LOGIT_ROWS), vocabulary}, hidden.options());
  at::BFloat16* l = buffer.data_ptr<at::BFloat16>();
  for (int64_t first = 0; first < rows; first += LOGIT_ROWS) {
    const int64_t count = std::min(LOGIT_ROWS, rows - first);
    const at::BFloat16* h = hidden.const_data_ptr<at::BFloat16>() + first * inner;
    at::BFloat16* gh = grad_hidden.data_ptr<at::BFloat16>() + first * inner;
    multiply(h, count, inner, forward, vocabulary, [=](int64_t r, int64_t c, Lanes sum, int64_t n) {
      store(l + r * vocabulary + c, sum, n);
    });
    losses.narrow(0, first, count)
        .copy_(smoothed_nll_(buffer.narrow(0, 0, count), targets.narrow(0, first, count), smoothing));
    multiply(l, count, vocabulary, backward, inner, [=](int64_t r, int64_t c, Lanes sum, int64_t n) {
      store(gh + r * inner + c, sum, n);
    });
    add_outer(l, vocabulary, h, inner, count, grad_weight.data_ptr<float>());
  }
  return {losses, grad_hidden, grad_weight};
}

#endif

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
#ifdef __AMX_BF16__
  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", &linear);
  m.def("linear_backward(Tensor grad, Tensor x, Tensor weight, bool needs_x, bool has_bias) -> (Tensor, Tensor, Tensor)",
        &linear_backward);
  m.def("projected_nll(Tensor hidden, Tensor weight, Tensor targets, float smoothing) -> (Tensor, Tensor, Tensor)",
        &projected_nll);
#endif
  m.def("smoothed_nll_(Tensor(a!) logits, Tensor targets, float smoothing) -> Tensor", &smoothed_nll_);
}
