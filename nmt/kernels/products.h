// Products of bfloat16 matrices on the tiles of AMX, summed up in float32.
//
// Blocks of 32 x 32 sums are computed at a time. The processor multiplies tiles beside all else, so that meanwhile
// the block before is written, and what will be read next is fetched.

#pragma once

#include "packing.h"

#ifdef NMT_TILES

namespace nmt {

constexpr int64_t CACHE = 1 << 20;  // bytes of the right factor, or of sums, that stay in the cache of a core
constexpr int64_t PIECE = 4;        // depths that are multiplied while the processor has other things to do, too

// Writes finished sums to out (rows, cols), a few rows at a time, while the next block is multiplied.
template <typename F>
class Outlet {
 public:
  Outlet(at::BFloat16* out, int64_t rows, int64_t cols, const F& finish)
      : out_(out), rows_(rows), cols_(cols), finish_(finish) {}

  // Takes the sums of the block at (top, side) out of the tiles.
  void take(int64_t top, int64_t side) {
    some(BLOCK);
    store_sums(sums_);
    top_ = top;
    side_ = side;
    row_ = 0;
    last_ = std::min(BLOCK, rows_ - top);
    whole_ = side + BLOCK <= cols_;
  }

  void some(int64_t count) {
    const int64_t end = std::min(row_ + count, last_), top = top_, side = side_, cols = cols_;
    const F finish = finish_;
    const float* sums = sums_ + row_ * BLOCK;
    at::BFloat16* out = out_ + (top + row_) * cols + side;
    for (int64_t r = row_; r < end; ++r, sums += BLOCK, out += cols) {
      if (whole_) {
        const Lanes left = finish(top + r, side, load(sums), LANES);
        const Lanes right = finish(top + r, side + LANES, load(sums + LANES), LANES);
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
  at::BFloat16* const out_;
  const int64_t rows_, cols_;
  const F& finish_;
  int64_t top_ = 0, side_ = 0, row_ = 0, last_ = 0;
  bool whole_ = false;
};

// Asks for what will be read next, some cache lines at a time.
struct Ahead {
  const void* next;
  int64_t stride, left;  // bytes from line to line, and lines

  void some(int64_t count) {
    count = std::min(count, left);
    left -= count;
    for (; count > 0; --count, next = (const char*)next + stride) _mm_prefetch((const char*)next, _MM_HINT_T1);
  }
};

// out (rows, cols) = finish(row, col, sums, count) of left (rows, inner) times right, for 16 columns at a time, of
// which `count` or all exist.
template <typename F>
void multiply(const at::BFloat16* left, int64_t rows, int64_t inner, const Packed& right, at::BFloat16* out,
              int64_t cols, const F& finish) {
  const int64_t panels = ceil_div(cols, BLOCK), depths = right.depths;
  const int64_t group = std::max<int64_t>(1, CACHE / (depths * 2 * TILE_BYTES));
  at::parallel_for(0, ceil_div(rows, BLOCK), 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    const Packed filled(BLOCK, inner);
    Outlet<F> outlet(out, rows, cols, finish);
    for (int64_t first = 0; first < panels; first += group) {
      const int64_t last = std::min(panels, first + group), pieces = (last - first) * ceil_div(depths, PIECE);
      for (int64_t top = begin * BLOCK; top < std::min(rows, end * BLOCK); top += BLOCK) {
        // Whole tiles are read where they lie; what is cut off is filled up with zeros.
        const at::BFloat16* block = left + top * inner;
        const bool whole = top + BLOCK <= rows && inner % DEPTH == 0;
        if (!whole) pack_part<false, Over::columns>(block, inner, rows - top, inner, filled, 0, depths);
        const Panel in = whole ? Panel{block, block + EDGE * inner, 2 * inner, 2 * DEPTH} : filled.panel(0);
        const int64_t lines = std::max<int64_t>(0, std::min(BLOCK, rows - top - BLOCK)) * inner * 2 / 64;
        Ahead ahead{block + BLOCK * inner, 64, lines};
        for (int64_t p = first; p < last; ++p) {
          clear_sums();
          for (int64_t d = 0; d < depths; d += PIECE) {
            add_products(in.from(d), right.panel(p, d), std::min(PIECE, depths - d));
            outlet.some(ceil_div(BLOCK * PIECE, depths));
            ahead.some(ceil_div(lines, pieces));
          }
          outlet.take(top, p * BLOCK);
        }
      }
    }
    outlet.some(BLOCK);
  });
}

// out (rows, cols) = left^T right, added to what is there if `adds`, for left (size, rows) and right (size, cols).
inline void outer(const at::BFloat16* left, int64_t rows, const at::BFloat16* right, int64_t cols, int64_t size,
                  float* out, bool adds) {
  // Turning around is dearer than pairing: turn the narrower one.
  const bool swapped = cols < rows;
  const int64_t height = std::min(rows, cols), width = std::max(rows, cols);
  const at::BFloat16* wide = swapped ? left : right;
  const Packed a = pack<false, Over::rows>(swapped ? right : left, height, size, height);
  constexpr int64_t STEP = 256 / DEPTH;  // depths at a time: a panel of `b` then stays in the first cache
  const int64_t blocks = a.panels;
  const int64_t group = std::max<int64_t>(1, CACHE / (blocks * BLOCK * BLOCK * 4));  // panels of `b`
  at::parallel_for(0, ceil_div(width, BLOCK), 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    const int64_t most = std::min(group, end - begin);
    const Packed b(most * BLOCK, STEP * DEPTH);
    const at::Tensor scratch = at::empty({most * blocks * BLOCK * BLOCK}, at::kFloat);
    float* const all_sums = scratch.data_ptr<float>();
    for (int64_t first = begin; first < end; first += group) {
      const int64_t count = std::min(group, end - first), lines = ceil_div(2 * TILE_BYTES / 64 * STEP, count);
      const at::BFloat16* column = wide + first * BLOCK;
      for (int64_t d = 0; d < a.depths; d += STEP, column += STEP * DEPTH * width) {
        const int64_t depths = std::min(STEP, a.depths - d);
        pack_part<true, Over::rows>(column, width, size - d * DEPTH, width - first * BLOCK, b, 0, depths);
        for (int64_t f = 0; f < count; ++f) {
          for (int64_t e = 0; e < blocks; ++e) {
            float* sums = all_sums + (f * blocks + e) * BLOCK * BLOCK;
            d ? load_sums(sums) : clear_sums();
            const int64_t row = STEP * DEPTH * (blocks + e) / blocks;
            Ahead tiles_ahead{a.tile(e, d + STEP, 0) + f * lines * 64, 64, lines};
            Ahead rows_ahead{column + row * width + f * BLOCK, 2 * width, ceil_div(STEP * DEPTH, blocks)};
            for (int64_t piece = 0; piece < depths; piece += PIECE) {
              add_products(a.panel(e, d + piece), b.panel(f, piece), std::min(PIECE, depths - piece));
              tiles_ahead.some(ceil_div(lines * PIECE, STEP));
              rows_ahead.some(ceil_div(DEPTH * PIECE, blocks));
            }
            store_sums(sums);
          }
        }
      }
      float* sums = all_sums;
      for (int64_t f = first; f < first + count; ++f) {
        for (int64_t e = 0; e < blocks; ++e, sums += BLOCK * BLOCK) {
          if (swapped) turn_block(sums);
          const int64_t top = (swapped ? f : e) * BLOCK, side = (swapped ? e : f) * BLOCK;
          for (int64_t i = 0; i < std::min(BLOCK, rows - top); ++i) {
            for (int64_t j = 0; j < std::min(BLOCK, cols - side); j += LANES) {
              float* o = out + (top + i) * cols + side + j;
              const int64_t n = cols - side - j;
              const Lanes sum = load(sums + i * BLOCK + j);
              store(o, adds ? load(o, n) + sum : sum, n);
            }
          }
        }
      }
    }
  });
}

}  // namespace nmt

#endif
