// The kernels as XLA custom calls, on XLA's thread pool.
#include "checks.h"
#include "convolution_handlers.h"
#include "dot_gradient.h"
#include "mlp_handlers.h"
#include "peak.h"
#include "product.h"
#include "pruned_mlp_handlers.h"
#include "rule_handlers.h"

namespace sparsemlp {
namespace {

// y = x (W * M) + b, or, transposed, dx = dy (W * M)^T.
ffi::Error multiply(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                    ffi::AnyBuffer bias, ffi::AnyBuffer ids, ffi::Result<ffi::AnyBuffer> y,
                    int64_t rows, int64_t cols, int64_t axis, bool transposed) {
  const auto shape = kernel.dimensions();
  if (shape.size() != 2) return wrong("kernel of shape " + shape_of(kernel) + " is not [in, out]");
  Call call;
  if (auto error = check_layer(shape[0], shape[1], ids, rows, cols, axis, &call); error.failure()) {
    return error;
  }
  const int64_t n_in = shape[transposed ? 1 : 0], n_out = shape[transposed ? 0 : 1];
  if (auto error = check_operand("y", *y, n_out, axis, &call); error.failure()) return error;
  if (auto error = check_operand("x", x, n_in, axis, &call); error.failure()) return error;
  if (!same_shape(x, *y, static_cast<size_t>(-axis))) {
    return wrong("x of shape " + shape_of(x) + " does not fit y of shape " + shape_of(*y));
  }
  const bool has_bias = bias.element_count() > 0;
  if (has_bias && (transposed || bias.dimensions().size() != 1 || bias.dimensions()[0] != n_out)) {
    return wrong("bias of shape " + shape_of(bias) + " does not fit");
  }
  const auto type = x.element_type();
  if (kernel.element_type() != type || y->element_type() != type || bias.element_type() != type) {
    return wrong("x, kernel, bias and y must have one dtype");
  }
  const Pool pool = pool_of(threads);
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const T* b = has_bias ? data<T>(bias) : nullptr;
    if (axis == -1) {
      multiply_features(pool, data<T>(x), call.n, data<T>(kernel), b, call.kept, transposed,
                        data<T>(*y));
    } else {
      multiply_tokens(pool, data<T>(x), call.n, call.channels, data<T>(kernel), b, call.kept,
                      transposed, data<T>(*y));
    }
  });
}

// dw = (x^T dy) * M; db = the sums of dy, unless db is empty.
ffi::Error gradient(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                    ffi::AnyBuffer ids, ffi::Result<ffi::AnyBuffer> dw,
                    ffi::Result<ffi::AnyBuffer> db, int64_t rows, int64_t cols, int64_t axis) {
  const auto shape = dw->dimensions();
  if (shape.size() != 2) return wrong("dW of shape " + shape_of(*dw) + " is not [in, out]");
  Call call;
  if (auto error = check_layer(shape[0], shape[1], ids, rows, cols, axis, &call); error.failure()) {
    return error;
  }
  if (auto error = check_operand("dy", dy, shape[1], axis, &call); error.failure()) return error;
  if (auto error = check_operand("x", x, shape[0], axis, &call); error.failure()) return error;
  if (!same_shape(x, dy, static_cast<size_t>(-axis))) {
    return wrong("x of shape " + shape_of(x) + " does not fit dy of shape " + shape_of(dy));
  }
  const bool has_db = db->element_count() > 0;
  if (has_db && (db->dimensions().size() != 1 || db->dimensions()[0] != shape[1])) {
    return wrong("db of shape " + shape_of(*db) + " does not fit");
  }
  const auto type = x.element_type();
  if (dy.element_type() != type || dw->element_type() != type || db->element_type() != type) {
    return wrong("x, dy, dW and db must have one dtype");
  }
  const Pool pool = pool_of(threads);
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    T* sums = has_db ? data<T>(*db) : nullptr;
    if (axis == -1) {
      feature_gradient(pool, data<T>(x), data<T>(dy), call.n, call.kept, data<T>(*dw), sums);
    } else {
      token_gradient(pool, data<T>(x), data<T>(dy), call.n, call.channels, call.kept,
                     data<T>(*dw), sums);
    }
  });
}

}  // namespace
}  // namespace sparsemlp

extern "C" double sparsemlp_peak_flops(int n_threads) { return sparsemlp::peak_flops(n_threads); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_multiply, sparsemlp::multiply,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // kernel
                                  .Arg<xla::ffi::AnyBuffer>()  // bias, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids
                                  .Ret<xla::ffi::AnyBuffer>()  // y
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("cols")
                                  .Attr<int64_t>("axis")
                                  .Attr<bool>("transposed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_gradient, sparsemlp::gradient,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // ids
                                  .Ret<xla::ffi::AnyBuffer>()  // dw
                                  .Ret<xla::ffi::AnyBuffer>()  // db, or empty
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("cols")
                                  .Attr<int64_t>("axis"));
