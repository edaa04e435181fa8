// Kernels of one step of search: attention over a cache that is never moved, products with weights in float32, in
// bfloat16 on the tiles of AMX or in 8 bits, and the best continuations of a sentence in one pass over the vocabulary.
//
// Everything is float32 but the factors of the products with packed weights. Each kernel has a definition in plain
// torch: nmt/layers/attention.py, nmt/layers/low_precision.py and nmt/decoding/candidates.py.
//
// Shapes: N hypotheses, B sentences, K hypotheses of a sentence, R rows of a cache, S columns of all its chunks, H
// heads, C channels of a head in queries and keys, E in values, I inputs, O outputs, V vocabulary.

#include "arguments.h"
#include "lanes.h"
#include "linear.h"
#include "torch.h"

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

// ---- attention

// Calls f(size), with a constant for the most common numbers of channels, so that compilers unroll the loop in f.
template <typename F>
inline auto with_size(int64_t size, const F& f) {
  if (size == 64) return f(std::integral_constant<int64_t, 64>{});
  if (size == 32) return f(std::integral_constant<int64_t, 32>{});
  return f(size);
}

// The dot product of a and b.
inline float dot(const float* a, const float* b, int64_t size) {
  return with_size(size, [=](auto n) {
    Vec sum = {};
    for (int64_t i = 0; i < n; i += LANES) sum += load(a + i, n - i) * load(b + i, n - i);
    return horizontal_sum(sum);
  });
}

// Adds weight * x to sums.
inline void add_scaled(float* sums, float weight, const float* x, int64_t size) {
  with_size(size, [=](auto n) {
    for (int64_t i = 0; i < n; i += LANES) store(sums + i, load(sums + i, n - i) + weight * load(x + i, n - i), n - i);
  });
}

// Adjacent columns of a cache: keys (R, H, length, C) and values (R, H, length, E), whose last axes are dense.
struct Chunk {
  const float *keys, *values;
  int64_t rows, length, key_row, key_head, key_column, value_row, value_head, value_column;

  // For H heads of C channels in keys and E in values.
  Chunk(const Tensor& k, const Tensor& v, int64_t H, int64_t C, int64_t E) {
    const auto sizes = sizes_of<4>("keys", k);
    rows = sizes[0];
    length = sizes[2];
    keys = data_of<float>("keys", k, {rows, H, length, C}, Layout::dense_rows);
    values = data_of<float>("values", v, {rows, H, length, E}, Layout::dense_rows);
    key_row = k.stride(0), key_head = k.stride(1), key_column = k.stride(2);
    value_row = v.stride(0), value_head = v.stride(1), value_column = v.stride(2);
  }
};

// softmax(queries keys^T / sqrt(C) + bias) values: (N, 1, H * E), for one query (N, H, 1, C) of each hypothesis.
// Hypothesis n attends to row rows[n, i] of every chunk i. `mask` (R, columns) is True for the columns of the first
// chunk that may be attended to, the others are not read; bias is (1, H, 1, S).
Tensor attend(const Tensor& queries, at::TensorList keys, at::TensorList values, const Tensor& rows,
              const std::optional<Tensor>& mask, const std::optional<Tensor>& bias) {
  const int64_t num_chunks = keys.size();
  TORCH_CHECK(num_chunks > 0 && values.size() == keys.size(), "keys and values must have as many chunks, at least one, ",
              "but have ", num_chunks, " and ", values.size());
  const auto [N, H, one, C] = sizes_of<4>("queries", queries);
  const int64_t E = sizes_of<4>("values", values[0])[3];
  TORCH_CHECK(H > 0 && C > 0 && E > 0, "queries and values must have heads and channels, but their shapes are ",
              in_words(queries.sizes()), " and ", in_words(values[0].sizes()));
  const int64_t query_row = queries.stride(0), query_head = queries.stride(1);
  const float* query = data_of<float>("queries", queries, {N, H, 1, C}, Layout::dense_rows);
  const int32_t* row_of = data_of<int32_t>("rows", rows, {N, num_chunks});
  std::vector<Chunk> chunks;
  int64_t S = 0;
  for (int64_t i = 0; i < num_chunks; ++i) {
    chunks.emplace_back(keys[i], values[i], H, C, E);
    check_ids("rows", row_of + i, N, chunks[i].rows, num_chunks);
    S += chunks[i].length;
  }
  const bool* allowed = data_of<bool>("mask", mask, {chunks[0].rows, chunks[0].length});
  const float* added = data_of<float>("bias", bias, {1, H, 1, S});
  Tensor out = at::empty({N, 1, H * E}, queries.options());
  float* result = out.data_ptr<float>();
  const int64_t ld = padded(S);
  const float scale = 1.0f / std::sqrt(float(C));
  at::parallel_for(0, N, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> weights(H * ld);
    for (int64_t n = begin; n < end; ++n) {
      // Calls f(chunk, row, j, column, hidden) for each of the S columns.
      const auto for_each_column = [&](const auto& f) {
        int64_t column = 0;
        for (int64_t i = 0; i < num_chunks; ++i) {
          const int64_t row = row_of[n * num_chunks + i], length = chunks[i].length;
          const bool* visible = i == 0 && allowed != nullptr ? allowed + row * length : nullptr;
          for (int64_t j = 0; j < length; ++j) f(chunks[i], row, j, column++, visible != nullptr && !visible[j]);
        }
      };
      for_each_column([&](const Chunk& chunk, int64_t row, int64_t j, int64_t column, bool hidden) {
        const float* value = chunk.values + row * chunk.value_row + j * chunk.value_column;  // read below
        prefetch(value, H * E);
        const float* key = chunk.keys + row * chunk.key_row + j * chunk.key_column;
        for (int64_t h = 0; h < H; ++h) {
          float& score = weights[h * ld + column];
          score = -INFINITE;
          if (hidden) continue;
          score = dot(query + n * query_row + h * query_head, key + h * chunk.key_head, C) * scale;
          if (added != nullptr) score += added[h * S + column];
        }
      });
      for (int64_t h = 0; h < H; ++h) softmax(weights.data() + h * ld, S, 1.0f, weights.data() + h * ld);
      float* sums = result + n * H * E;
      std::fill(sums, sums + H * E, 0.0f);
      for_each_column([&](const Chunk& chunk, int64_t row, int64_t j, int64_t column, bool hidden) {
        if (hidden) return;
        const float* value = chunk.values + row * chunk.value_row + j * chunk.value_column;
        for (int64_t h = 0; h < H; ++h)
          add_scaled(sums + h * E, weights[h * ld + column], value + h * chunk.value_head, E);
      });
    }
  });
  return out;
}

// ---- products with packed weights

#ifdef NMT_TILES

// A weight (O, I) in tiles, for the functions below.
Tensor pack_weights(const Tensor& weight) {
  const auto [outputs, inputs] = sizes_of<2>("weight", weight);
  const Tensor in = weight.contiguous();
  const float* w = data_of<float>("weight", in, {outputs, inputs});
  return pack<true, InnerAxis::columns>(w, inputs, outputs, inputs).memory();
}

#endif

// x (M, I) times weights, float32 (O, I) or packed in 16 or 8 bits, plus bias (O), then relu where asked for: (M, O).
Tensor linear_map(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t outputs,
                  bool relu) {
  const auto [rows, inputs] = sizes_of<2>("x", x);
  const Tensor in = x.contiguous();
  const float* numbers = data_of<float>("x", in, {rows, inputs});
  const LinearMap linear("weight", weight, bias, outputs, inputs);
  Tensor out = at::empty({rows, outputs}, x.options());
  linear(numbers, rows, out.data_ptr<float>(), [=](int64_t, int64_t, Vec sum, int64_t) {
    return relu ? maximum(Vec{}, sum) : sum;
  });
  return out;
}

// ---- the best continuations

constexpr int64_t GROUP = 4 * LANES;  // tokens that are compared one by one only if their maximum is large enough

constexpr int64_t LOGIT_ROWS = 64;  // rows of logits that exist at a time, for each thread

struct Candidate {
  float score;
  int64_t parent, token;
};

// The best continuations of one sentence so far, best first; among equal scores the earlier ones.
class BestCandidates {
 public:
  explicit BestCandidates(int64_t num) : kept_(num, Candidate{-INFINITE, 0, 0}) {}

  float worst() const { return kept_.back().score; }

  // Inserts a candidate and drops the worst one, whose score must be lower, or, as NaN is above all, not NaN.
  void offer(float score, int64_t parent, int64_t token) {
    size_t place = kept_.size() - 1;
    for (; place > 0 && (kept_[place - 1].score < score || std::isnan(score)); --place) kept_[place] = kept_[place - 1];
    kept_[place] = {score, parent, token};
  }

  const std::vector<Candidate>& kept() const { return kept_; }

 private:
  std::vector<Candidate> kept_;
};

// Offers the tokens of one hypothesis, given its logits (V); `maxima` has room for one float in each group.
void offer_tokens(const float* logits, int64_t V, float before, int64_t parent, const bool* forbidden, float* maxima,
                  BestCandidates& best) {
  const int64_t num_groups = ceil_div(V, GROUP);
  float largest = -INFINITE;
  for (int64_t g = 0; g < num_groups; ++g) {
    Vec highest = broadcast(-INFINITE);
    for (int64_t v = g * GROUP; v < std::min(V, (g + 1) * GROUP); v += LANES) {
      highest = maximum(load(logits + v, V - v, -INFINITE), highest);
    }
    maxima[g] = horizontal_max(highest);
    largest = std::max(largest, maxima[g]);
  }
  Vec sums[2] = {};  // two chains of additions do not wait for one another
  for (int64_t v = 0; v < V; v += 2 * LANES) {
    sums[0] += exp_nonpositive(load(logits + v, V - v, -INFINITE) - largest);
    if (v + LANES < V) sums[1] += exp_nonpositive(load(logits + v + LANES, V - v - LANES, -INFINITE) - largest);
  }
  const float offset = before - (largest + std::log(horizontal_sum(sums[0] + sums[1])));
  if (std::isnan(offset)) {  // a logit is NaN or infinite: all log probabilities are NaN, which topk takes for the largest
    for (int64_t v = 0; v < V && !std::isnan(best.worst()); ++v) {
      if (!forbidden[v]) best.offer(offset, parent, v);
    }
    return;
  }
  for (int64_t g = 0; g < num_groups; ++g) {
    if (!(maxima[g] + offset > best.worst())) continue;
    for (int64_t v = g * GROUP; v < std::min(V, (g + 1) * GROUP); ++v) {
      const float score = logits[v] + offset;
      if (score > best.worst() && !forbidden[v]) best.offer(score, parent, v);
    }
  }
}

using Continuations = std::tuple<Tensor, Tensor, Tensor>;

// The `num` largest before[b, k] + log_softmax(logits)[b, k, v] of each b, with their k and v: (B, num) each. Tokens
// `forbidden` (V) are left out; sentences `ending` (B) may only get `end_id`. Missing results have -inf.
// logits_of(first, last) returns the logits (last - first, K, V) of sentences, at most `together` at a time.
template <typename F>
Continuations best_continuations(int64_t V, const Tensor& before, const Tensor& forbidden, const Tensor& ending,
                                 int64_t end_id, int64_t num, int64_t together, const F& logits_of) {
  const auto [B, K] = sizes_of<2>("before", before);
  const float* scores_before = data_of<float>("before", before, {B, K});
  const bool *never = data_of<bool>("forbidden", forbidden, {V}), *ends = data_of<bool>("ending", ending, {B});
  TORCH_CHECK_INDEX(end_id >= 0 && end_id < V, "end_id must be from 0 to ", V - 1, ", but is ", end_id);
  TORCH_CHECK(num > 0 && num <= MAX_SIZE, "num must be from 1 to ", MAX_SIZE, ", but is ", num);
  const auto all_but_end = std::make_unique<bool[]>(V);
  std::fill_n(all_but_end.get(), V, true);
  all_but_end[end_id] = false;
  const Tensor scores = at::empty({B, num}, before.options()), parents = at::empty({B, num}, at::kLong);
  const Tensor tokens = at::empty_like(parents);
  for (int64_t first = 0; first < B; first += together) {
    const int64_t last = std::min(B, first + together);
    const float* const logits = logits_of(first, last);  // computed by all threads
    at::parallel_for(first, last, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> maxima(ceil_div(V, GROUP));
      for (int64_t b = begin; b < end; ++b) {
        BestCandidates best(num);
        for (int64_t k = 0; k < K; ++k) {
          const float score = scores_before[b * K + k];
          if (score == -INFINITE) continue;
          const float* row = logits + ((b - first) * K + k) * V;
          offer_tokens(row, V, score, k, ends[b] ? all_but_end.get() : never, maxima.data(), best);
        }
        for (int64_t j = 0; j < num; ++j) {
          const Candidate& found = best.kept()[j];
          scores.data_ptr<float>()[b * num + j] = found.score;
          parents.data_ptr<int64_t>()[b * num + j] = found.parent;
          tokens.data_ptr<int64_t>()[b * num + j] = found.token;
        }
      }
    });
  }
  return {scores, parents, tokens};
}

// The best continuations, given all logits (N, V).
Continuations best_of_logits(const Tensor& logits, const Tensor& before, const Tensor& forbidden, const Tensor& ending,
                             int64_t end_id, int64_t num) {
  const int64_t V = sizes_of<2>("logits", logits)[1];
  const auto [B, K] = sizes_of<2>("before", before);
  const float* all_logits = data_of<float>("logits", logits, {before.numel(), V});
  return best_continuations(V, before, forbidden, ending, end_id, num, B,
                            [=](int64_t, int64_t) { return all_logits; });
}

// The best continuations, given hidden states (N, I) and the output layer: a weight (V, I), which may be packed, and a
// bias (V).
Continuations best_of_hidden(const Tensor& hidden, const Tensor& weight, const std::optional<Tensor>& bias,
                             int64_t vocab_size, const Tensor& before, const Tensor& forbidden, const Tensor& ending,
                             int64_t end_id, int64_t num) {
  const auto [B, K] = sizes_of<2>("before", before);
  const int64_t inputs = sizes_of<2>("hidden", hidden)[1], most = LOGIT_ROWS * at::get_num_threads();
  const int64_t together = std::min(B, std::max<int64_t>(1, most / std::max<int64_t>(K, 1)));  // sentences
  const Tensor in = hidden.contiguous();
  const float* states = data_of<float>("hidden", in, {before.numel(), inputs});
  const LinearMap output("weight", weight, bias, vocab_size, inputs);
  const Tensor logits = at::empty({together * K, vocab_size}, at::kFloat);
  float* const out = logits.data_ptr<float>();
  const auto logits_of = [&](int64_t first, int64_t last) {
    output(states + first * K * inputs, (last - first) * K, out);
    return out;
  };
  return best_continuations(vocab_size, before, forbidden, ending, end_id, num, together, logits_of);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def("has_tiles() -> bool", &has_tiles);
  m.def("has_panels() -> bool", &gains_from_panels);
  m.def("linear_map(Tensor x, Tensor weight, Tensor? bias, int outputs, bool relu) -> Tensor", &linear_map);
  m.def("attend(Tensor queries, Tensor[] keys, Tensor[] values, Tensor rows, Tensor? mask, Tensor? bias) -> Tensor",
        &attend);
  m.def(
      "best_of_logits(Tensor logits, Tensor before, Tensor forbidden, Tensor ending, int end_id, int num) -> "
      "(Tensor, Tensor, Tensor)",
      &best_of_logits);
  m.def(
      "best_of_hidden(Tensor hidden, Tensor weight, Tensor? bias, int vocab_size, Tensor before, Tensor forbidden, "
      "Tensor ending, int end_id, int num) -> (Tensor, Tensor, Tensor)",
      &best_of_hidden);
#ifdef NMT_TILES
  m.def("pack_weights(Tensor weight) -> Tensor", &pack_weights);
#endif
}
