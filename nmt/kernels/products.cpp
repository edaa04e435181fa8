// Matrix products of training in bfloat16, on the tiles of AMX, and the vocabulary loss that is made of them.
//
// Matrices are laid out in tiles first: the right factor of a product by pairs of rows, as the instructions want
// it. Then blocks of 32 x 32 sums are computed at a time, and what is to be done with them is done at once.
// `nmt/fused.py` is the only caller, where has_tiles() says so.
//
// Shapes: M rows, K and N the widths of a linear map, D width of the hidden states, V vocabulary.

#include "dispatch.h"
#include "lanes.h"
#include "tiles.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace {

using namespace nmt;
using at::Tensor;

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

// ---- matrix products

#ifdef NMT_TILES

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
  if (count >= LANES) {
    std::memcpy(&x, p, sizeof(x));  // of a known size: one instruction
  } else {
    std::memcpy(&x, p, sizeof(at::BFloat16) * count);
  }
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
  Panel panel(int64_t edge, int64_t depth = 0) const { return {tile(edge, depth), tile(edge + 1, depth)}; }
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

constexpr int64_t CHUNK = 128;  // rows of the left factor that stay in the cache

// Calls use(row, col, sums, count) for 16 columns of left (rows, inner) times right, of which `count` or all exist.
template <typename F>
void multiply(const at::BFloat16* left, int64_t rows, int64_t inner, const Packed& right, int64_t cols, const F& use) {
  at::parallel_for(0, ceil_div(rows, CHUNK), 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    alignas(64) float sums[BLOCK * BLOCK];
    for (int64_t first = begin * CHUNK; first < std::min(rows, end * CHUNK); first += CHUNK) {
      const int64_t count = std::min(CHUNK, rows - first);
      const at::BFloat16* chunk = left + first * inner;
      // Whole tiles are read where they lie; what is cut off is filled up with zeros.
      const bool whole = count % BLOCK == 0 && inner % DEPTH == 0;
      std::optional<Packed> part;
      if (!whole) {
        part.emplace(count, inner);
        pack_part<false, From::columns>(chunk, inner, count, inner, *part, 0, part->depths);
      }
      for (int64_t e = 0; e < right.edges; e += 2) {
        for (int64_t top = 0; top < count; top += BLOCK) {
          const at::BFloat16* block = chunk + top * inner;
          const Panel rows_of_tiles = whole ? Panel{block, block + EDGE * inner, 2 * inner, 2 * DEPTH}
                                            : part->panel(top / EDGE);
          multiply_block(rows_of_tiles, right.panel(e), right.depths, sums);
          const int64_t side = e * EDGE;
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
  const int64_t step = std::max<int64_t>(1024, (1 << 18) / height) / DEPTH;
  at::parallel_for(0, b.edges / 2, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    alignas(64) float sums[BLOCK * BLOCK];
    for (int64_t d = 0; d < a.depths; d += step) {
      const int64_t depths = std::min(step, a.depths - d);
      for (int64_t f = 2 * begin; f < 2 * end; f += 2) {
        for (int64_t e = 0; e < a.edges; e += 2) {
          multiply_block(a.panel(e, d), b.panel(f, d), depths, sums);
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
    grad_bias = at::empty({cols}, weight.options());
    float* b = grad_bias.data_ptr<float>();
    constexpr int64_t WIDTH = 4 * LANES;  // columns whose sums stay in registers
    at::parallel_for(0, ceil_div(cols, WIDTH), GRAIN / (WIDTH * rows + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * WIDTH; first < std::min(cols, end * WIDTH); first += WIDTH) {
        Lanes sums[4] = {};
        for (int64_t m = 0; m < rows; ++m) {
          for (int64_t i = 0; i < 4; ++i) {
            const int64_t c = first + i * LANES;
            if (c < cols) sums[i] += load(g + m * cols + c, cols - c);
          }
        }
        for (int64_t i = 0; i < 4; ++i) {
          const int64_t c = first + i * LANES;
          if (c < cols) store(b + c, sums[i], cols - c);
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
  m.def("smoothed_nll_(Tensor(a!) logits, Tensor targets, float smoothing) -> Tensor", &smoothed_nll_);
#ifdef NMT_TILES
  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor", &linear);
  m.def("linear_backward(Tensor grad, Tensor x, Tensor weight, bool needs_x, bool has_bias) -> (Tensor, Tensor, Tensor)",
        &linear_backward);
  m.def("projected_nll(Tensor hidden, Tensor weight, Tensor targets, float smoothing) -> (Tensor, Tensor, Tensor)",
        &projected_nll);
#endif
}
