// The arguments of a kernel, checked before any of their memory is read or written. An error names the argument, what it
// must be and what it is.

#pragma once

#include "torch.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>

namespace nmt {

constexpr int64_t MAX_SIZE = 1 << 30;  // of an axis, so that no product of two sizes overflows

// How the numbers of a tensor lie in memory: without gaps, only the last axis without gaps, or anyhow.
enum class Layout { dense, dense_rows, any };

inline std::string in_words(at::IntArrayRef shape) {
  std::ostringstream words;
  for (const int64_t size : shape) words << (words.tellp() > 0 ? ", " : "") << size;
  return "(" + words.str() + ")";
}

// The sizes of x, which must have N axes of at most MAX_SIZE.
template <size_t N>
std::array<int64_t, N> sizes_of(const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.defined() && x.dim() == N, name, " must have ", N, " axes, but its shape is ",
              in_words(x.defined() ? x.sizes() : at::IntArrayRef()));
  std::array<int64_t, N> sizes;
  std::copy_n(x.sizes().begin(), N, sizes.begin());
  for (const int64_t size : sizes) {
    TORCH_CHECK(size <= MAX_SIZE, name, " must have at most ", MAX_SIZE, " numbers along an axis, but its shape is ",
                in_words(x.sizes()));
  }
  return sizes;
}

// Checks that x is a tensor on CPU of this type and shape, laid out as the kernel reads it.
inline void check_tensor(const char* name, const at::Tensor& x, at::ScalarType type, at::IntArrayRef shape,
                         Layout layout) {
  TORCH_CHECK(x.defined() && x.layout() == at::kStrided && x.device().is_cpu() && !x.is_neg() && !x._is_zerotensor(),
              name, " must be a plain tensor on cpu, without a pending negation, but is ", x.toString());
  TORCH_CHECK(x.scalar_type() == type, name, " must be ", type, ", but is ", x.scalar_type());
  TORCH_CHECK(x.sizes() == shape, name, " must have shape ", in_words(shape), ", but has ", in_words(x.sizes()));
  TORCH_CHECK(layout != Layout::dense || x.is_contiguous(), name, " must be contiguous, but its shape is ",
              in_words(shape), " and its strides are ", in_words(x.strides()));
  TORCH_CHECK(layout != Layout::dense_rows || x.size(-1) <= 1 || x.stride(-1) == 1, name,
              " must have a contiguous last axis, but its shape is ", in_words(shape), " and its strides are ",
              in_words(x.strides()));
}

// Checks that the numbers of T at `data` lie where a processor may read them.
template <typename T>
T* aligned(const char* name, T* data) {
  TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % alignof(T) == 0, name, " must lie at a multiple of ", alignof(T),
              " bytes, but is at ", static_cast<const void*>(data));
  return data;
}

// The data of x, checked to be numbers of T in this shape.
template <typename T>
const T* data_of(const char* name, const at::Tensor& x, at::IntArrayRef shape, Layout layout = Layout::dense) {
  check_tensor(name, x, c10::CppTypeToScalarType<T>::value, shape, layout);
  return aligned(name, x.const_data_ptr<T>());
}

// The same; null if there is no tensor.
template <typename T>
const T* data_of(const char* name, const std::optional<at::Tensor>& x, at::IntArrayRef shape) {
  return x ? data_of<T>(name, *x, shape) : nullptr;
}

// The same for numbers that the kernel overwrites.
template <typename T>
T* mutable_data_of(const char* name, const at::Tensor& x, at::IntArrayRef shape) {
  check_tensor(name, x, c10::CppTypeToScalarType<T>::value, shape, Layout::dense);
  return aligned(name, x.data_ptr<T>());
}

// Checks that the `count` ids are numbers from 0 to size - 1; the i-th one lies at ids[i * step].
template <typename T>
void check_ids(const char* name, const T* ids, int64_t count, int64_t size, int64_t step = 1) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = ids[i * step];
    TORCH_CHECK_INDEX(id >= 0 && id < size, name, " must be ids from 0 to ", size - 1, ", but number ", i, " is ", id);
  }
}

// Calls f with a null pointer of the C++ type that `type` stands for, the type of argument `name`.
template <typename F>
void dispatch(const char* name, at::ScalarType type, const F& f) {
  if (type == at::kFloat) {
    f(static_cast<float*>(nullptr));
  } else {
    TORCH_CHECK(type == at::kBFloat16, name, " must be Float or BFloat16, but is ", type);
    f(static_cast<at::BFloat16*>(nullptr));
  }
}

template <typename P>
using Pointee = std::remove_pointer_t<P>;

}  // namespace nmt
