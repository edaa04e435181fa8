// The tiles of AMX, on which a processor multiplies matrices of bfloat16, summed up in float32, or of bytes, summed up
// in whole numbers.

#pragma once

#include <cstdint>

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__) && defined(__linux__)
#define NMT_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nmt {

// Returns whether the kernels are compiled for tiles and Linux lets this process use them. The first call requests the
// permission, so it must come before the first use of tiles.
inline bool has_tiles() {
#ifdef NMT_TILES
  constexpr long request_permission = 0x1023, tile_data = 18;  // of arch_prctl
  static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return granted;
#else
  return false;
#endif
}

// A tile has 16 rows of 64 bytes: 16 x 32 bfloat16, 16 x 64 bytes, or 16 x 16 sums. The right matrix of a product is
// kept in tiles of words: word [p][c] holds rows 2p and 2p + 1 of column c, or four rows of bytes. A block of sums is
// 2 x 2 tiles.
constexpr int64_t EDGE = 16, DEPTH = 32, BLOCK = 2 * EDGE;

#ifdef NMT_TILES

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Configures the tiles of this thread while it exists, then restores the configuration that it found.
class Tiles {
 public:
  Tiles() {
    static constexpr TileConfig wanted;  // static: compilers believe that the instruction reads only 8 bytes of it
    _tile_storeconfig(before_);
    _tile_loadconfig(&wanted);
  }
  ~Tiles() {
    asm volatile("" : "+m"(before_));
    _tile_loadconfig(before_);
  }

 private:
  alignas(64) uint8_t before_[64];
};

constexpr int64_t TILE_BYTES = 1024, TILE_ROW = 64;

// Two tiles of the left factor, one below the other, or of the right factor, side by side, and the distance to the next
// two along the inner axis. Both tiles are part of a packed matrix, or of the rows of a plain one.
struct Panel {
  const void *first, *second;
  int64_t row = TILE_ROW, next = TILE_BYTES;  // bytes from row to row of a tile, and from tile to tile

  Panel from(int64_t depth) const {
    return {(const char*)first + depth * next, (const char*)second + depth * next, row, next};
  }
};

// A block of BLOCK x BLOCK sums is held in tiles 0 to 3 while products are added to it.
inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_sums(const float* sums) {
  _tile_loadd(0, sums, BLOCK * 4);
  _tile_loadd(1, sums + EDGE, BLOCK * 4);
  _tile_loadd(2, sums + EDGE * BLOCK, BLOCK * 4);
  _tile_loadd(3, sums + EDGE * BLOCK + EDGE, BLOCK * 4);
}

// With ROWS = EDGE only the upper tiles are stored, with COLS = EDGE only the left ones.
template <int64_t ROWS = BLOCK, int64_t COLS = BLOCK>
inline void store_sums(float* sums, int64_t stride = BLOCK) {
  _tile_stored(0, sums, stride * 4);
  if (COLS > EDGE) _tile_stored(1, sums + EDGE, stride * 4);
  if (ROWS > EDGE) _tile_stored(2, sums + EDGE * stride, stride * 4);
  if (ROWS > EDGE && COLS > EDGE) _tile_stored(3, sums + EDGE * stride + EDGE, stride * 4);
}

// The numbers of two tiles that are multiplied: both bfloat16, or bytes without a sign and bytes with one.
enum class Factors { bfloat16, bytes };

// Adds the product of left (ROWS, inner) and right (inner, COLS) to the sums, for `depths` tiles along the inner axis.
// With ROWS = EDGE only the upper tiles are computed, with COLS = EDGE only the left ones.
template <int64_t ROWS = BLOCK, int64_t COLS = BLOCK, Factors FACTORS = Factors::bfloat16>
inline void add_products(const Panel& left, const Panel& right, int64_t depths) {
  constexpr bool lower = ROWS > EDGE, wide = COLS > EDGE;
  const char *left0 = (const char*)left.first, *left1 = (const char*)left.second;
  const char *right0 = (const char*)right.first, *right1 = (const char*)right.second;
  for (int64_t d = 0; d < depths; ++d) {
    _tile_loadd(4, left0 + d * left.next, left.row);
    _tile_loadd(6, right0 + d * right.next, right.row);
    if (lower) _tile_loadd(5, left1 + d * left.next, left.row);
    if (wide) _tile_loadd(7, right1 + d * right.next, right.row);
    if constexpr (FACTORS == Factors::bytes) {
      _tile_dpbusd(0, 4, 6);
      if (lower) _tile_dpbusd(2, 5, 6);
      if (wide) _tile_dpbusd(1, 4, 7);
      if (lower && wide) _tile_dpbusd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      if (lower) _tile_dpbf16ps(2, 5, 6);
      if (wide) _tile_dpbf16ps(1, 4, 7);
      if (lower && wide) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

#endif

}  // namespace nmt
