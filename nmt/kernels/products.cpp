// Matrix products of training in bfloat16, on the tiles of AMX, and the vocabulary loss, which is built on them.
//
// `nmt/kernels/fused.py` is the only caller. It asks has_tiles() before it multiplies.
//
// Shapes: M rows, K and N the widths of a linear map, D width of the hidden states, V vocabulary.

#include "arguments.h"
#include "deal.h"
#include "dropout.h"
#include "lanes.h"
#include "products.h"
#include "torch.h"

#include <optional>
#include <tuple>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

// ---- loss

// Turns logits (M, V) into the gradient of the label-smoothed loss, in place; returns (M, 2): the negative log
// likelihood of each target, and the mean negative log likelihood of all tokens of the vocabulary.
Tensor smoothed_nll_(Tensor logits, const Tensor& targets, double smoothing) {
  const auto [rows, vocabulary] = sizes_of<2>("logits", logits);
  const int64_t* wanted = data_of<int64_t>("targets", targets, {rows});
  check_ids("targets", wanted, rows, vocabulary);
  Tensor losses = at::empty({rows, 2}, logits.options().dtype(at::kFloat));
  float* out = losses.data_ptr<float>();
  const float uniform = float(smoothing / double(vocabulary)), confidence = float(1.0 - smoothing);
  dispatch("logits", logits.scalar_type(), [&](auto* type) {
    using T = Pointee<decltype(type)>;
    T* all_logits = mutable_data_of<T>("logits", logits, logits.sizes());
    deal(rows, 4, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(padded(vocabulary));
      float* e = buffer.data();
      for (int64_t m = begin; m < end; ++m) {
        T* row = all_logits + m * vocabulary;
        Vec highest = broadcast(-INFINITE), total = {}, sum = {};
        for (int64_t i = 0; i < vocabulary; i += LANES) {
          highest = maximum(highest, load(row + i, vocabulary - i, -INFINITE));
          total += load(row + i, vocabulary - i);
        }
        const float top = horizontal_max(highest), target = float(row[wanted[m]]);
        for (int64_t i = 0; i < vocabulary; i += LANES) {
          const Vec x = exp_nonpositive(load(row + i, vocabulary - i, -INFINITE) - top);
          sum += x;
          store(e + i, x);
        }
        const float log_sum = top + std::log(horizontal_sum(sum)), inverse = 1.0f / horizontal_sum(sum);
        for (int64_t i = 0; i < vocabulary; i += LANES) store(row + i, load(e + i) * inverse - uniform, vocabulary - i);
        row[wanted[m]] = T(e[wanted[m]] * inverse - uniform - confidence);
        out[2 * m] = log_sum - target;
        out[2 * m + 1] = log_sum - horizontal_sum(total) / float(vocabulary);
      }
    });
  });
  return losses;
}

// ---- matrix products

#ifdef NMT_TILES

constexpr auto identity = [](int64_t, int64_t, Vec sum, int64_t) { return sum; };

// x (M, K) weight^T + bias, bfloat16 (M, N), for x bfloat16, weight (N, K) and bias (N,) float32; with a `rate`
// dropout(relu(x weight^T + bias)).
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, std::optional<double> rate,
              int64_t seed) {
  TORCH_CHECK(has_tiles(), "this machine has no tiles");
  const auto [cols, inner] = sizes_of<2>("weight", weight);
  const int64_t rows = sizes_of<2>("x", x)[0];
  const at::BFloat16* in = data_of<at::BFloat16>("x", x, {rows, inner});
  const float* w = data_of<float>("weight", weight, {cols, inner});
  const auto map = add_bias(data_of<float>("bias", bias, {cols}));
  Tensor out = at::empty({rows, cols}, x.options());
  at::BFloat16* o = out.data_ptr<at::BFloat16>();
  const PackedMatrix right = pack<true, InnerAxis::columns>(w, inner, cols, inner);
  if (rate) {
    const Dropout drop(*rate, seed);
    multiply(in, rows, inner, right, o, cols, [=](int64_t r, int64_t c, Vec sum, int64_t n) {
      return maximum(Vec{}, map(r, c, sum, n)) * drop.factors(uint32_t(r * cols + c));
    });
  } else {
    multiply(in, rows, inner, right, o, cols, map);
  }
  return out;
}

// The sums of the columns of x (M, N): (N,) float32.
Tensor sums_of_columns(const Tensor& x) {
  const int64_t rows = x.size(0), cols = x.size(1);
  Tensor out = at::empty({cols}, x.options().dtype(at::kFloat));
  const at::BFloat16* in = x.const_data_ptr<at::BFloat16>();
  float* o = out.data_ptr<float>();
  constexpr int64_t WIDTH = 4 * LANES, ROWS_AHEAD = 8;  // columns whose sums stay in the first cache
  deal(ceil_div(cols, WIDTH), GRAIN / (WIDTH * rows + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * WIDTH; first < std::min(cols, end * WIDTH); first += WIDTH) {
      const int64_t last = std::min(cols, first + WIDTH);
      alignas(64) float sums[WIDTH] = {};
      for (int64_t m = 0; m < rows; ++m) {
        const at::BFloat16* row = in + m * cols;
        for (int64_t c = first; c < last; c += LANES) {
          float* sum = sums + c - first;
          _mm_prefetch((const char*)(row + ROWS_AHEAD * cols + c), _MM_HINT_T0);
          store(sum, load(sum) + load(row + c, cols - c));
        }
      }
      std::copy(sums, sums + last - first, o + first);
    }
  });
  return out;
}

// Gradients of x, weight and bias, the last two float32, where they are needed. With a `rate` x is dropout(relu(y)),
// and the first gradient is the gradient of y.
std::tuple<Tensor, Tensor, Tensor> linear_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                   bool needs_x, bool needs_weight, bool needs_bias,
                                                   std::optional<double> rate) {
  TORCH_CHECK(has_tiles(), "this machine has no tiles");
  const auto [cols, inner] = sizes_of<2>("weight", weight);
  const int64_t rows = sizes_of<2>("x", x)[0];
  const at::BFloat16* g = data_of<at::BFloat16>("grad", grad, {rows, cols});
  const at::BFloat16* in = data_of<at::BFloat16>("x", x, {rows, inner});
  const float* w = data_of<float>("weight", weight, {cols, inner});
  Tensor grad_x, grad_weight, grad_bias;
  if (needs_x) {
    grad_x = at::empty_like(x);
    at::BFloat16* o = grad_x.data_ptr<at::BFloat16>();
    const PackedMatrix right = pack<true, InnerAxis::rows>(w, inner, cols, inner);
    if (rate) {
      const ReluDropoutGradient gradient(*rate);
      multiply(g, rows, cols, right, o, inner, [=](int64_t r, int64_t c, Vec sum, int64_t n) {
        return gradient(sum, load(in + r * inner + c, n));
      });
    } else {
      multiply(g, rows, cols, right, o, inner, identity);
    }
  }
  if (needs_weight) {
    grad_weight = at::empty_like(weight);
    outer_product(g, cols, in, inner, rows, grad_weight.data_ptr<float>(), false);
  }
  if (needs_bias) grad_bias = sums_of_columns(grad);
  return {grad_x, grad_weight, grad_bias};
}

// The label-smoothed loss of the logits hidden weight^T, for hidden (M, D) bfloat16 and weight (V, D) float32. Returns
// the losses (M, 2) of smoothed_nll_ and the gradients of hidden and weight, where they are needed. At most LOGIT_ROWS
// rows of logits exist at a time.
std::tuple<Tensor, Tensor, Tensor> projected_nll(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                                                 double smoothing, bool needs_hidden, bool needs_weight) {
  TORCH_CHECK(has_tiles(), "this machine has no tiles");
  constexpr int64_t LOGIT_ROWS = 1024;
  const auto [vocabulary, inner] = sizes_of<2>("weight", weight);
  const int64_t rows = sizes_of<2>("hidden", hidden)[0];
  const at::BFloat16* states = data_of<at::BFloat16>("hidden", hidden, {rows, inner});
  const float* w = data_of<float>("weight", weight, {vocabulary, inner});
  check_ids("targets", data_of<int64_t>("targets", targets, {rows}), rows, vocabulary);
  Tensor losses = at::empty({rows, 2}, weight.options()), grad_hidden, grad_weight;
  const PackedMatrix forward = pack<true, InnerAxis::columns>(w, inner, vocabulary, inner);
  std::optional<PackedMatrix> backward;
  if (needs_hidden) {
    grad_hidden = at::empty_like(hidden);
    backward.emplace(pack<true, InnerAxis::rows>(w, inner, vocabulary, inner));
  }
  if (needs_weight) grad_weight = rows ? at::empty_like(weight) : at::zeros_like(weight);
  const Tensor buffer = at::empty({std::min(rows, LOGIT_ROWS), vocabulary}, hidden.options());
  at::BFloat16* l = buffer.data_ptr<at::BFloat16>();
  for (int64_t first = 0; first < rows; first += LOGIT_ROWS) {
    const int64_t count = std::min(LOGIT_ROWS, rows - first);
    const at::BFloat16* h = states + first * inner;
    multiply(h, count, inner, forward, l, vocabulary, identity);
    losses.narrow(0, first, count)
        .copy_(smoothed_nll_(buffer.narrow(0, 0, count), targets.narrow(0, first, count), smoothing));
    if (needs_hidden)
      multiply_deep(l, count, vocabulary, *backward, grad_hidden.data_ptr<at::BFloat16>() + first * inner, inner);
    if (needs_weight) outer_product(l, vocabulary, h, inner, count, grad_weight.data_ptr<float>(), first > 0);
  }
  return {losses, grad_hidden, grad_weight};
}

#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def("smoothed_nll_(Tensor(a!) logits, Tensor targets, float smoothing) -> Tensor", &smoothed_nll_);
#ifdef NMT_TILES
  m.def("linear(Tensor x, Tensor weight, Tensor? bias, float? rate=None, int seed=0) -> Tensor", &linear);
  m.def(
      "linear_backward(Tensor grad, Tensor x, Tensor weight, bool needs_x, bool needs_weight, bool needs_bias, "
      "float? rate=None) -> (Tensor, Tensor, Tensor)",
      &linear_backward);
  m.def(
      "projected_nll(Tensor hidden, Tensor weight, Tensor targets, float smoothing, bool needs_hidden, "
      "bool needs_weight) -> (Tensor, Tensor, Tensor)",
      &projected_nll);
#endif
}
