// One step of search through all layers of a Transformer's decoder, in one call.
//
// Numbers are float32 but the factors of products by packed weights, and keys and values, which are bfloat16 if the
// tensors of the cache are. The definition in plain torch is that of the layers in nmt/models/stack.py.
//
// Shapes: N hypotheses, B sentences, L layers, D d_model, H heads, C channels of a head in queries and keys, E in
// values, R rows and P columns of a chunk of the cache, T columns of all chunks, S source positions.

#include "arguments.h"
#include "lanes.h"
#include "layers.h"
#include "torch.h"

#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

constexpr int64_t ROWS_AT_ONCE = 4;  // rows for which starting a thread pays
constexpr int64_t SOURCE_UNIT = 16;  // positions of a multiple of which there are keys

constexpr size_t OF_SSRU = 4, OF_SOURCE = 7;  // weights of these sublayers

// ---- attention

// Earlier columns of one layer: keys and values side by side, in chunks (R, P, H * C + H * E).
template <typename T>
struct Past {
  struct Chunk {
    const T* data;
    int64_t columns;
  };
  std::vector<Chunk> chunks;
  const int32_t* places;  // (N, chunks - 1), the row of each hypothesis; in the last chunk, that of its number
  const bool* allowed;    // (R, P) of the first chunk: the columns that may be attended to; null allows all
  const float* bias;      // (H, T), or null
  int64_t num_columns;
};

// Attention of each hypothesis to its own columns.
template <typename T, typename A>
void attend_to_past(const Heads<A>& heads, const Past<T>& past) {
  const int64_t H = heads.H, C = heads.C, E = heads.E, num_chunks = past.chunks.size();
  const int64_t width = H * (C + E);
  const float scale = heads.scale();
  at::parallel_for(0, heads.N, ROWS_AT_ONCE, [&](int64_t begin, int64_t end) {
    std::vector<const T*> columns;  // those that may be attended to
    std::vector<int64_t> numbers;   // and their numbers
    std::vector<float> scores(padded(past.num_columns));
    for (int64_t n = begin; n < end; ++n) {
      columns.clear();
      numbers.clear();
      for (int64_t i = 0, number = 0; i < num_chunks; ++i) {
        const auto [data, length] = past.chunks[i];
        const int64_t row = i + 1 < num_chunks ? past.places[n * (num_chunks - 1) + i] : n;
        for (int64_t j = 0; j < length; ++j, ++number) {
          if (i == 0 && past.allowed != nullptr && num_chunks > 1 && !past.allowed[row * length + j]) continue;
          const T* column = data + (row * length + j) * width;
          prefetch(column, C);
          columns.push_back(column);
          numbers.push_back(number);
        }
      }
      const int64_t S = columns.size();
      for (int64_t h = 0; h < H; ++h) {
        const float* query = heads.queries + (n * H + h) * C;
        const auto values = [&](int64_t t) { return columns[t] + H * C + h * E; };
        for (int64_t i = 0; i < S; ++i) {
          prefetch(columns[i] + (h + 1) * C, C);  // keys of the next head, or values of the first
          prefetch(values(i), E);
        }
        for (int64_t first = 0; first < S; first += LANES) {
          Vec dots[LANES] = {};
          for (int64_t i = 0; i < std::min(LANES, S - first); ++i) {
            const T* key = columns[first + i] + h * C;
            Vec sum = {};
            for (int64_t c = 0; c < C; c += LANES) sum += load(query + c, C - c) * load(key + c, C - c);
            dots[i] = sum;
          }
          store(scores.data() + first, sums_of(dots) * scale);
        }
        for (int64_t i = 0; i < S && past.bias != nullptr; ++i)
          scores[i] += past.bias[h * past.num_columns + numbers[i]];
        softmax(scores.data(), S, 1.0f, scores.data());
        add_values<1>(scores.data(), 0, S, E, values, heads.out + (n * H + h) * E, 0);
      }
    }
  });
}

// The source of one layer: keys (B, H * C, padded S), whose columns are source positions, and values (B, S, H * E).
template <typename T>
struct Source {
  const T *keys, *values;
  const int32_t* sentences;  // (N)
  const bool* allowed;       // (B, S)
  int64_t S;
};

// Attention to the source: adjacent hypotheses of one sentence read its keys and values together.
template <typename T, typename A>
void attend_to_source(const Heads<A>& heads, const Source<T>& source) {
  const int64_t H = heads.H, C = heads.C, E = heads.E, S = source.S;
  const int64_t ld = padded(S, SOURCE_UNIT);
  at::parallel_for(0, heads.N, ROWS_AT_ONCE, [&](int64_t begin, int64_t end) {
    std::vector<float> scores(MOST_TOGETHER * ld);
    for (int64_t n = begin, last; n < end; n = last) {
      const int64_t b = source.sentences[n];
      for (last = n + 1; last < end && source.sentences[last] == b;) ++last;
      const bool* allowed = source.allowed + b * S;
      int64_t length = S;  // without the padding behind a sentence, which is not read
      while (length > 1 && !allowed[length - 1]) --length;
      for_groups(n, last, [&](auto count, int64_t first) {
        for (int64_t h = 0; h < H; ++h) {
          const Columns<T> keys{source.keys + (b * H + h) * C * ld, C, ld, length, allowed};
          const auto values = [&](int64_t t) { return source.values + (b * S + t) * H * E + h * E; };
          for (int64_t t = 0; t < length; ++t) prefetch(values(t), E);
          const int64_t place = first * H + h;
          attend_to_columns<count>(heads.queries + place * C, H * C, keys, values, scores.data(), heads.out + place * E,
                                   H * E, E);
        }
      });
    }
  });
}

// The source of one layer as `Source` has it, of S positions, from the keys (b, H, s, C) and values (b, H, s, E) of some
// sentences and their first positions each; zeros behind these.
template <typename T>
std::tuple<Tensor, Tensor> arranged(at::TensorList keys, at::TensorList values, int64_t S) {
  const auto sizes = sizes_of<4>("keys", keys[0]);
  const int64_t H = sizes[1], C = sizes[3], E = sizes_of<4>("values", values[0])[3], ld = padded(S, SOURCE_UNIT);
  int64_t B = 0;
  for (const Tensor& part : keys) B += sizes_of<4>("keys", part)[0];
  const auto options = keys[0].options().dtype(c10::CppTypeToScalarType<T>::value);
  const Tensor columns = at::empty({B, H * C, ld}, options), rows = at::empty({B, S, H * E}, options);
  int64_t first = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [num, heads, length, channels] = sizes_of<4>("keys", keys[i]);
    TORCH_CHECK(length <= S, "keys must be of at most ", S, " positions, but their shape is ", in_words(keys[i].sizes()));
    const float* key = data_of<float>("keys", keys[i], {num, H, length, C}, Layout::dense_rows);
    const float* value = data_of<float>("values", values[i], {num, H, length, E}, Layout::dense_rows);
    const auto key_steps = keys[i].strides(), value_steps = values[i].strides();
    const int64_t own = length;
    T* const to_columns = columns.data_ptr<T>() + first * H * C * ld;
    T* const to_rows = rows.data_ptr<T>() + first * S * H * E;
    at::parallel_for(0, num * H, GRAIN / (ld * (C + E) + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const int64_t b = j / H, h = j % H;
        T* const own_columns = to_columns + j * C * ld;
        transpose_rows(key + b * key_steps[0] + h * key_steps[1], key_steps[2], own, C, own_columns, ld);
        for (int64_t c = 0; c < C; ++c) std::fill(own_columns + c * ld + padded(own), own_columns + (c + 1) * ld, T(0));
        T* const own_rows = to_rows + b * S * H * E + h * E;
        for (int64_t t = 0; t < S; ++t) {
          const float* in = value + b * value_steps[0] + h * value_steps[1] + t * value_steps[2];
          for (int64_t e = 0; e < E; e += LANES) {
            store(own_rows + t * H * E + e, t < own ? load(in + e, E - e) : Vec{}, E - e);
          }
        }
      }
    });
    first += num;
  }
  return {columns, rows};
}

std::tuple<Tensor, Tensor> arrange_source(at::TensorList keys, at::TensorList values, int64_t length, bool rounds) {
  TORCH_CHECK(!keys.empty() && values.size() == keys.size(), "keys and values must have as many parts, at least one, ",
              "but have ", keys.size(), " and ", values.size());
  TORCH_CHECK(length >= 0 && length <= MAX_SIZE, "length must be from 0 to ", MAX_SIZE, ", but is ", length);
  return (rounds ? arranged<at::BFloat16> : arranged<float>)(keys, values, length);
}

// ---- the step

// Self-attention, whose new keys and values are written to `column` (N, H * C + H * E), the last chunk of `past`.
template <typename T, typename A>
void self_attention(float* x, Weights weights, size_t place, const Shared& shared, const Past<T>& past, T* column) {
  const auto [N, D, H, C, E] = shared.sizes;
  const int64_t width = H * (C + E);
  residual<A>(x, weights, place, shared, [&](const A* in, const auto& finish) {
    const auto queries = room(N * H * C), new_column = room(N * width);
    const auto context = room<A>(N * H * E);
    project(in, weights, place, shared, 0, queries.get(), new_column.get());
    const int64_t count = N * width;
    for (int64_t i = 0; i < count; i += LANES) store(column + i, load(new_column.get() + i, count - i), count - i);
    attend_to_past(Heads<A>{queries.get(), context.get(), N, H, C, E}, past);
    linear_map(weights, place + 6, D, H * E)(context.get(), N, x, finish);
  });
}

// The simpler simple recurrent unit in place of self-attention: c = f c' + (1 - f) v and relu(c), with the forget gate
// f = sigmoid(g); one map gives g and v. Rows of c, and of c' (N, D), lie `stride` apart.
template <typename A>
void ssru(float* x, Weights weights, size_t place, const Shared& shared, const float* before, float* cells,
          int64_t stride) {
  const auto [N, D, H, C, E] = shared.sizes;
  residual<A>(x, weights, place, shared, [&](const A* in, const auto& finish) {
    const auto products = room(N * 2 * D);
    linear_map(weights, place + 2, 2 * D, D)(in, N, products.get());
    at::parallel_for(0, N, ceil_div(GRAIN, 2 * D), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const float *const gates = products.get() + n * 2 * D, *const values = gates + D;
        for (int64_t i = 0; i < D; i += LANES) {
          const int64_t left = D - i;
          const Vec value = load(values + i, left);
          const Vec cell = value + sigmoid(load(gates + i, left)) * (load(before + n * stride + i, left) - value);
          store(cells + n * stride + i, cell, left);
          store(x + n * D + i, finish(n, i, maximum(Vec{}, cell), left), left);
        }
      }
    });
  });
}

template <typename T, typename A>
void cross_attention(float* x, Weights weights, size_t place, const Shared& shared, const Source<T>& source) {
  const auto [N, D, H, C, E] = shared.sizes;
  residual<A>(x, weights, place, shared, [&](const A* in, const auto& finish) {
    const auto queries = room(N * H * C);
    const auto context = room<A>(N * H * E);
    linear_map(weights, place + 2, H * C, D)(in, N, queries.get());
    norm_heads(queries.get(), H * C, weights, place + 6, shared);
    attend_to_source(Heads<A>{queries.get(), context.get(), N, H, C, E}, source);
    linear_map(weights, place + 4, D, H * E)(context.get(), N, x, finish);
  });
}

// The stack of layers for keys and values of T, and rows that linear maps take of A.
template <typename T, typename A>
std::tuple<Tensor, Tensor> run(const Tensor& input, Weights weights, const Shared& shared, int64_t d_ff, int64_t L,
                               at::TensorList chunks, const Tensor& places, const std::optional<Tensor>& prefix_mask,
                               const std::vector<std::optional<Tensor>>& biases, at::TensorList source_keys,
                               at::TensorList source_values, const std::optional<Tensor>& source_mask,
                               const std::optional<Tensor>& sentences, const std::optional<Tensor>& cells) {
  const auto [N, D, H, C, E] = shared.sizes;
  const int64_t width = H * (C + E), num_chunks = chunks.size() + 1;
  const auto type = c10::CppTypeToScalarType<T>::value;
  const Tensor output = input.clone(), column = cells.has_value()
                                                    ? at::empty({N, L, D}, input.options())
                                                    : at::empty({L, N, 1, width}, input.options().dtype(type));
  float* const x = output.data_ptr<float>();
  const float* before = data_of<float>("cells", cells, {N, L, D});

  Past<T> past;
  past.places = data_of<int32_t>("places", places, {N, num_chunks - 1});
  past.allowed = nullptr;
  past.num_columns = 1;
  std::vector<const T*> data;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i + 1 < num_chunks; ++i) {
    const auto [layers, R, P, own] = sizes_of<4>("chunks", chunks[i]);
    data.push_back(data_of<T>("chunks", chunks[i], {L, R, P, width}));
    check_ids("places", past.places + i, N, R, num_chunks - 1);
    past.chunks.push_back({nullptr, P});
    past.num_columns += P;
    rows.push_back(R);
    if (i == 0) past.allowed = data_of<bool>("prefix_mask", prefix_mask, {R, P});
  }
  past.chunks.push_back({nullptr, 1});

  const bool reads_source = !source_keys.empty();
  Source<T> source;
  int64_t B = 0;
  if (reads_source) {
    TORCH_CHECK(source_mask.has_value() && sentences.has_value(), "source_mask and sentences must be given");
    const auto [num, S] = sizes_of<2>("source_mask", *source_mask);
    B = num, source.S = S;
    source.allowed = data_of<bool>("source_mask", *source_mask, {B, S});
    source.sentences = data_of<int32_t>("sentences", *sentences, {N, 1});
    check_ids("sentences", source.sentences, N, B);
  }
  const size_t own = cells.has_value() ? OF_SSRU : OF_ATTENTION, of_source = reads_source ? OF_SOURCE : 0;
  const size_t step = own + of_source + OF_BLOCK;
  for (int64_t l = 0; l < L; ++l) {
    const size_t place = l * step;
    if (before != nullptr) {
      ssru<A>(x, weights, place, shared, before + l * D, column.data_ptr<float>() + l * D, L * D);
    } else {
      for (int64_t i = 0; i + 1 < num_chunks; ++i) {
        past.chunks[i].data = data[i] + l * rows[i] * past.chunks[i].columns * width;
      }
      T* const newest = column.data_ptr<T>() + l * N * width;
      past.chunks.back().data = newest;
      past.bias = biases.empty() ? nullptr : data_of<float>("biases", biases[l], {1, H, 1, past.num_columns});
      self_attention<T, A>(x, weights, place, shared, past, newest);
    }
    if (reads_source) {
      source.keys = data_of<T>("source_keys", source_keys[l], {B, H * C, padded(source.S, SOURCE_UNIT)});
      source.values = data_of<T>("source_values", source_values[l], {B, source.S, H * E});
      cross_attention<T, A>(x, weights, place + own, shared, source);
    }
    feed_forward<A>(x, weights, place + own + of_source, shared, d_ff);
  }
  return {output, column};
}

// Returns what the layers make of x (N, D), one position of every hypothesis, and its keys and values (L, N, 1, H * C +
// H * E), bfloat16 with `rounds`. `weights` has for each layer norm, query, key and value, output of self-attention;
// norm, query, output of cross-attention; norm, inner and outer map of the feed-forward block: weight and bias of each.
// Behind those of self-attention are the weights of the norms of its queries and keys, behind those of cross-attention
// that of its queries, or nothing in their places.
// With `cells` (N, L, D), what the SSRUs in place of self-attention remember, the second result is the same after this
// step, and norm and map of an SSRU are the first weights of a layer.
std::tuple<Tensor, Tensor> decoder_step(
    const Tensor& x, const c10::List<std::optional<Tensor>>& weight_list, int64_t num_layers, int64_t num_heads,
    int64_t key_size, int64_t value_size, int64_t d_ff, bool pre_norm, bool rms_norm, double eps, double head_eps,
    const std::string& activation, bool rounds, at::TensorList chunks, const Tensor& places,
    const std::optional<Tensor>& prefix_mask, const std::optional<Tensor>& angles,
    const c10::List<std::optional<Tensor>>& bias_list, at::TensorList source_keys, at::TensorList source_values,
    const std::optional<Tensor>& source_mask, const std::optional<Tensor>& sentences,
    const std::optional<Tensor>& cells) {
  const auto [N, D] = sizes_of<2>("x", x);
  data_of<float>("x", x, {N, D});
  check_sizes({num_layers, num_heads, key_size, value_size, d_ff, D});
  const bool reads_source = !source_keys.empty();
  const size_t own = cells.has_value() ? OF_SSRU : OF_ATTENTION;
  check_weights(weight_list, num_layers * (own + (reads_source ? OF_SOURCE : 0) + OF_BLOCK));
  for (const size_t count : {source_keys.size(), source_values.size()}) {
    TORCH_CHECK(!reads_source || int64_t(count) == num_layers, "source_keys and source_values must be ", num_layers,
                " tensors, but are ", count);
  }
  TORCH_CHECK(bias_list.empty() || int64_t(bias_list.size()) == num_layers, "biases must be ", num_layers,
              " tensors, but are ", bias_list.size());
  const Shared shared{{N, D, num_heads, key_size, value_size}, pre_norm, rms_norm, eps, head_eps, activation,
                      angles_of(angles, 1, key_size)};
  const auto weights = weight_list.vec();
  auto run_for = rounds ? run<at::BFloat16, float> : run<float, float>;
#ifdef NMT_TILES
  if (rounds && takes_bfloat16(weights)) run_for = run<at::BFloat16, at::BFloat16>;
#endif
  return run_for(x, weights, shared, d_ff, num_layers, chunks, places, prefix_mask, bias_list.vec(), source_keys,
                 source_values, source_mask, sentences, cells);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def(
      "arrange_source(Tensor[] keys, Tensor[] values, int length, bool rounds) -> (Tensor, Tensor)", &arrange_source);
  m.def(
      "decoder_step(Tensor x, Tensor?[] weights, int num_layers, int num_heads, int key_size, int value_size, "
      "int d_ff, bool pre_norm, bool rms_norm, float eps, float head_eps, str activation, bool rounds, Tensor[] chunks, "
      "Tensor places, Tensor? prefix_mask, Tensor? angles, Tensor?[] biases, Tensor[] source_keys, "
      "Tensor[] source_values, Tensor? source_mask, Tensor? sentences, Tensor? cells) -> (Tensor, Tensor)",
      &decoder_step);
}
