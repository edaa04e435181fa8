// All layers of a Transformer's encoder in one call, over sentences that lie one behind the other, without padding.
//
// Numbers are float32 but the factors of products by packed weights. The definition in plain torch is that of the
// layers in nmt/models/stack.py.
//
// Shapes: N tokens of all sentences, B sentences, T tokens of one, D d_model, H heads, C channels of a head in queries
// and keys, E in values.

#include "arguments.h"
#include "lanes.h"
#include "layers.h"
#include "torch.h"

#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

// Attention of the tokens of each sentence to one another; sentence b is those from starts[b] on. The keys and values
// of a token (H * C + H * E) lie behind one another.
template <typename A>
void attend_in_sentences(const Heads<A>& heads, const float* keys_values, const std::vector<int64_t>& starts) {
  const auto [queries, out, N, H, C, E] = heads;
  const int64_t width = H * (C + E), B = starts.size() - 1;
  const int64_t mean = N / B + 1, grain = GRAIN / (mean * mean * (C + E)) + 1;
  at::parallel_for(0, B * H, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> columns, scores;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = starts[i / H], last = starts[i / H + 1], T = last - first, ld = padded(T), h = i % H;
      columns.resize(std::max<size_t>(columns.size(), C * ld));
      scores.resize(std::max<size_t>(scores.size(), MOST_TOGETHER * ld));
      const float* const rows = keys_values + first * width;
      transpose_rows(rows + h * C, width, T, C, columns.data(), ld);
      const auto values = [&](int64_t t) { return rows + t * width + H * C + h * E; };
      const Columns<float> keys{columns.data(), C, ld, T};
      for_groups(first, last, [&](auto count, int64_t n) {
        attend_to_columns<count>(queries + (n * H + h) * C, H * C, keys, values, scores.data(), out + (n * H + h) * E,
                                 H * E, E);
      });
    }
  });
}

template <typename A>
void self_attention(float* x, Weights weights, size_t place, const Shared& shared, const std::vector<int64_t>& starts) {
  const auto [N, D, H, C, E] = shared.sizes;
  residual<A>(x, weights, place, shared, [&](const A* in, const auto& finish) {
    const auto queries = room(N * H * C), keys_values = room(N * H * (C + E));
    const auto context = room<A>(N * H * E);
    project(in, weights, place, shared, C, queries.get(), keys_values.get());
    attend_in_sentences(Heads<A>{queries.get(), context.get(), N, H, C, E}, keys_values.get(), starts);
    linear_map(weights, place + 6, D, H * E)(context.get(), N, x, finish);
  });
}

// Replaces x (N, D) by what the layers make of it. Rows that linear maps take are of A.
template <typename A>
void run(float* x, Weights weights, const Shared& shared, int64_t d_ff, const std::vector<int64_t>& starts) {
  constexpr size_t step = OF_ATTENTION + OF_BLOCK;
  for (size_t place = 0; place < weights.size(); place += step) {
    self_attention<A>(x, weights, place, shared, starts);
    feed_forward<A>(x, weights, place + OF_ATTENTION, shared, d_ff);
  }
}

// Returns what the layers make of x (N, D), the tokens of B sentences of these lengths (B). `weights` has for each
// layer norm, query, key and value, output of self-attention, weight and bias of each; the weights of the norms of its
// queries and keys, or nothing in their places; norm, inner and outer map of the feed-forward block. `angles` (N, C)
// has sines and cosines of the position of each token.
Tensor encoder_layers(const Tensor& x, const c10::List<std::optional<Tensor>>& weight_list, int64_t num_layers,
                      int64_t num_heads, int64_t key_size, int64_t value_size, int64_t d_ff, bool pre_norm,
                      bool rms_norm, double eps, double head_eps, const std::string& activation, const Tensor& lengths,
                      const std::optional<Tensor>& angles) {
  const auto [N, D] = sizes_of<2>("x", x);
  data_of<float>("x", x, {N, D});
  check_sizes({num_layers, num_heads, key_size, value_size, d_ff, D});
  check_weights(weight_list, num_layers * (OF_ATTENTION + OF_BLOCK));
  const auto [B] = sizes_of<1>("lengths", lengths);
  const int64_t* const counts = data_of<int64_t>("lengths", lengths, {B});
  check_ids("lengths", counts, B, N + 1);
  std::vector<int64_t> starts(B + 1);
  std::partial_sum(counts, counts + B, starts.begin() + 1);
  TORCH_CHECK(starts[B] == N, "lengths must add up to ", N, ", but add up to ", starts[B]);
  const Shared shared{{N, D, num_heads, key_size, value_size}, pre_norm, rms_norm, eps, head_eps, activation,
                      angles_of(angles, N, key_size)};
  const auto weights = weight_list.vec();
  const Tensor output = x.clone();
  if (N == 0) return output;
  auto run_for = run<float>;
#ifdef NMT_TILES
  if (takes_bfloat16(weights)) run_for = run<at::BFloat16>;
#endif
  run_for(output.data_ptr<float>(), weights, shared, d_ff, starts);
  return output;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def(
      "encoder_layers(Tensor x, Tensor?[] weights, int num_layers, int num_heads, int key_size, int value_size, "
      "int d_ff, bool pre_norm, bool rms_norm, float eps, float head_eps, str activation, Tensor lengths, "
      "Tensor? angles) -> Tensor",
      &encoder_layers);
}
