// The layout of 8-bit weights that search multiplies with; int8.h has the product.

#include "int8.h"
#include "torch.h"

#include <cstdlib>

namespace {

using namespace nmt;
using at::Tensor;

// The largest magnitude of a weight; 0 where there is no product.
int64_t most_int8_weight() {
#ifdef NMT_INT8
  return MOST_WEIGHT;
#else
  return 0;
#endif
}

#ifdef NMT_INT8

// One tensor of bytes with all that a product needs of weight (O, I) int8, whose rows have these scales (O).
Tensor pack_int8(const Tensor& weight, const Tensor& scales) {
  const auto [outputs, inputs] = sizes_of<2>("weight", weight);
  const Int8Matrix matrix(outputs, inputs);
  const int8_t* w = data_of<int8_t>("weight", weight, {outputs, inputs});
  const float* scale = data_of<float>("scales", scales, {outputs});
  Tensor packed = at::zeros({matrix.bytes()}, weight.options());
  int8_t* const bytes = packed.data_ptr<int8_t>();
  int32_t* const shifts = reinterpret_cast<int32_t*>(bytes + matrix.shifts_at());
  constexpr int64_t PANEL = Int8Matrix::PANEL, WORD = Int8Matrix::WORD;
  for (int64_t o = 0; o < outputs; ++o) {
    int8_t* const panel = bytes + o / PANEL * PANEL * matrix.depth + o % PANEL * WORD;
    for (int64_t i = 0; i < inputs; ++i) {
      const int8_t value = w[o * inputs + i];
      TORCH_CHECK(std::abs(value) <= MOST_WEIGHT, "weight must be from ", -MOST_WEIGHT, " to ", MOST_WEIGHT,
                  ", but has ", int32_t(value));
      panel[i / WORD * PANEL * WORD + i % WORD] = value;
      shifts[o] += SHIFT * value;
    }
  }
  std::copy(scale, scale + outputs, reinterpret_cast<float*>(bytes + matrix.scales_at()));
  return packed;
}

#endif

}  // namespace

TORCH_LIBRARY_FRAGMENT(nmt, m) {
  m.def("most_int8_weight() -> int", &most_int8_weight);
#ifdef NMT_INT8
  m.def("pack_int8(Tensor weight, Tensor scales) -> Tensor", &pack_int8);
#endif
}
