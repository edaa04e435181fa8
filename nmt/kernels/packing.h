// Matrices laid out in the tiles of AMX: rows that lie together, or for a right factor pairs of rows.

#pragma once

#include "lanes.h"
#include "tiles.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#ifdef NMT_TILES

namespace nmt {

// Turns a square of 16 x 16 words around its diagonal.
inline void turn(Words (&rows)[EDGE]) {
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

inline void turn_block(float* sums) {
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
  return (Halves)_mm256_maskz_loadu_epi16(count >= LANES ? 0xffff : first(count), p);
}

// 16 words of a column of pairs: elements of rows `r` and `r + 1`, columns from `c` on; beyond the matrix stand zeros.
template <typename T>
inline Words pairs(const T* in, int64_t ld, int64_t rows, int64_t cols, int64_t r, int64_t c) {
  if (r >= rows || c >= cols) return Words{};
  const Words upper = widened(halves(in + r * ld + c, cols - c));
  if (r + 1 >= rows) return upper;
  return upper | widened(halves(in + (r + 1) * ld + c, cols - c)) << 16;
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

// A matrix in tiles, by panels of BLOCK rows (left) or columns (right), with both tiles of a depth side by side.
class Packed {
 public:
  const int64_t panels, depths;

  // In memory of its own, or in that of another one that is as large.
  Packed(int64_t size, int64_t inner) : panels(ceil_div(size, BLOCK)), depths(ceil_div(inner, DEPTH)) {
    memory_ = at::empty({panels * depths * 2 * TILE_BYTES}, at::kByte);
    tiles_ = memory_.data_ptr<uint8_t>();
  }
  Packed(int64_t size, int64_t inner, const Packed& other)
      : panels(ceil_div(size, BLOCK)), depths(ceil_div(inner, DEPTH)), tiles_(other.tiles_) {}

  // The upper or left tile, `half` 0, or the other one, `half` 1.
  uint8_t* tile(int64_t panel, int64_t depth, int64_t half) const {
    return tiles_ + ((panel * depths + depth) * 2 + half) * TILE_BYTES;
  }
  Panel panel(int64_t number, int64_t depth = 0) const {
    return {tile(number, depth, 0), tile(number, depth, 1), TILE_ROW, 2 * TILE_BYTES};
  }

 private:
  at::Tensor memory_;
  uint8_t* tiles_;  // of memory_, which is slower to ask
};

// Writes the tiles `first` .. `last` along the inner axis of a matrix (rows, cols), which runs down its rows or along
// its columns. `PAIRED` tiles are those of a right factor.
template <bool PAIRED, Over INNER, typename T>
void pack_part(const T* in, int64_t ld, int64_t rows, int64_t cols, const Packed& packed, int64_t first, int64_t last) {
  constexpr bool down = INNER == Over::rows;
  Words tile[EDGE];
  for (int64_t d = first; d < last; ++d) {
    for (int64_t e = 0; e < 2 * packed.panels; ++e) {
      for (int64_t i = 0; i < EDGE; ++i) {
        tile[i] = down ? pairs(in, ld, rows, cols, d * DEPTH + 2 * i, e * EDGE)
                       : run(in, ld, rows, cols, e * EDGE + i, d * DEPTH);
      }
      if (PAIRED != down) turn(tile);
      std::memcpy(packed.tile(e / 2, d, e % 2), tile, sizeof(tile));
    }
  }
}

// The tiles of a matrix (rows, cols).
template <bool PAIRED, Over INNER, typename T>
Packed pack(const T* in, int64_t ld, int64_t rows, int64_t cols) {
  constexpr bool down = INNER == Over::rows;
  const Packed packed(down ? cols : rows, down ? rows : cols);
  at::parallel_for(0, packed.depths, 1 + 32 / packed.panels, [&](int64_t begin, int64_t end) {
    pack_part<PAIRED, INNER>(in, ld, rows, cols, packed, begin, end);
  });
  return packed;
}

}  // namespace nmt

#endif
