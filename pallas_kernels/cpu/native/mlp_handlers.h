// The border to XLA of two masked layers with a GELU between them.
#pragma once

#include "checks.h"
#include "turned_mlp.h"

namespace sparsemlp {
namespace {

// Checks one layer of an MLP; its bias is empty for none.
ffi::Error check_mlp_layer(const char* name, const ffi::AnyBuffer& kernel,
                           const ffi::AnyBuffer& bias, const ffi::AnyBuffer& ids, int64_t rows,
                           int64_t cols, ffi::DataType type, Call* call) {
  const auto shape = kernel.dimensions();
  if (shape.size() != 2) {
    return wrong(std::string(name) + " kernel of shape " + shape_of(kernel) + " is not [in, out]");
  }
  if (bias.element_count() > 0 &&
      (bias.dimensions().size() != 1 || bias.dimensions()[0] != shape[1])) {
    return wrong(std::string(name) + " bias of shape " + shape_of(bias) + " does not fit");
  }
  if (kernel.element_type() != type || bias.element_type() != type) {
    return wrong(std::string(name) + " layer and x must have one dtype");
  }
  return check_layer(shape[0], shape[1], ids, rows, cols, -1, call);
}

// Checks an MLP and its operands x and, in the backward pass, dy; y is y or dx.
ffi::Error check_mlp(const ffi::AnyBuffer& x, const ffi::AnyBuffer& dy, const ffi::AnyBuffer& w1,
                     const ffi::AnyBuffer& b1, const ffi::AnyBuffer& ids1,
                     const ffi::AnyBuffer& w2, const ffi::AnyBuffer& b2,
                     const ffi::AnyBuffer& ids2, int64_t rows1, int64_t cols1, int64_t rows2,
                     int64_t cols2, bool residual, Call* first, Call* second) {
  const auto type = x.element_type();
  if (auto e = check_mlp_layer("first", w1, b1, ids1, rows1, cols1, type, first); e.failure()) {
    return e;
  }
  if (auto e = check_mlp_layer("second", w2, b2, ids2, rows2, cols2, type, second); e.failure()) {
    return e;
  }
  const Grid &g1 = first->kept.grid, &g2 = second->kept.grid;
  if (g1.out != g2.in) return wrong("the second kernel does not take what the first gives");
  if (residual && g1.in != g2.out) return wrong("x cannot be added to y of another width");
  if (auto e = check_operand("y", dy, g2.out, -1, second); e.failure()) return e;
  if (auto e = check_operand("x", x, g1.in, -1, first); e.failure()) return e;
  if (!same_shape(x, dy, 1) || dy.element_type() != type) {
    return wrong("x of shape " + shape_of(x) + " does not fit y of shape " + shape_of(dy));
  }
  return ffi::Error::Success();
}

template <typename T>
Mlp<T> mlp_of(const Call& first, const Call& second, const ffi::AnyBuffer& w1,
              const ffi::AnyBuffer& b1, const ffi::AnyBuffer& w2, const ffi::AnyBuffer& b2,
              bool residual, bool straight_through = false) {
  return {first.kept, second.kept,
          data<T>(w1), b1.element_count() ? data<T>(b1) : nullptr,
          data<T>(w2), b2.element_count() ? data<T>(b2) : nullptr,
          residual,    straight_through};
}

// y = gelu(x (W1 * M1) + b1) (W2 * M2) + b2 (+ x).
ffi::Error mlp(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer w1, ffi::AnyBuffer b1,
               ffi::AnyBuffer ids1, ffi::AnyBuffer w2, ffi::AnyBuffer b2, ffi::AnyBuffer ids2,
               ffi::Result<ffi::AnyBuffer> y, int64_t rows1, int64_t cols1, int64_t rows2,
               int64_t cols2, bool residual) {
  Call first, second;
  if (auto error = check_mlp(x, *y, w1, b1, ids1, w2, b2, ids2, rows1, cols1, rows2, cols2,
                             residual, &first, &second);
      error.failure()) {
    return error;
  }
  return with_type(x.element_type(), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    run_mlp(pool_of(threads), mlp_of<T>(first, second, w1, b1, w2, b2, residual), data<T>(x),
            first.n, data<T>(*y));
  });
}

// The gradients of mlp: dx, and those of both layers; of whole kernels if `straight_through`.
ffi::Error mlp_gradient(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                        ffi::AnyBuffer w1, ffi::AnyBuffer b1, ffi::AnyBuffer ids1,
                        ffi::AnyBuffer w2, ffi::AnyBuffer b2, ffi::AnyBuffer ids2,
                        ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> dw1,
                        ffi::Result<ffi::AnyBuffer> db1, ffi::Result<ffi::AnyBuffer> dw2,
                        ffi::Result<ffi::AnyBuffer> db2, int64_t rows1, int64_t cols1,
                        int64_t rows2, int64_t cols2, bool residual, bool straight_through) {
  Call first, second;
  if (auto error = check_mlp(x, dy, w1, b1, ids1, w2, b2, ids2, rows1, cols1, rows2, cols2,
                             residual, &first, &second);
      error.failure()) {
    return error;
  }
  if (!alike(*dx, x) || !alike(*dw1, w1) || !alike(*db1, b1) || !alike(*dw2, w2) ||
      !alike(*db2, b2)) {
    return wrong("gradients must have the shapes and the dtype of what they belong to");
  }
  return with_type(x.element_type(), [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    run_mlp_gradients(pool_of(threads),
                      mlp_of<T>(first, second, w1, b1, w2, b2, residual, straight_through),
                      data<T>(x), data<T>(dy), first.n,
                      MlpGradients<T>{data<T>(*dx), data<T>(*dw1), data<T>(*db1),
                                      data<T>(*dw2), data<T>(*db2)});
  });
}

}  // namespace
}  // namespace sparsemlp

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_mlp, sparsemlp::mlp,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // w1
                                  .Arg<xla::ffi::AnyBuffer>()  // b1, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids1
                                  .Arg<xla::ffi::AnyBuffer>()  // w2
                                  .Arg<xla::ffi::AnyBuffer>()  // b2, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids2
                                  .Ret<xla::ffi::AnyBuffer>()  // y
                                  .Attr<int64_t>("rows1")
                                  .Attr<int64_t>("cols1")
                                  .Attr<int64_t>("rows2")
                                  .Attr<int64_t>("cols2")
                                  .Attr<bool>("residual"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_mlp_gradient, sparsemlp::mlp_gradient,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // w1
                                  .Arg<xla::ffi::AnyBuffer>()  // b1, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids1
                                  .Arg<xla::ffi::AnyBuffer>()  // w2
                                  .Arg<xla::ffi::AnyBuffer>()  // b2, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids2
                                  .Ret<xla::ffi::AnyBuffer>()  // dx
                                  .Ret<xla::ffi::AnyBuffer>()  // dw1
                                  .Ret<xla::ffi::AnyBuffer>()  // db1, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // dw2
                                  .Ret<xla::ffi::AnyBuffer>()  // db2, or empty
                                  .Attr<int64_t>("rows1")
                                  .Attr<int64_t>("cols1")
                                  .Attr<int64_t>("rows2")
                                  .Attr<int64_t>("cols2")
                                  .Attr<bool>("residual")
                                  .Attr<bool>("straight_through"));
