// Products of matrices on the tiles of AMX.
//
// A block of 32 x 32 sums is computed at a time. The processor multiplies tiles beside its other work: in `multiply` it
// meanwhile writes the previous block and fetches the numbers that will be read next.

#pragma once

#include "packing.h"

#include <type_traits>

#ifdef NMT_TILES

namespace nmt {

constexpr int64_t CACHE_BYTES = 1 << 20;  // bytes of the right factor, or of sums, that stay in the cache of a core
constexpr int64_t PIECE = 4;              // depths that are multiplied between two steps of other work
constexpr int64_t STEP = 8;               // depths of two panels that stay in the first cache, beside other numbers

// Writes blocks of sums, once finish() has been applied, to out (rows, cols): a few rows at each step, while the next
// block is multiplied.
template <typename T, typename F>
class BlockWriter {
 public:
  BlockWriter(T* out, int64_t rows, int64_t cols, const F& finish)
      : out_(out), rows_(rows), cols_(cols), finish_(finish) {}

  // Writes the rest of the previous block, then takes the block at (top, side) out of the tiles.
  void take(int64_t top, int64_t side) {
    step(BLOCK);
    rows_ - top > EDGE ? store_sums(sums_) : store_sums<EDGE>(sums_);
    top_ = top;
    side_ = side;
    row_ = 0;
    last_ = std::min(BLOCK, rows_ - top);
    whole_ = side + BLOCK <= cols_;
  }

  // Writes up to `count` rows more.
  void step(int64_t count) {
    const int64_t end = std::min(row_ + count, last_), top = top_, side = side_, cols = cols_;
    const F finish = finish_;
    const float* sums = sums_ + row_ * BLOCK;
    T* out = out_ + (top + row_) * cols + side;
    for (int64_t r = row_; r < end; ++r, sums += BLOCK, out += cols) {
      __builtin_prefetch(out + BLOCK, 1);  // the row of the next block, to be written
      if (whole_) {
        const Vec left = finish(top + r, side, load(sums), LANES);
        const Vec right = finish(top + r, side + LANES, load(sums + LANES), LANES);
        store(out, left);
        store(out + LANES, right);
      } else {
        for (int64_t j = 0; j < cols - side; j += LANES) {
          store(out + j, finish(top + r, side + j, load(sums + j), cols - side - j), cols - side - j);
        }
      }
    }
    row_ = std::max(row_, end);
  }

 private:
  alignas(64) float sums_[BLOCK * BLOCK];
  T* const out_;
  const int64_t rows_, cols_;
  const F& finish_;
  int64_t top_ = 0, side_ = 0, row_ = 0, last_ = 0;
  bool whole_ = false;
};

// Fetches memory into the cache before it is read, a few lines at each step.
struct Prefetcher {
  const void* next;
  int64_t stride, left;  // bytes from line to line, and lines

  // Fetches up to `count` lines more.
  void step(int64_t count) {
    count = std::min(count, left);
    left -= count;
    for (; count > 0; --count, next = (const char*)next + stride) _mm_prefetch((const char*)next, _MM_HINT_T1);
  }
};

// A `finish` for multiply: the sums plus a bias (cols), unless the bias is null.
inline auto add_bias(const float* bias) {
  return [bias](int64_t, int64_t c, Vec sum, int64_t n) { return bias == nullptr ? sum : sum + load(bias + c, n); };
}

// The left factor of a block of rows, and the memory of the next one.
struct LeftBlock {
  Panel tiles;
  Prefetcher next;
};

// out (rows, cols) = finish(left right), `depths` tiles along the inner axis. right(p, d) is panel p from depth d on;
// make_left() returns, for each thread, a function of the first row of a block that returns its LeftBlock.
// finish(row, col, sums, count) is given 16 sums at a time, of which only the first `count` exist near the last column;
// the sums of bytes are whole numbers.
template <Factors FACTORS, typename T, typename Left, typename Right, typename F>
void multiply_blocks(int64_t rows, int64_t cols, int64_t depths, const Left& make_left, const Right& right, T* out,
                     const F& finish) {
  const int64_t blocks = ceil_div(rows, BLOCK), panels = ceil_div(cols, BLOCK);
  // All blocks of rows are multiplied with one group of panels, then with the next one. The panels of a group stay in
  // the cache, and there are enough groups for all threads.
  const int64_t threads = at::get_num_threads(), bytes = panels * depths * 2 * TILE_BYTES;
  const int64_t groups = std::min(panels, std::max(ceil_div(bytes, CACHE_BYTES), blocks >= 2 * threads ? 1 : threads));
  deal(groups * blocks, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    auto left = make_left();
    BlockWriter<T, F> writer(out, rows, cols, finish);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / blocks, top = task % blocks * BLOCK;
      const int64_t first = panels * group / groups, last = panels * (group + 1) / groups;
      auto [in, next] = left(top);
      const int64_t lines = ceil_div(next.left, std::max<int64_t>(1, (last - first) * ceil_div(depths, PIECE)));
      for (int64_t p = first; p < last; ++p) {
        clear_sums();
        for (int64_t d = 0; d < depths; d += PIECE) {
          const int64_t count = std::min(PIECE, depths - d);
          if (rows - top > EDGE) {
            add_products<BLOCK, BLOCK, FACTORS>(in.from(d), right(p, d), count);
          } else {
            add_products<EDGE, BLOCK, FACTORS>(in.from(d), right(p, d), count);
          }
          writer.step(ceil_div(BLOCK * PIECE, depths));
          next.step(lines);
        }
        writer.take(top, p * BLOCK);
      }
    }
    writer.step(BLOCK);
  });
}

// The block of rows of left (rows, inner) from `top` on, `depths` tiles from depth d on. Whole tiles of bfloat16 are
// read in place; other blocks are copied, and rounded to bfloat16. Rows beyond the last may hold anything.
template <typename L>
Panel block_of(const L* left, int64_t rows, int64_t inner, int64_t top, const PackedMatrix& copy, int64_t d,
               int64_t depths) {
  const L* block = left + top * inner + d * DEPTH;
  if (std::is_same_v<L, at::BFloat16> && top + BLOCK <= rows && inner % DEPTH == 0)
    return {block, block + EDGE * inner, 2 * inner, 2 * DEPTH};
  pack_part<false, InnerAxis::columns>(block, inner, rows - top, inner - d * DEPTH, copy, 0, depths);
  return copy.panel(0);
}

// out (rows, cols) = finish(left right), for left (rows, inner) and right (inner, cols), `finish` being that of
// multiply_blocks. `out` is bfloat16 or float32, and so is `left`, which is rounded to bfloat16.
template <typename L, typename T, typename F>
void multiply(const L* left, int64_t rows, int64_t inner, const PackedMatrix& right, T* out, int64_t cols,
              const F& finish) {
  const auto make_left = [&] {
    return [&, copy = PackedMatrix(BLOCK, inner), block = Panel{}, taken = int64_t(-1)](int64_t top) mutable {
      if (taken != top) block = block_of(left, rows, inner, taken = top, copy, 0, copy.depths);
      const int64_t next_rows = std::max<int64_t>(0, std::min(BLOCK, rows - top - BLOCK));
      const L* next = left + (top + BLOCK) * inner;
      return LeftBlock{block, {next, 64, next_rows * inner * int64_t(sizeof(L)) / 64}};
    };
  };
  const auto panel = [&](int64_t p, int64_t d) { return right.panel(p, d); };
  multiply_blocks<Factors::bfloat16>(rows, cols, right.depths, make_left, panel, out, finish);
}

// Writes finish(row, col, sums, count) of a block at (top, side) to out (rows, cols), for 16 sums at a time.
template <typename T, typename F>
void write_block(const float* sums, int64_t top, int64_t side, T* out, int64_t rows, int64_t cols, const F& finish) {
  for (int64_t i = 0; i < std::min(BLOCK, rows - top); ++i) {
    for (int64_t j = 0; j < std::min(BLOCK, cols - side); j += LANES) {
      const int64_t r = top + i, c = side + j;
      store(out + r * cols + c, finish(r, c, load(sums + i * BLOCK + j), cols - c), cols - c);
    }
  }
}

// Adds a product to sums that wait in memory; the first is not added to what is there.
inline void add_to_sums(float* sums, bool is_first, const Panel& left, const Panel& right, int64_t depths) {
  is_first ? clear_sums() : load_sums(sums);
  add_products(left, right, depths);
  store_sums(sums);
}

// out (rows, cols) = left right, for an inner axis so long that the rows of a block do not stay in the cache: part
// after part of the axis is multiplied, of as many rows as have room for their sums there.
inline void multiply_deep(const at::BFloat16* left, int64_t rows, int64_t inner, const PackedMatrix& right,
                          at::BFloat16* out, int64_t cols) {
  if (cols == 0) return;
  const int64_t blocks = ceil_div(rows, BLOCK), panels = right.panels;
  const int64_t most = std::max<int64_t>(1, CACHE_BYTES / 4 / (panels * BLOCK * BLOCK * 4));
  const int64_t groups = std::max(ceil_div(blocks, most), std::min<int64_t>(blocks, at::get_num_threads()));
  deal(groups, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    const PackedMatrix copy(BLOCK, STEP * DEPTH);
    const at::Tensor scratch = at::empty({ceil_div(blocks, groups) * panels * BLOCK * BLOCK}, at::kFloat);
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = blocks * group / groups, last = blocks * (group + 1) / groups;
      for (int64_t d = 0; d < right.depths; d += STEP) {
        const int64_t depths = std::min(STEP, right.depths - d);
        float* sums = scratch.data_ptr<float>();
        for (int64_t e = first; e < last; ++e) {
          const Panel block = block_of(left, rows, inner, e * BLOCK, copy, d, depths);
          for (int64_t p = 0; p < panels; ++p, sums += BLOCK * BLOCK)
            add_to_sums(sums, d == 0, block, right.panel(p, d), depths);
        }
      }
      const float* sums = scratch.data_ptr<float>();
      for (int64_t e = first; e < last; ++e) {
        for (int64_t p = 0; p < panels; ++p, sums += BLOCK * BLOCK) {
          write_block(sums, e * BLOCK, p * BLOCK, out, rows, cols,
                      [](int64_t, int64_t, Vec sum, int64_t) { return sum; });
        }
      }
    }
  });
}

// out (rows, cols) = left^T right, for left (size, rows) and right (size, cols); with `adds` the product is added to
// what `out` holds.
inline void outer_product(const at::BFloat16* left, int64_t rows, const at::BFloat16* right, int64_t cols, int64_t size,
                          float* out, bool adds) {
  if (rows == 0 || cols == 0 || size == 0) {
    if (!adds) std::fill_n(out, rows * cols, 0.0f);
    return;
  }
  // Transposing tiles of the left factor takes longer than pairing rows of the right one. So the narrower matrix is the
  // left factor, and if that is `right`, the blocks of sums are transposed.
  const bool swapped = cols < rows;
  const int64_t height = std::min(rows, cols), width = std::max(rows, cols);
  const at::BFloat16* wide = swapped ? left : right;
  const PackedMatrix a = pack<false, InnerAxis::rows>(swapped ? right : left, height, size, height);
  const int64_t blocks = a.panels;
  const int64_t group = std::max<int64_t>(1, CACHE_BYTES / (blocks * BLOCK * BLOCK * 4));  // panels of `b`
  // Each part reads all of `a`, so the parts are large where all threads have one.
  const int64_t panels = ceil_div(width, BLOCK), least = std::min<int64_t>(8, ceil_div(panels, at::get_num_threads()));
  deal(panels, least, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    const int64_t most = std::min(group, end - begin);
    const PackedMatrix b(most * BLOCK, STEP * DEPTH);
    const at::Tensor scratch = at::empty({most * blocks * BLOCK * BLOCK}, at::kFloat);
    float* const all_sums = scratch.data_ptr<float>();
    for (int64_t first = begin; first < end; first += group) {
      const int64_t count = std::min(group, end - first);
      const at::BFloat16* column = wide + first * BLOCK;
      for (int64_t d = 0; d < a.depths; d += STEP, column += STEP * DEPTH * width) {
        const int64_t depths = std::min(STEP, a.depths - d);
        pack_part<true, InnerAxis::rows>(column, width, size - d * DEPTH, width - first * BLOCK, b, 0, depths);
        for (int64_t f = 0; f < count; ++f) {
          for (int64_t e = 0; e < blocks; ++e)
            add_to_sums(all_sums + (f * blocks + e) * BLOCK * BLOCK, d == 0, a.panel(e, d), b.panel(f, 0), depths);
        }
      }
      float* sums = all_sums;
      for (int64_t f = first; f < first + count; ++f) {
        for (int64_t e = 0; e < blocks; ++e, sums += BLOCK * BLOCK) {
          if (swapped) transpose_block(sums);
          write_block(sums, (swapped ? f : e) * BLOCK, (swapped ? e : f) * BLOCK, out, rows, cols,
                      [=](int64_t r, int64_t c, Vec sum, int64_t n) {
                        return adds ? load(out + r * cols + c, n) + sum : sum;
                      });
        }
      }
    }
  });
}

}  // namespace nmt

#endif
