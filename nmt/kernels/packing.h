// Matrices laid out in the tiles of AMX: of rows for a left factor, of pairs of rows for a right one.

#pragma once

#include "deal.h"
#include "lanes.h"
#include "tiles.h"
#include "torch.h"

#include <algorithm>
#include <cstring>

#ifdef NMT_TILES

namespace nmt {

// Transposes a block of BLOCK x BLOCK sums.
inline void transpose_block(float* sums) {
  UIntVec square[EDGE];
  const auto read = [&](int64_t i, int64_t j) {
    for (int64_t r = 0; r < EDGE; ++r) square[r] = (UIntVec)load(sums + (i + r) * BLOCK + j);
    transpose(square);
  };
  const auto write = [&](int64_t i, int64_t j, const UIntVec* rows) {
    for (int64_t r = 0; r < EDGE; ++r) store(sums + (i + r) * BLOCK + j, (Vec)rows[r]);
  };
  read(0, EDGE);
  UIntVec upper[EDGE];
  std::copy(square, square + EDGE, upper);
  read(EDGE, 0);
  write(0, EDGE, square);
  write(EDGE, 0, upper);
  for (int64_t i = 0; i < BLOCK; i += EDGE) {
    read(i, i);
    write(i, i, square);
  }
}

// 16 numbers as bits of bfloat16; zeros beyond the first `count`.
inline HalfVec load_bfloat16(const float* p, int64_t count) { return to_bfloat16(load(p, count)); }

inline HalfVec load_bfloat16(const at::BFloat16* p, int64_t count) {
  return (HalfVec)_mm256_maskz_loadu_epi16(count >= LANES ? 0xffff : first_lanes(count), p);
}

// Elements c .. c + 15 of rows r and r + 1, the two of a column in one word; zeros beyond the matrix.
template <typename T>
inline UIntVec paired_rows(const T* in, int64_t ld, int64_t rows, int64_t cols, int64_t r, int64_t c) {
  if (r >= rows || c >= cols) return UIntVec{};
  const UIntVec upper = zero_extend(load_bfloat16(in + r * ld + c, cols - c));
  if (r + 1 >= rows) return upper;
  return upper | zero_extend(load_bfloat16(in + (r + 1) * ld + c, cols - c)) << 16;
}

// Elements c .. c + 31 of row r, two neighbours in one word; zeros beyond the matrix.
template <typename T>
inline UIntVec row_words(const T* in, int64_t ld, int64_t rows, int64_t cols, int64_t r, int64_t c) {
  HalfVec parts[2] = {};
  if (r < rows && c < cols) parts[0] = load_bfloat16(in + r * ld + c, cols - c);
  if (r < rows && c + LANES < cols) parts[1] = load_bfloat16(in + r * ld + c + LANES, cols - c - LANES);
  UIntVec words;
  std::memcpy(&words, parts, sizeof(words));
  return words;
}

// A matrix in tiles: panels of BLOCK rows (left factor) or columns (right factor). A panel is a sequence of depths, and
// a depth is two tiles.
class PackedMatrix {
 public:
  const int64_t panels, depths;

  // In memory of its own, in given memory of that size, or in the memory of another matrix that is at least as large.
  PackedMatrix(int64_t size, int64_t inner)
      : PackedMatrix(size, inner, at::empty({bytes(size, inner)}, at::kByte)) {}
  PackedMatrix(int64_t size, int64_t inner, const at::Tensor& memory)
      : panels(ceil_div(size, BLOCK)),
        depths(ceil_div(inner, DEPTH)),
        memory_(memory),
        tiles_(memory_.data_ptr<uint8_t>()) {}
  PackedMatrix(int64_t size, int64_t inner, const PackedMatrix& other)
      : panels(ceil_div(size, BLOCK)), depths(ceil_div(inner, DEPTH)), tiles_(other.tiles_) {}

  // The size of the memory.
  static int64_t bytes(int64_t size, int64_t inner) {
    return ceil_div(size, BLOCK) * ceil_div(inner, DEPTH) * 2 * TILE_BYTES;
  }

  // The upper or left tile for `half` 0, the other one for 1.
  uint8_t* tile(int64_t panel, int64_t depth, int64_t half) const {
    return tiles_ + ((panel * depths + depth) * 2 + half) * TILE_BYTES;
  }
  Panel panel(int64_t number, int64_t depth = 0) const {
    return {tile(number, depth, 0), tile(number, depth, 1), TILE_ROW, 2 * TILE_BYTES};
  }
  const at::Tensor& memory() const { return memory_; }

 private:
  at::Tensor memory_;
  uint8_t* tiles_;  // the data pointer of memory_, kept because asking the tensor for it takes longer
};

// Writes depths first .. last - 1 of all panels of a matrix (rows, cols) whose rows lie `ld` apart. Tiles of a right
// factor are PAIRED. The second tile of a panel that ends in the first is left as it is.
template <bool PAIRED, InnerAxis INNER, typename T>
void pack_part(const T* in, int64_t ld, int64_t rows, int64_t cols, const PackedMatrix& packed, int64_t first,
               int64_t last) {
  constexpr bool down = INNER == InnerAxis::rows;
  const int64_t edges = ceil_div(down ? cols : rows, EDGE);
  UIntVec tile[EDGE];
  for (int64_t d = first; d < last; ++d) {
    for (int64_t e = 0; e < std::min(edges, 2 * packed.panels); ++e) {
      for (int64_t i = 0; i < EDGE; ++i) {
        tile[i] = down ? paired_rows(in, ld, rows, cols, d * DEPTH + 2 * i, e * EDGE)
                       : row_words(in, ld, rows, cols, e * EDGE + i, d * DEPTH);
      }
      if (PAIRED != down) transpose(tile);
      std::memcpy(packed.tile(e / 2, d, e % 2), tile, sizeof(tile));
    }
  }
}

// Returns a matrix (rows, cols) in tiles, with zeros beyond it.
template <bool PAIRED, InnerAxis INNER, typename T>
PackedMatrix pack(const T* in, int64_t ld, int64_t rows, int64_t cols) {
  constexpr bool down = INNER == InnerAxis::rows;
  const PackedMatrix packed(down ? cols : rows, down ? rows : cols);
  if (packed.panels > 0 && packed.depths > 0) {
    std::memset(packed.tile(packed.panels - 1, 0, 0), 0, packed.depths * 2 * TILE_BYTES);
  }
  deal(packed.depths, 1 + 32 / (packed.panels + 1), [&](int64_t begin, int64_t end) {
    pack_part<PAIRED, INNER>(in, ld, rows, cols, packed, begin, end);
  });
  return packed;
}

}  // namespace nmt

#endif
