// Attention in training on CPU, for float32 and bfloat16; the arithmetic is float32 whatever the type of the tensors.
//
// `nmt/fused.py` is the only caller, and has the plain torch code that each function is tested against.
//
// Shapes: B sentences, H heads, C channels of a head, T queries, S keys.

#include "dispatch.h"
#include "dropout.h"
#include "lanes.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

// ---- rotary positions

// x (B, T, H, C), channels 2i and 2i + 1 as a point that is turned around the origin, by the angle whose sine and
// cosine are in columns 2i and 2i + 1 of table (T, C) float32; `sense` -1 turns back.
Tensor turned(const Tensor& x, const Tensor& table, double sense) {
  const int64_t sentences = x.size(0), length = x.size(1), heads = x.size(2), channels = x.size(3);
  Tensor out = at::empty(x.sizes(), x.options());
  const float* angles = table.const_data_ptr<float>();
  const Ints sines = {0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14};
  const Ints swapped = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
  const float s = float(sense);
  const Lanes signs = {-s, s, -s, s, -s, s, -s, s, -s, s, -s, s, -s, s, -s, s};
  dispatch(x.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T* in = x.const_data_ptr<T>();
    T* result = out.data_ptr<T>();
    at::parallel_for(0, sentences * length, GRAIN / (heads * channels) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t t = row % length;
        const T* from = in + row / length * x.stride(0) + t * x.stride(1);
        T* to = result + row * heads * channels;
        for (int64_t c = 0; c < channels; c += LANES) {
          const int64_t count = channels - c;
          const Lanes angle = load(angles + t * channels + c, count);
          const Lanes sine = __builtin_shuffle(angle, sines) * signs, cosine = __builtin_shuffle(angle, sines + 1);
          for (int64_t h = 0; h < heads; ++h) {
            const Lanes point = load(from + h * x.stride(2) + c, count);
            store(to + h * channels + c, point * cosine + __builtin_shuffle(point, swapped) * sine, count);
          }
        }
      }
    });
  });
  return out;
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
  m.def("turned(Tensor x, Tensor table, float sense) -> Tensor", &turned);
  m.def("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float rate, int seed) -> (Tensor, Tensor)", &attention);
  m.def("attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor weights, float rate, int seed, "
        "Tensor(a!) grad_q, Tensor(b!) grad_k, Tensor(c!) grad_v) -> ()", &attention_backward);
}
