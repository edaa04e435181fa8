// What the layers of a Transformer are made of, for kernels that go through all layers of a stack in one call.
//
// Numbers are float32 but the factors of products by packed weights. The definition in plain torch is that of the
// layers in nmt/models/stack.py.
//
// Shapes: N rows (hypotheses, or positions of a source), D d_model, H heads, C channels of a head in queries and keys,
// E in values.

#pragma once

#include "arguments.h"
#include "lanes.h"
#include "linear.h"
#include "torch.h"

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace nmt {

// ---- parts of a layer

// A norm of rows (N, D): of their deviation from the mean, or of the rows as they are.
class Norm {
 public:
  Norm(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias, int64_t D, double eps, bool rms)
      : D_(D), eps_(eps), rms_(rms), bias_(data_of<float>("norm", bias, {D})) {
    TORCH_CHECK(weight.has_value(), "norm must have a weight");
    weight_ = data_of<float>("norm", *weight, {D});
  }

  // Norms the rows of all H heads of x (N, H, D), whose rows lie `stride` apart, in place.
  void in_heads(float* x, int64_t N, int64_t stride, int64_t H) const {
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t h = 0; h < H; ++h) row(x + n * stride + h * D_, x + n * stride + h * D_);
    }
  }

  // Writes the norm of the rows of x to `out`, which may be x.
  template <typename A>
  void operator()(const float* x, int64_t N, A* out) const {
    at::parallel_for(0, N, ceil_div(GRAIN, D_), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) row(x + n * D_, out + n * D_);
    });
  }

 private:
  template <typename A>
  void row(const float* x, A* out) const {
    Vec sum = {}, squares = {};
    for (int64_t i = 0; i < D_ && !rms_; i += LANES) sum += load(x + i, D_ - i);
    const float mean = rms_ ? 0.0f : horizontal_sum(sum) / D_;
    for (int64_t i = 0; i < D_; i += LANES) {
      const Vec d = load(x + i, D_ - i, mean) - mean;
      squares += d * d;
    }
    const float scale = 1.0f / std::sqrt(horizontal_sum(squares) / D_ + float(eps_));
    for (int64_t i = 0; i < D_; i += LANES) {
      const int64_t n = D_ - i;
      const Vec y = (load(x + i, n) - mean) * scale * load(weight_ + i, n);
      store(out + i, bias_ == nullptr ? y : y + load(bias_ + i, n), n);
    }
  }

  const int64_t D_;
  const double eps_;
  const bool rms_;
  const float *weight_, *bias_;
};

// Rotates channels 2i and 2i + 1 of all heads (N, H, C), whose rows lie `stride` apart; table (C) has sines and
// cosines, for each row `table_stride` further on.
inline void rotate_heads(float* x, int64_t N, int64_t stride, int64_t H, int64_t C, const float* table,
                         int64_t table_stride) {
  for (int64_t n = 0; n < N; ++n, table += table_stride) {
    for (int64_t h = 0; h < H; ++h) {
      float* row = x + n * stride + h * C;
      for (int64_t c = 0; c + 1 < C; c += 2) {
        const float even = row[c], odd = row[c + 1], sine = table[c], cosine = table[c + 1];
        row[c] = even * cosine - odd * sine;
        row[c + 1] = even * sine + odd * cosine;
      }
    }
  }
}

// The non-linearity of a feed-forward block: (N, d_ff) of inner (N, d_ff), or of gates and values (N, 2 d_ff).
inline at::Tensor activated(const at::Tensor& inner, const std::string& name) {
  const auto gated = [&](const auto& activation) {
    const auto parts = inner.chunk(2, 1);
    return activation(parts[0]).mul(parts[1]);
  };
  if (name == "gelu") return at::gelu(inner);
  if (name == "selu") return at::selu(inner);
  if (name == "silu") return at::silu(inner);
  if (name == "glu") return gated([](const at::Tensor& x) { return at::sigmoid(x); });
  if (name == "reglu") return gated([](const at::Tensor& x) { return at::relu(x); });
  if (name == "geglu") return gated([](const at::Tensor& x) { return at::gelu(x); });
  if (name == "seglu") return gated([](const at::Tensor& x) { return at::selu(x); });
  TORCH_CHECK(name == "swiglu", "activation must be one of nmt.layers.choices.Activation, but is ", name);
  return gated([](const at::Tensor& x) { return at::silu(x); });
}

inline bool is_gated(const std::string& name) { return name.size() > 2 && name.ends_with("glu"); }

// 1 / (1 + exp(-x)), of an exponential that is never above 1.
inline Vec sigmoid(Vec x) {
  const Vec small = exp_nonpositive(x < Vec{} ? x : -x), one = broadcast(1.0f);
  return (x < Vec{} ? small : one) / (one + small);
}

// ---- attention

// The queries (N, H, C) of all rows, and where the sums of values (N, H, E) go.
template <typename A>
struct Heads {
  const float* queries;
  A* out;
  int64_t N, H, C, E;

  float scale() const { return 1.0f / std::sqrt(float(C)); }
};

// sums[k * step] (E) = the sum of weights[k * ld + t] values(t) over t < T, for k < K; values(t) is a row of E numbers.
template <int64_t K, typename Values, typename A>
inline void add_values(const float* weights, int64_t ld, int64_t T, int64_t E, const Values& values, A* sums,
                       int64_t step) {
  int64_t e = 0;
  const auto add = [&](auto vectors) {  // of a row at once, whose chains of additions do not wait for one another
    for (; E - e > (vectors - 1) * LANES; e += vectors * LANES) {
      Vec total[K][vectors] = {};
      for (int64_t t = 0; t < T; ++t) {
        const auto* row = values(t) + e;
        for (int64_t i = 0; i < vectors; ++i) {
          const Vec value = load(row + i * LANES, E - e - i * LANES);
          for (int64_t k = 0; k < K; ++k) total[k][i] += weights[k * ld + t] * value;
        }
      }
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t i = 0; i < vectors; ++i) store(sums + k * step + e + i * LANES, total[k][i], E - e - i * LANES);
      }
    }
  };
  add(std::integral_constant<int64_t, std::min<int64_t>(4, (REGISTERS - 4) / K)>{});
  add(std::integral_constant<int64_t, 2>{});
  add(std::integral_constant<int64_t, 1>{});
}

// columns (C, ld) = rows (length, C), which lie `stride` apart, transposed, in the type of `columns`; zeros up to column
// padded(length) of them.
template <typename T>
void transpose_rows(const float* rows, int64_t stride, int64_t length, int64_t C, T* columns, int64_t ld) {
  for (int64_t t = 0; t < length; t += LANES) {
    for (int64_t c = 0; c < C; c += LANES) {
      UIntVec square[LANES] = {};
      for (int64_t i = 0; i < std::min(LANES, length - t); ++i) {
        square[i] = (UIntVec)load(rows + (t + i) * stride + c, C - c);
      }
      transpose(square);
      for (int64_t i = 0; i < std::min(LANES, C - c); ++i) store(columns + (c + i) * ld + t, (Vec)square[i]);
    }
  }
}

// The keys (C, ld) of one head, whose columns are positions: the first `length`, or those of them that are `allowed`.
template <typename T>
struct Columns {
  const T* keys;
  int64_t C, ld, length;
  const bool* allowed = nullptr;
};

// Attention of K queries (C) of one head, `step` numbers apart, to `keys`: sums (K, E) of values(t), `sums_step`
// numbers apart. `scores` has room for (K, ld).
template <int64_t K, typename T, typename Values, typename A>
inline void attend_to_columns(const float* queries, int64_t step, const Columns<T>& keys, const Values& values,
                              float* scores, A* sums, int64_t sums_step, int64_t E) {
  constexpr int64_t CHAINS = K == 1 ? 4 : 1;  // of additions, which do not wait for one another
  const auto [columns, C, ld, length, allowed] = keys;
  const float scale = 1.0f / std::sqrt(float(C));
  for (int64_t s = 0; s < length; s += LANES) {
    Vec dots[K][CHAINS] = {};
    const auto add = [&](int64_t c, int64_t chain) {
      const Vec key = load(columns + c * ld + s);
      for (int64_t k = 0; k < K; ++k) dots[k][chain] += queries[k * step + c] * key;
    };
    int64_t c = 0;
    for (; c + CHAINS <= C; c += CHAINS) {
      for (int64_t i = 0; i < CHAINS; ++i) add(c + i, i);
    }
    for (; c < C; ++c) add(c, 0);
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t i = 1; i < CHAINS; ++i) dots[k][0] += dots[k][i];
      store(scores + k * ld + s, dots[k][0] * scale);
    }
  }
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t s = 0; s < length && allowed != nullptr; ++s) {
      scores[k * ld + s] = allowed[s] ? scores[k * ld + s] : -INFINITE;
    }
    softmax(scores + k * ld, length, 1.0f, scores + k * ld);
  }
  add_values<K>(scores, ld, length, E, values, sums, sums_step);
}

constexpr int64_t MOST_TOGETHER = 5;  // queries that read keys and values together

// Calls attend(K, n) for all n from `first` to `last`, K of them at once.
template <typename F>
inline void for_groups(int64_t first, int64_t last, const F& attend) {
  const auto step = [&](auto size) {
    for (; first + size <= last; first += size) attend(size, first);
  };
  step(std::integral_constant<int64_t, MOST_TOGETHER>{});
  step(std::integral_constant<int64_t, 4>{});
  step(std::integral_constant<int64_t, 1>{});
}

// ---- a layer

constexpr size_t OF_ATTENTION = 10, OF_BLOCK = 6;  // weights of self-attention and of a feed-forward block

struct Sizes {
  int64_t N, D, H, C, E;
};

// What is the same in all layers.
struct Shared {
  Sizes sizes;
  bool pre_norm, rms_norm;
  double eps, head_eps;
  std::string activation;
  const float* angles;  // (C), or (N, C), or null
};

using Weights = const std::vector<std::optional<at::Tensor>>&;

// The checks of the arguments that kernels of layers share.
inline void check_sizes(std::initializer_list<int64_t> sizes) {
  for (const int64_t size : sizes) {
    TORCH_CHECK(size > 0 && size <= 1 << 20, "sizes must be from 1 to ", 1 << 20, ", but one is ", size);
  }
}

inline void check_weights(const c10::List<std::optional<at::Tensor>>& weights, int64_t wanted) {
  TORCH_CHECK(int64_t(weights.size()) == wanted, "weights must be ", wanted, " tensors, but are ", weights.size());
}

inline const float* angles_of(const std::optional<at::Tensor>& angles, int64_t rows, int64_t C) {
  TORCH_CHECK(!angles || C % 2 == 0, "key_size must be even, but is ", C);
  return data_of<float>("angles", angles, {rows, C});
}

// Returns scratch memory.
template <typename T = float>
std::unique_ptr<T[]> room(int64_t count) {
  return std::make_unique_for_overwrite<T[]>(count);
}

inline LinearMap linear_map(Weights weights, size_t place, int64_t outputs, int64_t inputs) {
  TORCH_CHECK(weights[place].has_value(), "weights must have a tensor in place ", place);
  return LinearMap("weights", *weights[place], weights[place + 1], outputs, inputs);
}

// Norms the heads of x (N, H, C), whose rows lie `stride` apart, by the mean of their squares, if weights are in place.
inline void norm_heads(float* x, int64_t stride, Weights weights, size_t place, const Shared& shared) {
  const auto [N, D, H, C, E] = shared.sizes;
  if (weights[place].has_value())
    Norm(weights[place], std::nullopt, C, shared.head_eps, true).in_heads(x, N, stride, H);
}

// Writes the queries (N, H * C) of self-attention, and its keys and values (N, H * C + H * E), of the rows `in` (N, D):
// normed in heads and rotated. Rows of the angles lie `step` apart.
template <typename A>
void project(const A* in, Weights weights, size_t place, const Shared& shared, int64_t step, float* queries,
             float* keys_values) {
  const auto [N, D, H, C, E] = shared.sizes;
  const int64_t width = H * (C + E);
  linear_map(weights, place + 2, H * C, D)(in, N, queries);
  linear_map(weights, place + 4, width, D)(in, N, keys_values);
  norm_heads(queries, H * C, weights, place + 8, shared);
  norm_heads(keys_values, width, weights, place + 9, shared);
  if (shared.angles != nullptr) {
    rotate_heads(queries, N, H * C, H, C, shared.angles, step);
    rotate_heads(keys_values, N, width, H, C, shared.angles, step);
  }
}

// x = x + sublayer(norm(x)), or norm(x + sublayer(x)): sublayer(in, finish) ends in a linear map with this finish. Rows
// that linear maps take, as `in`, are of A: bfloat16 where all weights are in tiles, which multiply them where they
// lie.
template <typename A, typename F>
void residual(float* x, Weights weights, size_t place, const Shared& shared, const F& sublayer) {
  const auto [N, D, H, C, E] = shared.sizes;
  const Norm norm(weights[place], weights[place + 1], D, shared.eps, shared.rms_norm);
  const auto add = [x, D](int64_t r, int64_t c, Vec sum, int64_t n) { return sum + load(x + r * D + c, n); };
  if (shared.pre_norm) {
    const auto normed = room<A>(N * D);
    norm(x, N, normed.get());
    sublayer(normed.get(), add);
    return;
  }
  if constexpr (std::is_same_v<A, float>) {
    sublayer(x, add);
  } else {
    const auto rounded = room<A>(N * D);
    for (int64_t i = 0; i < N * D; i += LANES) store(rounded.get() + i, load(x + i, N * D - i), N * D - i);
    sublayer(rounded.get(), add);
  }
  norm(x, N, x);
}

template <typename A>
void feed_forward(float* x, Weights weights, size_t place, const Shared& shared, int64_t d_ff) {
  const auto [N, D, H, C, E] = shared.sizes;
  residual<A>(x, weights, place, shared, [&](const A* in, const auto& finish) {
    const int64_t width = is_gated(shared.activation) ? 2 * d_ff : d_ff;
    const LinearMap inner = linear_map(weights, place + 2, width, D), outer = linear_map(weights, place + 4, D, d_ff);
    if (shared.activation == "relu") {
      const auto hidden = room<A>(N * d_ff);
      inner(in, N, hidden.get(), [](int64_t, int64_t, Vec sum, int64_t) { return maximum(Vec{}, sum); });
      outer(hidden.get(), N, x, finish);
    } else {
      const at::Tensor products = at::empty({N, width}, at::kFloat);
      inner(in, N, products.data_ptr<float>());
      const at::Tensor hidden = activated(products, shared.activation).to(c10::CppTypeToScalarType<A>::value);
      outer(hidden.const_data_ptr<A>(), N, x, finish);
    }
  });
}

// Whether linear maps are given rows of bfloat16: all their weights are in tiles.
inline bool takes_bfloat16(Weights weights) {
  bool has_tiles = false;
  for (const auto& weight : weights) {
    if (!weight.has_value()) continue;
    if (weight->scalar_type() == at::kChar || weight->dim() == 2) return false;
    has_tiles |= weight->scalar_type() == at::kByte;
  }
  return has_tiles;
}

}  // namespace nmt
