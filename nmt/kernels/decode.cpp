// Kernels of one step of search: attention over a cache that is never moved, products with bf16 weights on the
// tiles of AMX, and the best continuations of a sentence in one pass over the vocabulary.
//
// Everything is float32 but the operands of the bf16 products, which are summed up in float32, too. Each has a
// definition in plain torch: nmt/attention.py, nmt/low_precision.py and nmt/continuations.py.
//
// Shapes: N hypotheses, B sentences, K hypotheses of one, H heads, C channels of a head, V vocabulary.

#include "lanes.h"
#include "tiles.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace {

using namespace nmt;

constexpr float kNone = -INFINITE;

// ---- attention ------------------------------------------------------------------------------------------------

// The loops over the channels of a head, of which compilers make more when they know how many there are.
template <int64_t kSize>
inline float dot_fixed(const float* a, const float* b, int64_t size) {
  const int64_t n = kSize ? kSize : size;
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <int64_t kSize>
inline void add_fixed(float* sums, float weight, const float* x, int64_t size) {
  const int64_t n = kSize ? kSize : size;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sums[i] += weight * x[i];
}

inline float dot(const float* a, const float* b, int64_t size) {
  return size == 64 ? dot_fixed<64>(a, b, size) : size == 32 ? dot_fixed<32>(a, b, size) : dot_fixed<0>(a, b, size);
}

inline void add_scaled(float* sums, float weight, const float* x, int64_t size) {
  if (size == 64)
    add_fixed<64>(sums, weight, x, size);
  else if (size == 32)
    add_fixed<32>(sums, weight, x, size);
  else
    add_fixed<0>(sums, weight, x, size);
}

struct Chunk {  // keys and values of some adjacent columns, (R, H, L, C) and (R, H, L, E)
  const float *keys, *values;
  int64_t length, key_row, key_head, key_column, value_row, value_head, value_column;
};

std::vector<Chunk> chunks_of(at::TensorList keys, at::TensorList values) {
  TORCH_CHECK(keys.size() == values.size() && !keys.empty(), "as many chunks of keys as of values, at least one");
  std::vector<Chunk> chunks;
  chunks.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto &k = keys[i], &v = values[i];
    TORCH_CHECK(k.dim() == 4 && v.dim() == 4 && k.scalar_type() == at::kFloat && v.scalar_type() == at::kFloat);
    TORCH_CHECK(k.stride(3) == 1 && v.stride(3) == 1 && k.size(2) == v.size(2));
    chunks.push_back({k.data_ptr<float>(), v.data_ptr<float>(), k.size(2), k.stride(0), k.stride(1), k.stride(2),
                      v.stride(0), v.stride(1), v.stride(2)});
  }
  return chunks;
}

// softmax(scale * queries keys^T + bias) values, for one query (N, H, 1, C) of each hypothesis. Its keys are those of
// row rows[n, i] of every chunk i; `mask` (R, L) says which columns of the first chunk may be attended to. The
// bias is (H, S) over the S columns of all chunks.
at::Tensor attend(const at::Tensor& queries, at::TensorList keys, at::TensorList values, const at::Tensor& rows,
                  const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& bias) {
  const auto chunks = chunks_of(keys, values);
  const int64_t N = queries.size(0), H = queries.size(1), C = queries.size(3), E = values[0].size(3);
  TORCH_CHECK(queries.stride(3) == 1 && queries.scalar_type() == at::kFloat && queries.size(2) == 1);
  TORCH_CHECK(rows.scalar_type() == at::kInt && rows.is_contiguous() && rows.size(0) == N &&
              rows.size(1) == static_cast<int64_t>(chunks.size()));
  int64_t S = 0;
  for (const auto& chunk : chunks) S += chunk.length;
  const bool* allowed = nullptr;
  if (mask) {
    TORCH_CHECK(mask->scalar_type() == at::kBool && mask->is_contiguous() && mask->size(1) == chunks[0].length);
    allowed = mask->data_ptr<bool>();
  }
  const float* added = nullptr;
  if (bias) {
    TORCH_CHECK(bias->scalar_type() == at::kFloat && bias->is_contiguous() && bias->numel() == H * S);
    added = bias->data_ptr<float>();
  }
  auto out = at::empty({N, 1, H * E}, queries.options());
  const float* query = queries.data_ptr<float>();
  float* result = out.data_ptr<float>();
  const int32_t* row_of = rows.data_ptr<int32_t>();
  const int64_t query_row = queries.stride(0), query_head = queries.stride(1), num_chunks = chunks.size();
  const int64_t room = (S + LANES - 1) / LANES * LANES;
  const float scale = 1.0f / std::sqrt(static_cast<float>(C));
  at::parallel_for(0, N, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> weights(H * room);
    for (int64_t n = begin; n < end; ++n) {
      int64_t column = 0;
      for (int64_t i = 0; i < num_chunks; ++i) {
        const Chunk& chunk = chunks[i];
        const int64_t row = row_of[n * num_chunks + i];
        for (int64_t j = 0; j < chunk.length; ++j, ++column) {
          const float* ahead = chunk.values + row * chunk.value_row + j * chunk.value_column;  // read below
          for (int64_t e = 0; e < H * E; e += LANES) __builtin_prefetch(ahead + e);
          const bool hidden = i == 0 && allowed && !allowed[row * chunk.length + j];
          for (int64_t h = 0; h < H; ++h) {
            const float* q = query + n * query_row + h * query_head;
            const float* k = chunk.keys + row * chunk.key_row + j * chunk.key_column + h * chunk.key_head;
            weights[h * room + column] = hidden ? kNone : dot(q, k, C) * scale + (added ? added[h * S + column] : 0.0f);
          }
        }
      }
      for (int64_t h = 0; h < H; ++h) {
        float* w = weights.data() + h * room;
        const float largest = *std::max_element(w, w + S);
        Vec16 total = {};
        for (int64_t s = 0; s < S; s += LANES) {
          const Vec16 score = load(w + s, S - s, kNone), power = exp_nonpositive(score - largest);
          const Vec16 weight = score > kNone ? power : Vec16{};
          std::memcpy(w + s, &weight, sizeof weight);
          total += weight;
        }
        const float scale_of_sum = 1.0f / horizontal_sum(total);
        for (int64_t s = 0; s < S; ++s) w[s] *= scale_of_sum;
      }
      float* sums = result + n * H * E;
      std::fill(sums, sums + H * E, 0.0f);
      column = 0;
      for (int64_t i = 0; i < num_chunks; ++i) {
        const Chunk& chunk = chunks[i];
        const int64_t row = row_of[n * num_chunks + i];
        for (int64_t j = 0; j < chunk.length; ++j, ++column) {
          if (i == 0 && allowed && !allowed[row * chunk.length + j]) continue;
          for (int64_t h = 0; h < H; ++h) {
            const float* v = chunk.values + row * chunk.value_row + j * chunk.value_column + h * chunk.value_head;
            add_scaled(sums + h * E, weights[h * room + column], v, E);
          }
        }
      }
    }
  });
  return out;
}

// ---- products with bf16 weights -------------------------------------------------------------------------------

#ifdef NMT_TILES

int64_t rounded_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

// Weights (O, I) as tiles: (O / 16, I / 32, 16 pairs of inputs, 16 outputs, 2), padded with zeros.
at::Tensor pack_weights(const at::Tensor& weight) {
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  auto padded =
      at::zeros({rounded_up(outputs, BLOCK), rounded_up(inputs, DEPTH)}, weight.options().dtype(at::kBFloat16));
  padded.narrow(0, 0, outputs).narrow(1, 0, inputs).copy_(weight);
  return padded.view({-1, EDGE, padded.size(1) / DEPTH, EDGE, 2}).permute({0, 2, 3, 1, 4}).contiguous();
}

// `count` rows of x (count, I) as bf16, `stride` apart, in `out`; zeros up to full tiles.
void to_bf16(const float* x, int64_t count, int64_t inputs, at::BFloat16* out, int64_t stride) {
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t i = 0; i < stride; i += 16) {
      const int64_t left = std::min<int64_t>(16, inputs - i);
      const __mmask16 some = left <= 0 ? 0 : static_cast<__mmask16>((1u << left) - 1);
      const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, x + m * inputs + i));
      std::memcpy(out + m * stride + i, &rounded, 32);
    }
  }
  std::memset(static_cast<void*>(out + count * stride), 0, (rounded_up(count, EDGE) - count) * stride * 2);
}

// The products (32, 32), or (16, 32) where there is only one tile of rows, of bf16 x and two columns of tiles.
void multiply_rows(const at::BFloat16* x, int64_t stride, bool two, const at::BFloat16* weights, float* sums,
                   int64_t sums_stride) {
  const int64_t depth = stride / DEPTH, tile = EDGE * DEPTH;
  const at::BFloat16* right = weights + depth * tile;
  _tile_zero(0);
  _tile_zero(1);
  if (two) {
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < depth; ++d) {
      _tile_loadd(4, x + d * DEPTH, stride * 2);
      _tile_loadd(6, weights + d * tile, 64);
      _tile_loadd(7, right + d * tile, 64);
      _tile_loadd(5, x + EDGE * stride + d * DEPTH, stride * 2);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, sums + EDGE * sums_stride, sums_stride * 4);
    _tile_stored(3, sums + EDGE * sums_stride + EDGE, sums_stride * 4);
  } else {
    for (int64_t d = 0; d < depth; ++d) {
      _tile_loadd(4, x + d * DEPTH, stride * 2);
      _tile_loadd(6, weights + d * tile, 64);
      _tile_loadd(7, right + d * tile, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
  }
  _tile_stored(0, sums, sums_stride * 4);
  _tile_stored(1, sums + EDGE, sums_stride * 4);
}

#endif

// x (M, I) times packed weights, plus bias (O), then relu where asked for: (M, O).
at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                         int64_t outputs, bool relu) {
  TORCH_CHECK(has_tiles(), "this machine has no AMX");
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat && packed.is_contiguous());
#ifdef NMT_TILES
  const auto input = x.contiguous();
  const int64_t M = x.size(0), inputs = x.size(1), depth = packed.size(1), stride = depth * DEPTH;
  TORCH_CHECK(rounded_up(inputs, DEPTH) == stride && rounded_up(outputs, BLOCK) == packed.size(0) * EDGE);
  auto out = at::empty({M, outputs}, x.options());
  const float *from = input.data_ptr<float>(), *add = bias ? bias->data_ptr<float>() : nullptr;
  const auto* weights = packed.data_ptr<at::BFloat16>();
  float* to = out.data_ptr<float>();
  const int64_t row_blocks = (M + BLOCK - 1) / BLOCK, column_blocks = packed.size(0) / 2;
  const int64_t threads = at::get_num_threads();
  const int64_t parts = std::min(column_blocks, row_blocks >= 2 * threads ? 1 : threads);
  const __m512 zero = _mm512_setzero_ps();
  at::parallel_for(0, row_blocks * parts, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    std::vector<at::BFloat16> rounded(BLOCK * stride);
    alignas(64) float sums[BLOCK * BLOCK];
    int64_t in_buffer = -1;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task / parts, part = task % parts, first = block * BLOCK;
      const int64_t count = std::min(BLOCK, M - first);
      if (block != in_buffer) to_bf16(from + first * inputs, count, inputs, rounded.data(), stride);
      in_buffer = block;
      for (int64_t o = part * column_blocks / parts; o < (part + 1) * column_blocks / parts; ++o) {
        multiply_rows(rounded.data(), stride, count > EDGE, weights + o * 2 * depth * EDGE * DEPTH, sums, BLOCK);
        for (int64_t half = 0; half < BLOCK; half += EDGE) {
          const int64_t column = o * BLOCK + half, left = std::min(EDGE, outputs - column);
          if (left <= 0) break;
          const __mmask16 some = static_cast<__mmask16>((1u << left) - 1);
          const __m512 b = add ? _mm512_maskz_loadu_ps(some, add + column) : zero;
          for (int64_t m = 0; m < count; ++m) {
            __m512 y = _mm512_add_ps(_mm512_load_ps(sums + m * BLOCK + half), b);
            if (relu) y = _mm512_max_ps(y, zero);
            _mm512_mask_storeu_ps(to + (first + m) * outputs + column, some, y);
          }
        }
      }
    }
  });
  return out;
#else
  return x;
#endif
}

// ---- the best continuations -----------------------------------------------------------------------------------

constexpr int64_t kGroup = 64;  // tokens of which the best is known before all are looked at

struct Candidate {
  float score;
  int64_t parent, token;
};

// The best continuations of one sentence so far, best first; of equal ones those that came first.
class Best {
 public:
  Best(int64_t num, int64_t filler) : kept_(num, Candidate{kNone, 0, filler}) {}

  float worst() const { return kept_.back().score; }

  void offer(float score, int64_t parent, int64_t token) {
    size_t place = kept_.size() - 1;
    for (; place > 0 && kept_[place - 1].score < score; --place) kept_[place] = kept_[place - 1];
    kept_[place] = {score, parent, token};
  }

  const std::vector<Candidate>& kept() const { return kept_; }

 private:
  std::vector<Candidate> kept_;
};

// Offer the tokens of one hypothesis, given its logits (V); `maxima` has room for one float in each group.
void offer_row(const float* logits, int64_t V, float before, int64_t parent, const bool* forbidden, float* maxima,
               Best& best) {
  const int64_t num_groups = (V + kGroup - 1) / kGroup;
  float largest = kNone;
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t end = std::min(V, (g + 1) * kGroup);
    Vec16 m = broadcast(kNone);
    for (int64_t v = g * kGroup; v < end; v += LANES) m = maximum(load(logits + v, end - v, kNone), m);
    maxima[g] = horizontal_max(m);
    largest = std::max(largest, maxima[g]);
  }
  Vec16 sums[2] = {};  // two chains of additions do not wait for one another
  for (int64_t v = 0; v < V; v += 2 * LANES) {
    sums[0] += exp_nonpositive(load(logits + v, V - v, kNone) - largest);
    if (v + LANES < V) sums[1] += exp_nonpositive(load(logits + v + LANES, V - v - LANES, kNone) - largest);
  }
  const float total = horizontal_sum(sums[0] + sums[1]);
  const float offset = before - (largest + std::log(total));
  for (int64_t g = 0; g < num_groups; ++g) {
    if (!(maxima[g] + offset > best.worst())) continue;
    const int64_t end = std::min(V, (g + 1) * kGroup);
    for (int64_t v = g * kGroup; v < end; ++v) {
      const float score = logits[v] + offset;
      if (score > best.worst() && !forbidden[v]) best.offer(score, parent, v);
    }
  }
}

using Continuations = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The results of B sentences, and what is common to the two ways to find them.
struct Search {
  int64_t B, K, V, num;
  const float* before;
  const bool* forbidden;  // tokens that no sentence may get
  const bool* ending;     // sentences that end here
  std::vector<char> all_but_end;
  int64_t filler;
  at::Tensor scores, parents, tokens;

  Search(const at::Tensor& before_, int64_t V_, const at::Tensor& forbidden_, const at::Tensor& ending_, int64_t end_id,
         int64_t num_)
      : B(before_.size(0)), K(before_.size(1)), V(V_), num(num_), all_but_end(V_, 1), filler(0) {
    TORCH_CHECK(before_.is_contiguous() && before_.scalar_type() == at::kFloat);
    TORCH_CHECK(forbidden_.scalar_type() == at::kBool && forbidden_.numel() == V && forbidden_.is_contiguous());
    TORCH_CHECK(ending_.scalar_type() == at::kBool && ending_.numel() == B && ending_.is_contiguous());
    before = before_.data_ptr<float>();
    forbidden = forbidden_.data_ptr<bool>();
    ending = ending_.data_ptr<bool>();
    all_but_end[end_id] = 0;
    scores = at::empty({B, num}, before_.options());
    parents = at::empty({B, num}, before_.options().dtype(at::kLong));
    tokens = at::empty({B, num}, before_.options().dtype(at::kLong));
  }

  // Find those of sentence b, given the logits of its K hypotheses, `stride` floats apart.
  void sentence(int64_t b, const float* logits, int64_t stride, std::vector<float>& maxima) {
    Best best(num, filler);
    const bool* not_allowed = ending[b] ? reinterpret_cast<const bool*>(all_but_end.data()) : forbidden;
    for (int64_t k = 0; k < K; ++k) {
      if (before[b * K + k] > kNone)
        offer_row(logits + k * stride, V, before[b * K + k], k, not_allowed, maxima.data(), best);
    }
    for (int64_t j = 0; j < num; ++j) {
      const Candidate& found = best.kept()[j];
      scores.data_ptr<float>()[b * num + j] = found.score;
      parents.data_ptr<int64_t>()[b * num + j] = found.parent;
      tokens.data_ptr<int64_t>()[b * num + j] = found.token;
    }
  }

  std::vector<float> room() const { return std::vector<float>((V + kGroup - 1) / kGroup); }
};

// The `num` largest before[b, k] + log_softmax(logits)[b * K + k, v] of each b, with their k and v: (B, num) each.
// Tokens `forbidden` (V) are left out; sentences `ending` (B) may only get `end_id`. -inf stands where there are fewer.
Continuations best_of_logits(const at::Tensor& logits, const at::Tensor& before, const at::Tensor& forbidden,
                             const at::Tensor& ending, int64_t end_id, int64_t num) {
  TORCH_CHECK(logits.is_contiguous() && logits.scalar_type() == at::kFloat && logits.size(0) == before.numel());
  Search search(before, logits.size(1), forbidden, ending, end_id, num);
  const float* from = logits.data_ptr<float>();
  at::parallel_for(0, search.B, 1, [&](int64_t begin, int64_t end) {
    auto maxima = search.room();
    for (int64_t b = begin; b < end; ++b) search.sentence(b, from + b * search.K * search.V, search.V, maxima);
  });
  return {search.scores, search.parents, search.tokens};
}

// The same, given what the logits are projected from: `hidden` (N, D), packed weights and bias (V).
Continuations best_of_hidden(const at::Tensor& hidden, const at::Tensor& packed, const std::optional<at::Tensor>& bias,
                             int64_t vocab_size, const at::Tensor& before, const at::Tensor& forbidden,
                             const at::Tensor& ending, int64_t end_id, int64_t num) {
  TORCH_CHECK(has_tiles(), "this machine has no AMX");
  TORCH_CHECK(hidden.scalar_type() == at::kFloat && hidden.size(0) == before.numel() && packed.is_contiguous());
  Search search(before, vocab_size, forbidden, ending, end_id, num);
#ifdef NMT_TILES
  const auto input = hidden.contiguous();
  const float *from = input.data_ptr<float>(), *add = bias ? bias->data_ptr<float>() : nullptr;
  const auto* weights = packed.data_ptr<at::BFloat16>();
  const int64_t inputs = hidden.size(1), depth = packed.size(1), stride = depth * DEPTH, K = search.K, V = search.V;
  const int64_t width = packed.size(0) * EDGE,
                together = std::max<int64_t>(1, BLOCK / K);  // sentences in a block of rows
  TORCH_CHECK(rounded_up(inputs, DEPTH) == stride && rounded_up(V, BLOCK) == width);
  at::parallel_for(0, (search.B + together - 1) / together, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    auto maxima = search.room();
    const int64_t most = rounded_up(together * K, EDGE);
    std::vector<at::BFloat16> rounded(rounded_up(most, BLOCK) * stride);
    const auto scratch = at::empty({rounded_up(most, BLOCK), width}, at::kFloat);
    float* logits = scratch.data_ptr<float>();
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * together, last = std::min(search.B, first + together), count = (last - first) * K;
      to_bf16(from + first * K * inputs, count, inputs, rounded.data(), stride);
      for (int64_t o = 0; o < width / BLOCK; ++o)
        for (int64_t m = 0; m < count; m += BLOCK)
          multiply_rows(rounded.data() + m * stride, stride, count - m > EDGE, weights + o * 2 * depth * EDGE * DEPTH,
                        logits + m * width + o * BLOCK, width);
      for (int64_t m = 0; add && m < count; ++m) {
#pragma omp simd
        for (int64_t v = 0; v < V; ++v) logits[m * width + v] += add[v];
      }
      for (int64_t b = first; b < last; ++b) search.sentence(b, logits + (b - first) * K * width, width, maxima);
    }
  });
#endif
  return {search.scores, search.parents, search.tokens};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, library) {
  library.def(
      "attend(Tensor queries, Tensor[] keys, Tensor[] values, Tensor rows, Tensor? mask, Tensor? bias) -> Tensor",
      &attend);
  library.def("has_tiles() -> bool", &has_tiles);
#ifdef NMT_TILES
  library.def("pack_weights(Tensor weight) -> Tensor", &pack_weights);
#endif
  library.def("packed_linear(Tensor x, Tensor packed, Tensor? bias, int outputs, bool relu) -> Tensor", &packed_linear);
  library.def(
      "best_of_logits(Tensor logits, Tensor before, Tensor forbidden, Tensor ending, int end_id, int num)"
      " -> (Tensor, Tensor, Tensor)",
      &best_of_logits);
  library.def(
      "best_of_hidden(Tensor hidden, Tensor packed, Tensor? bias, int vocab_size, Tensor before, Tensor forbidden,"
      " Tensor ending, int end_id, int num) -> (Tensor, Tensor, Tensor)",
      &best_of_hidden);
}
