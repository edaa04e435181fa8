// From the scalar type of a tensor to the C++ type of its elements.

#pragma once

#include <ATen/ATen.h>

#include <type_traits>

namespace nmt {

// Calls f with a null pointer of the C++ type that `type` stands for.
template <typename F>
void dispatch(at::ScalarType type, const F& f) {
  if (type == at::kFloat) {
    f(static_cast<float*>(nullptr));
  } else {
    TORCH_CHECK(type == at::kBFloat16, "float32 or bfloat16, not ", type);
    f(static_cast<at::BFloat16*>(nullptr));
  }
}

template <typename P>
using Pointee = std::remove_pointer_t<P>;

}  // namespace nmt
