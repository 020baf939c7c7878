// The border to XLA of what the rules for activations and gradients need.
#pragma once

#include "checks.h"
#include "compact.h"
#include "largest_blocks.h"
#include "neighbours.h"
#include "pruned.h"

namespace sparsemlp {
namespace {

// The k blocks of x with the largest norm, values [k, height, width], and their ids. Rows of blocks
// run over those of x [..., in], or along the token axis over the channels of x [..., in, channels].
ffi::Error largest_blocks(ffi::ThreadPool threads, ffi::AnyBuffer x,
                          ffi::Result<ffi::AnyBuffer> values, ffi::Result<ffi::AnyBuffer> ids,
                          int64_t axis) {
  const auto shape = x.dimensions(), blocks = values->dimensions();
  if (axis != -1 && axis != -2) return wrong("axis " + std::to_string(axis) + " is not -1 or -2");
  if (shape.size() < static_cast<size_t>(-axis)) {
    return wrong("x of shape " + shape_of(x) + " has no axis " + std::to_string(axis));
  }
  const int64_t in = shape[shape.size() + axis];
  Call call;
  if (auto error = check_operand("x", x, in, axis, &call); error.failure()) return error;
  const int64_t n = call.n * (axis == -2 ? call.channels : 1);
  if (blocks.size() != 3 || blocks[1] < 1 || blocks[2] < 1 || n % blocks[1] != 0 ||
      in % blocks[2] != 0) {
    return wrong("blocks of shape " + shape_of(*values) + " do not divide the activation [" +
                 std::to_string(n) + ", " + std::to_string(in) + "]");
  }
  const BlockGrid grid{n, in, blocks[1], blocks[2]};
  if (ids->element_type() != ffi::S32 || ids->dimensions().size() != 1 ||
      ids->dimensions()[0] != blocks[0] || blocks[0] > grid.count()) {
    return wrong("the ids of kept blocks must be int32, one for each of at most " +
                 std::to_string(grid.count()));
  }
  if (values->element_type() != x.element_type()) return wrong("x and blocks must have one dtype");
  return with_type(x.element_type(), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const auto run_on = [&](const auto& where) {
      take_largest(pool_of(threads), grid, where, blocks[0], ids->template typed_data<int32_t>(),
                   data<T>(*values));
    };
    if (axis == -1) {
      run_on(FeatureBlocks<T>{data<T>(x)});
    } else {
      run_on(TokenBlocks<T>{data<T>(x), call.channels});
    }
  });
}

// dw = X'^T dy, X' [n, in] zero but for its kept blocks, values [k, height, width]. Rows of X' are
// those of dy [..., out], or along the token axis the channels of dy [..., out, channels].
ffi::Error compact(ffi::ThreadPool threads, ffi::AnyBuffer values, ffi::AnyBuffer ids,
                   ffi::AnyBuffer dy, ffi::Result<ffi::AnyBuffer> dw, int64_t axis) {
  const auto shape = dw->dimensions(), blocks = values.dimensions();
  if (shape.size() != 2) return wrong("dW of shape " + shape_of(*dw) + " is not [in, out]");
  if (axis != -1 && axis != -2) return wrong("axis " + std::to_string(axis) + " is not -1 or -2");
  Call call;
  if (auto error = check_operand("dy", dy, shape[1], axis, &call); error.failure()) return error;
  const int64_t n = call.n * (axis == -2 ? call.channels : 1);
  if (blocks.size() != 3 || blocks[1] < 1 || blocks[2] < 1 || n % blocks[1] != 0 ||
      shape[0] % blocks[2] != 0) {
    return wrong("blocks of shape " + shape_of(values) + " do not divide the activation [" +
                 std::to_string(n) + ", " + std::to_string(shape[0]) + "]");
  }
  if (ids.element_type() != ffi::S32 || ids.dimensions().size() != 1 ||
      ids.dimensions()[0] != blocks[0]) {
    return wrong("the ids of kept blocks must be int32, one for each");
  }
  const Compact kept{n, shape[0], blocks[1], blocks[2], ids.typed_data<int32_t>(), blocks[0]};
  if (!valid(kept)) return wrong("the ids of kept blocks do not ascend within the activation");
  const auto type = values.element_type();
  if (dy.element_type() != type || dw->element_type() != type) {
    return wrong("values, dy and dW must have one dtype");
  }
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const auto run_on = [&](const auto& strips) {
      compact_gradient(pool_of(threads), kept, data<T>(values), strips, shape[1], data<T>(*dw));
    };
    if (axis == -1) {
      run_on(FeatureStrips<T>{data<T>(dy), shape[1]});
    } else {
      run_on(TokenStrips<T>{data<T>(dy), shape[1], call.channels});
    }
  });
}

// dx = dY' W^T, dY' the n largest of every m neighbours of dy; with positions > 0, rows of a sample,
// rescaled by what was lost of each sample and column.
ffi::Error pruned(ffi::ThreadPool threads, ffi::AnyBuffer dy, ffi::AnyBuffer kernel,
                  ffi::Result<ffi::AnyBuffer> dx, int64_t n, int64_t m, int64_t positions) {
  const auto shape = kernel.dimensions();
  if (shape.size() != 2) return wrong("kernel of shape " + shape_of(kernel) + " is not [in, out]");
  Call call;
  if (auto error = check_operand("dx", *dx, shape[0], -1, &call); error.failure()) return error;
  if (auto error = check_operand("dy", dy, shape[1], -1, &call); error.failure()) return error;
  if (!same_shape(dy, *dx, 1)) {
    return wrong("dy of shape " + shape_of(dy) + " does not fit dx of shape " + shape_of(*dx));
  }
  if (n < 1 || n > std::min(m, Neighbours::kMost) || shape[1] % m != 0) {
    return wrong("the " + std::to_string(n) + " largest of " + std::to_string(m) +
                 " neighbours cannot be taken of " + std::to_string(shape[1]) + " outputs");
  }
  if (positions < 0 || (positions > 0 && call.n % positions != 0)) {
    return wrong(std::to_string(call.n) + " rows are no samples of " + std::to_string(positions));
  }
  const auto type = dy.element_type();
  if (kernel.element_type() != type || dx->element_type() != type) {
    return wrong("dy, kernel and dx must have one dtype");
  }
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    multiply_largest(pool_of(threads), data<T>(dy), call.n, data<T>(kernel), shape[0], shape[1],
                     Neighbours{n, m}, positions, data<T>(*dx));
  });
}

// The n largest of every m neighbours of dy along an axis, zeros between; with positions > 0
// rescaled, along the features over so many rows of a sample.
ffi::Error keep_largest(ffi::ThreadPool threads, ffi::AnyBuffer dy,
                        ffi::Result<ffi::AnyBuffer> pruned, int64_t n, int64_t m, int64_t axis,
                        int64_t positions) {
  const auto shape = dy.dimensions();
  if (axis != -1 && axis != -2) return wrong("axis " + std::to_string(axis) + " is not -1 or -2");
  if (shape.size() < static_cast<size_t>(-axis)) {
    return wrong("dy of shape " + shape_of(dy) + " has no axis " + std::to_string(axis));
  }
  const int64_t out = shape[shape.size() + axis];
  Call call;
  if (auto error = check_operand("dy", dy, out, axis, &call); error.failure()) return error;
  if (!alike(dy, *pruned)) return wrong("dy and what is kept of it must be alike");
  if (n < 1 || n > m || m > kMostNeighbours || out % m != 0) {
    return wrong("the " + std::to_string(n) + " largest of " + std::to_string(m) +
                 " neighbours cannot be taken of " + std::to_string(out));
  }
  if (positions < 0 || (axis == -1 && positions > 0 && call.n % positions != 0)) {
    return wrong(std::to_string(call.n) + " rows are no samples of " + std::to_string(positions));
  }
  return with_type(dy.element_type(), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const Neighbours kept{n, m};
    if (axis == -1) {
      keep_features(pool_of(threads), data<T>(dy), call.n, out, kept, positions, data<T>(*pruned));
    } else {
      keep_tokens(pool_of(threads), data<T>(dy), call.n, out, call.channels, kept, positions > 0,
                  data<T>(*pruned));
    }
  });
}

}  // namespace
}  // namespace sparsemlp

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_largest_blocks, sparsemlp::largest_blocks,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Ret<xla::ffi::AnyBuffer>()  // values
                                  .Ret<xla::ffi::AnyBuffer>()  // ids
                                  .Attr<int64_t>("axis"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_compact, sparsemlp::compact,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // values
                                  .Arg<xla::ffi::AnyBuffer>()  // ids
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>()  // dw
                                  .Attr<int64_t>("axis"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_pruned, sparsemlp::pruned,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // kernel
                                  .Ret<xla::ffi::AnyBuffer>()  // dx
                                  .Attr<int64_t>("n")
                                  .Attr<int64_t>("m")
                                  .Attr<int64_t>("positions"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_keep_largest, sparsemlp::keep_largest,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Ret<xla::ffi::AnyBuffer>()  // pruned
                                  .Attr<int64_t>("n")
                                  .Attr<int64_t>("m")
                                  .Attr<int64_t>("axis")
                                  .Attr<int64_t>("positions"));
