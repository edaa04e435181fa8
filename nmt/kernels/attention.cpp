// Attention in training on CPU, for float32 and bfloat16, and the rotation of its operands, which search calls, too.
// Sums and softmax are float32; on tiles the factors of all products, also the attention weights, are bfloat16.
//
// `nmt/kernels/fused.py` is the only caller, and has the plain torch code that each function is tested against.
//
// Shapes: B sentences, H heads, C channels of a head, T queries, S keys.

#include "arguments.h"
#include "deal.h"
#include "dropout.h"
#include "heads.h"
#include "lanes.h"
#include "torch.h"

#include <optional>
#include <tuple>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

// ---- rotary positions

// Rotates x (B, T, H, C): channels 2i and 2i + 1 are a point, and columns 2i and 2i + 1 of table (T, C) float32 the
// sine and cosine of the angle. `sense` is 1, or -1 to rotate back.
Tensor rotate(const Tensor& x, const Tensor& table, double sense) {
  const auto [sentences, length, heads, channels] = sizes_of<4>("x", x);
  TORCH_CHECK(channels % 2 == 0, "x must have an even number of channels, but its shape is ", in_words(x.sizes()));
  const float* angles = data_of<float>("table", table, {length, channels});
  Tensor out = at::empty(x.sizes(), x.options());
  const Vec signs = (LANE & 1) != 0 ? broadcast(float(sense)) : broadcast(-float(sense));
  dispatch("x", x.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    const T* in = data_of<T>("x", x, x.sizes(), Layout::dense_rows);
    T* result = out.data_ptr<T>();
    const int64_t rows = x.numel() ? sentences * length : 0;
    deal(rows, GRAIN / (heads * channels + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t t = row % length;
        const T* from = in + row / length * x.stride(0) + t * x.stride(1);
        T* to = result + row * heads * channels;
        for (int64_t c = 0; c < channels; c += LANES) {
          const int64_t count = channels - c;
          const Vec angle = load(angles + t * channels + c, count);
          const Vec sine = __builtin_shuffle(angle, LANE & ~1) * signs, cosine = __builtin_shuffle(angle, LANE | 1);
          for (int64_t h = 0; h < heads; ++h) {
            const Vec point = load(from + h * x.stride(2) + c, count);
            store(to + h * channels + c, point * cosine + __builtin_shuffle(point, LANE ^ 1) * sine, count);
          }
        }
      }
    });
  });
  return out;
}

// ---- attention

// Writes the rows of a product, `ld` apart, times `factor` to the matrix of a head.
template <typename T>
void write_head(const float* in, int64_t ld, const Matrix<T>& out, float factor = 1.0f) {
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; c += LANES) {
      store(out.data + r * out.stride + c, load(in + r * ld + c) * factor, out.cols - c);
    }
  }
}

// The sizes of an attention with q (B, T, H, C), k and v (B, S, H, C); `ld` is the distance of rows of weights.
struct Sizes {
  int64_t sentences, heads, queries, keys, d_k, d_v, ld;
  float scale;

  Sizes(const Tensor& q, const Tensor& k, const Tensor& v) {
    std::tie(sentences, queries, heads, d_k) = std::tuple_cat(sizes_of<4>("q", q));
    keys = sizes_of<4>("k", k)[1];
    d_v = sizes_of<4>("v", v)[3];
    TORCH_CHECK(d_k > 0 && d_v > 0, "q and v must have channels, but their shapes are ", in_words(q.sizes()), " and ",
                in_words(v.sizes()));
    ld = padded(keys);
    scale = 1.0f / std::sqrt(float(d_k));
  }

  // The number of products, one for each head; none without queries or keys, and then all results are 0.
  int64_t num_products() const { return queries > 0 && keys > 0 ? sentences * heads : 0; }
  Tensor result(at::IntArrayRef shape, const at::TensorOptions& options) const {
    return num_products() > 0 ? at::empty(shape, options) : at::zeros(shape, options);
  }

  // The data of q, k and v.
  template <typename T>
  const T* query_data(const Tensor& q) const {
    return data_of<T>("q", q, {sentences, queries, heads, d_k}, Layout::dense_rows);
  }
  template <typename T>
  const T* key_data(const Tensor& k) const {
    return data_of<T>("k", k, {sentences, keys, heads, d_k}, Layout::dense_rows);
  }
  template <typename T>
  const T* value_data(const Tensor& v) const {
    return data_of<T>("v", v, {sentences, keys, heads, d_v}, Layout::dense_rows);
  }

  int64_t channels() const { return std::max(d_k, d_v); }
  int64_t ld_scores() const { return padded(keys, BLOCK); }          // of products (T, S), as they are written
  int64_t ld_channels() const { return padded(channels(), BLOCK); }  // of products (T or S, C)

  // Room for either product.
  int64_t buffer_size() const {
    return std::max(padded(queries, BLOCK) * ld_scores(), padded(std::max(queries, keys), BLOCK) * ld_channels());
  }
};

// Writes softmax(scores / sqrt(C)) of scores (T, S), whose rows lie `ld` apart. `mask`, unless null, is True where a
// query may attend to a key, with strides `mask_t` and `mask_s`; scores are overwritten with -inf elsewhere.
void masked_softmax(float* scores, int64_t ld, float* weights, const Sizes& n, const bool* mask, int64_t mask_t,
                    int64_t mask_s) {
  for (int64_t t = 0; t < n.queries; ++t) {
    float* row = scores + t * ld;
    if (mask != nullptr) {
      for (int64_t s = 0; s < n.keys; ++s) {
        if (!mask[t * mask_t + s * mask_s]) row[s] = -INFINITE;
      }
    }
    softmax(row, n.keys, n.scale, weights + t * n.ld);
  }
}

// Applies dropout to weights (T, S) of head `item`, whose rows lie `ld` apart, or to their gradients.
void drop_weights(const float* in, int64_t ld, float* out, const Sizes& n, const Dropout& drop, int64_t item) {
  for (int64_t t = 0; t < n.queries; ++t) {
    for (int64_t s = 0; s < n.ld; s += LANES) {
      const uint32_t place = uint32_t((item * n.queries + t) * n.ld + s);
      store(out + t * n.ld + s, load(in + t * ld + s) * drop.factors(place));
    }
  }
}

// The matrix of one head in a tensor (B, T, H, C) whose last axis is dense.
template <typename T>
Matrix<T> head(T* data, const Tensor& x, int64_t b, int64_t h) {
  return {data + b * x.stride(0) + h * x.stride(2), x.stride(1), x.size(1), x.size(3)};
}

// `mask` expanded to `shape`; undefined if there is none.
Tensor expanded_mask(const std::optional<Tensor>& mask, at::IntArrayRef shape) {
  if (!mask) return Tensor();
  TORCH_CHECK(at::is_expandable_to(mask->sizes(), shape), "mask must expand to ", in_words(shape), ", but has shape ",
              in_words(mask->sizes()));
  return mask->expand(shape);
}

// softmax(q k^T / sqrt(C)) with dropout, times v: (B, T, H, C) of q (B, T, H, C), k and v (B, S, H, C), whose
// last axis is dense. `mask` broadcasts to (B, T, S). Also returns the weights (B, H, T, S padded) for backward.
std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const std::optional<Tensor>& mask, double rate, int64_t seed) {
  const Sizes n(q, k, v);
  const Dropout drop(rate, seed);
  const Tensor allowed = expanded_mask(mask, {n.sentences, n.queries, n.keys});
  const bool* visible = mask ? data_of<bool>("mask", allowed, allowed.sizes(), Layout::any) : nullptr;
  Tensor out, weights;
  const auto of_heads = [&](auto* type, auto* products) {
    using T = Pointee<decltype(type)>;
    const T *qs = n.query_data<T>(q), *ks = n.key_data<T>(k), *vs = n.value_data<T>(v);
    out = n.result({n.sentences, n.queries, n.heads, n.d_v}, q.options());
    weights = at::empty({n.sentences, n.heads, n.queries, n.ld}, q.options().dtype(at::kFloat));
    T* os = out.data_ptr<T>();
    float* all_weights = weights.data_ptr<float>();
    deal(n.num_products(), 1, [&](int64_t begin, int64_t end) {
      Pointee<decltype(products)> product(n.queries, n.keys, n.channels());
      const int64_t ld_s = n.ld_scores(), ld_c = n.ld_channels();
      std::vector<float> result(n.buffer_size()), dropped(n.queries * n.ld);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t b = item / n.heads, h = item % n.heads;
        product.template operator()<InnerAxis::columns, InnerAxis::columns>(head(qs, q, b, h), head(ks, k, b, h),
                                                                            result.data(), ld_s);
        float* w = all_weights + item * n.queries * n.ld;
        masked_softmax(result.data(), ld_s, w, n, mask ? visible + b * allowed.stride(0) : nullptr,
                       mask ? allowed.stride(1) : 0, mask ? allowed.stride(2) : 0);
        if (rate > 0.0) drop_weights(w, n.ld, dropped.data(), n, drop, item);
        const float* used = rate > 0.0 ? dropped.data() : w;
        product.template operator()<InnerAxis::columns, InnerAxis::rows>(
            Matrix<const float>{used, n.ld, n.queries, n.keys}, head(vs, v, b, h), result.data(), ld_c);
        write_head(result.data(), ld_c, head(os, out, b, h));
      }
    });
  };
  dispatch("q", q.scalar_type(), [&](auto* type) {
    with_products<Pointee<decltype(type)>>([&](auto* products) { of_heads(type, products); });
  });
  return {out, weights};
}

// Writes the gradients of the scaled scores (T, S), given the gradients of the weights, whose rows lie `ld` apart.
void softmax_backward(const float* grads, int64_t ld, const float* weights, float* out, const Sizes& n) {
  for (int64_t t = 0; t < n.queries; ++t) {
    const float *grad = grads + t * ld, *w = weights + t * n.ld;
    Vec dots = {};
    for (int64_t s = 0; s < n.ld; s += LANES) dots += load(grad + s) * load(w + s);
    const float dot = horizontal_sum(dots);
    for (int64_t s = 0; s < n.ld; s += LANES) store(out + t * n.ld + s, load(w + s) * (load(grad + s) - dot));
  }
}

// Gradients of q, k and v, whose rows are dense.
std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                      const Tensor& v, const Tensor& weights, double rate,
                                                      int64_t seed) {
  const Sizes n(q, k, v);
  const Dropout drop(rate, seed);
  const float* all_weights = data_of<float>("weights", weights, {n.sentences, n.heads, n.queries, n.ld});
  Tensor grad_q, grad_k, grad_v;
  const auto of_heads = [&](auto* type, auto* products) {
    using T = Pointee<decltype(type)>;
    const T *qs = n.query_data<T>(q), *ks = n.key_data<T>(k), *vs = n.value_data<T>(v);
    const T* gs = data_of<T>("grad", grad, {n.sentences, n.queries, n.heads, n.d_v}, Layout::dense_rows);
    grad_q = n.result(q.sizes(), q.options());
    grad_k = n.result(k.sizes(), q.options());
    grad_v = n.result(v.sizes(), q.options());
    T *gq = grad_q.data_ptr<T>(), *gk = grad_k.data_ptr<T>(), *gv = grad_v.data_ptr<T>();
    deal(n.num_products(), 1, [&](int64_t begin, int64_t end) {
      Pointee<decltype(products)> product(n.queries, n.keys, n.channels());
      const int64_t ld_s = n.ld_scores(), ld_c = n.ld_channels();
      std::vector<float> result(n.buffer_size()), dropped(n.queries * n.ld), scores(n.queries * n.ld);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t b = item / n.heads, h = item % n.heads;
        const float* w = all_weights + item * n.queries * n.ld;
        if (rate > 0.0) drop_weights(w, n.ld, dropped.data(), n, drop, item);
        const Matrix<const float> used{rate > 0.0 ? dropped.data() : w, n.ld, n.queries, n.keys};
        product.template operator()<InnerAxis::rows, InnerAxis::rows>(used, head(gs, grad, b, h), result.data(), ld_c);
        write_head(result.data(), ld_c, head(gv, grad_v, b, h));
        product.template operator()<InnerAxis::columns, InnerAxis::columns>(head(gs, grad, b, h), head(vs, v, b, h),
                                                                            result.data(), ld_s);
        if (rate > 0.0) drop_weights(result.data(), ld_s, dropped.data(), n, drop, item);
        const float* grads = rate > 0.0 ? dropped.data() : result.data();
        softmax_backward(grads, rate > 0.0 ? n.ld : ld_s, w, scores.data(), n);
        const Matrix<const float> changed{scores.data(), n.ld, n.queries, n.keys};
        product.template operator()<InnerAxis::columns, InnerAxis::rows>(changed, head(ks, k, b, h), result.data(),
                                                                         ld_c);
        write_head(result.data(), ld_c, head(gq, grad_q, b, h), n.scale);
        product.template operator()<InnerAxis::rows, InnerAxis::rows>(changed, head(qs, q, b, h), result.data(), ld_c);
        write_head(result.data(), ld_c, head(gk, grad_k, b, h), n.scale);
      }
    });
  };
  dispatch("q", q.scalar_type(), [&](auto* type) {
    with_products<Pointee<decltype(type)>>([&](auto* products) { of_heads(type, products); });
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def("rotate(Tensor x, Tensor table, float sense) -> Tensor", &rotate);
  m.def("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float rate, int seed) -> (Tensor, Tensor)", &attention);
  m.def(
      "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor weights, float rate, int seed) -> "
      "(Tensor, Tensor, Tensor)",
      &attention_backward);
}
