// The mask of dropout: a hash of (seed, index) decides whether an element is kept, so no mask is ever stored.

#pragma once

#include "lanes.h"
#include "torch.h"

#include <algorithm>
#include <cstdint>

namespace nmt {

struct Dropout {
  uint32_t low, high, threshold;
  float scale;

  Dropout(double rate, int64_t seed)
      : low(uint32_t(seed)),
        high(uint32_t(uint64_t(seed) >> 32)),
        threshold(uint32_t(std::min(rate * 4294967296.0, 4294967295.0))),
        scale(float(1.0 / (1.0 - rate))) {
    TORCH_CHECK(rate >= 0.0 && rate < 1.0, "rate must be in [0, 1), but is ", rate);
  }

  // The factors of LANES elements from index `first` on: 0 where an element is dropped, else 1 / (1 - rate).
  inline Vec factors(uint32_t first) const {
    UIntVec h = ((UIntVec)LANE + first) * 0x9e3779b9u + low;
    h ^= h >> 16;
    h *= 0x21f0aaadu;
    h ^= (h >> 15) ^ high;
    h *= 0xd35a2d97u;
    h ^= h >> 15;
    return h >= threshold ? broadcast(scale) : Vec{};
  }
};

// The gradient of dropout(relu(x)) with respect to x, given its result: where that is above 0, x was neither cut off nor
// dropped. Elsewhere 0 times the gradient, as for dropout in plain torch: a gradient that is not finite gives NaN.
struct ReluDropoutGradient {
  float scale;

  explicit ReluDropoutGradient(double rate) : scale(Dropout(rate, 0).scale) {}

  inline Vec operator()(Vec grad, Vec out) const { return grad * (out > 0.0f ? broadcast(scale) : Vec{}); }
};

}  // namespace nmt
