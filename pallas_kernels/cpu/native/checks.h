// What arrives from XLA, checked: a wrong shape, dtype or id is an error, never a wild read.
#pragma once

#include <string>

#include "xla/ffi/api/ffi.h"

#include "blocks.h"

namespace sparsemlp {

namespace ffi = xla::ffi;

inline ffi::Error wrong(const std::string& what) {
  return ffi::Error::InvalidArgument("sparsemlp engine 'cpu': " + what);
}

inline std::string shape_of(const ffi::AnyBuffer& buffer) {
  std::string text = "[";
  for (int64_t size : buffer.dimensions()) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

// A layer and the rows or samples that reach it.
struct Call {
  Kept kept;
  int64_t n = 1;         // rows, or samples along the token axis
  int64_t channels = 0;  // 0 along the feature axis
};

// Checks an operand [..., features] or [..., features, channels] and counts what is before.
inline ffi::Error check_operand(const char* name, const ffi::AnyBuffer& buffer, int64_t features,
                                int64_t axis, Call* call) {
  const auto dims = buffer.dimensions();
  const size_t inner = axis == -2 ? 2 : 1;
  if (dims.size() < inner || dims[dims.size() - inner] != features) {
    return wrong(std::string(name) + " of shape " + shape_of(buffer) + " has not " +
                 std::to_string(features) + " entries on axis " + std::to_string(axis));
  }
  call->n = 1;
  for (size_t i = 0; i + inner < dims.size(); ++i) call->n *= dims[i];
  call->channels = axis == -2 ? dims.back() : 0;
  return ffi::Error::Success();
}

inline ffi::Error check_layer(int64_t in, int64_t out, const ffi::AnyBuffer& ids, int64_t rows,
                       int64_t cols, int64_t axis, Call* call) {
  if (axis != -1 && axis != -2) return wrong("axis " + std::to_string(axis) + " is not -1 or -2");
  if (rows < 1 || cols < 1 || in % cols != 0 || out % rows != 0) {
    return wrong("block " + std::to_string(rows) + "x" + std::to_string(cols) +
                 " does not divide the kernel [in, out] = [" + std::to_string(in) + ", " +
                 std::to_string(out) + "]");
  }
  if (ids.element_type() != ffi::S32 || ids.dimensions().size() != 1) {
    return wrong("the ids of kept blocks must be int32 of rank 1");
  }
  call->kept = {{in, out, rows, cols}, ids.typed_data<int32_t>(), ids.dimensions()[0]};
  if (!valid(call->kept)) {
    return wrong("the ids of kept blocks do not ascend within [0, " +
                 std::to_string((in / cols) * (out / rows)) + ")");
  }
  return ffi::Error::Success();
}

inline bool same_shape(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b, size_t changed_from_end) {
  const auto x = a.dimensions(), y = b.dimensions();
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i + changed_from_end != x.size() && x[i] != y[i]) return false;
  }
  return true;
}

inline bool alike(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b) {
  return a.element_type() == b.element_type() && same_shape(a, b, 0);
}

inline Pool pool_of(ffi::ThreadPool& threads) {
  return {threads.num_threads(),
          [&threads](std::function<void()> task) { threads.Schedule(std::move(task)); }};
}

// Calls body with a null pointer of the buffers' element type.
template <typename Body>
ffi::Error with_type(ffi::DataType type, const Body& body) {
  if (type == ffi::F32) {
    body(static_cast<float*>(nullptr));
  } else if (type == ffi::BF16) {
    body(static_cast<BFloat16*>(nullptr));
  } else {
    return wrong("only float32 and bfloat16 are supported");
  }
  return ffi::Error::Success();
}

template <typename T>
T* data(const ffi::AnyBuffer& buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

}  // namespace sparsemlp
