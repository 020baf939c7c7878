// The border to XLA of convolutions.
#pragma once

#include "checks.h"
#include "convolution.h"

namespace sparsemlp {
namespace {

// A convolution, the kept blocks of its kernel, and how many images reach it.
struct ConvolutionCall {
  Convolution convolution;
  Call layer;
  int64_t batch = 1;
};

// The block of a kernel, and how it walks over the images.
struct Walk {
  int64_t rows, cols, stride_down, stride_across, above, left;
};

// Checks images [..., height, width, channels] against a kernel of shape `kernel` [down, across,
// channels, out] and outputs [..., new_height, new_width, out].
ffi::Error check_convolution(const ffi::AnyBuffer& x, ffi::AnyBuffer::Dimensions kernel,
                             const ffi::AnyBuffer& y, const ffi::AnyBuffer& ids,
                             const Walk& walk, ConvolutionCall* call) {
  const auto images = x.dimensions(), outputs = y.dimensions();
  if (kernel.size() != 4) return wrong("the kernel is not [down, across, channels, out]");
  if (images.size() < 3 || images.back() != kernel[2]) {
    return wrong("x of shape " + shape_of(x) + " is no images of " + std::to_string(kernel[2]) +
                 " channels");
  }
  if (outputs.size() != images.size() || outputs.back() != kernel[3]) {
    return wrong("y of shape " + shape_of(y) + " is no images of " + std::to_string(kernel[3]) +
                 " channels, as many as x of shape " + shape_of(x));
  }
  for (size_t i = 0; i + 3 < images.size(); ++i) {
    if (images[i] != outputs[i]) {
      return wrong("x of shape " + shape_of(x) + " does not fit y of shape " + shape_of(y));
    }
    call->batch *= images[i];
  }
  constexpr int64_t kMost = INT32_MAX;
  if (walk.stride_down < 1 || walk.stride_across < 1 || walk.above < 0 || walk.left < 0 ||
      std::max({walk.stride_down, walk.stride_across, walk.above, walk.left}) > kMost) {
    return wrong("strides must be positive, and padding not negative, and both less than 2^31");
  }
  const auto* const from = images.end() - 3;
  const auto* const to = outputs.end() - 3;
  call->convolution = {from[0],          from[1],            from[2],    to[0],
                       to[1],            kernel[0],          kernel[1],  walk.stride_down,
                       walk.stride_across, walk.above,       walk.left};
  const int64_t n_in = call->convolution.n_in();
  return check_layer(n_in, kernel[3], ids, walk.rows, walk.cols, -1, &call->layer);
}

// y = x * (W * M) + b.
ffi::Error convolution(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer kernel,
                       ffi::AnyBuffer bias, ffi::AnyBuffer ids, ffi::Result<ffi::AnyBuffer> y,
                       int64_t rows, int64_t cols, int64_t stride_down,
                       int64_t stride_across, int64_t above, int64_t left) {
  ConvolutionCall call;
  const Walk walk{rows, cols, stride_down, stride_across, above, left};
  if (auto e = check_convolution(x, kernel.dimensions(), *y, ids, walk, &call); e.failure()) return e;
  const bool has_bias = bias.element_count() > 0;
  if (has_bias && (bias.dimensions().size() != 1 || bias.dimensions()[0] != y->dimensions().back())) {
    return wrong("bias of shape " + shape_of(bias) + " does not fit");
  }
  const auto type = x.element_type();
  if (kernel.element_type() != type || y->element_type() != type || bias.element_type() != type) {
    return wrong("x, kernel, bias and y must have one dtype");
  }
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    convolve(pool_of(threads), call.convolution, data<T>(x), call.batch, data<T>(kernel),
             has_bias ? data<T>(bias) : nullptr, call.layer.kept, data<T>(*y));
  });
}

// dx, from dy and (W * M)^T.
ffi::Error convolution_input_gradient(ffi::ThreadPool threads, ffi::AnyBuffer dy,
                                      ffi::AnyBuffer kernel, ffi::AnyBuffer ids,
                                      ffi::Result<ffi::AnyBuffer> dx,
                                      int64_t rows, int64_t cols, int64_t stride_down,
                                      int64_t stride_across, int64_t above, int64_t left) {
  ConvolutionCall call;
  const Walk walk{rows, cols, stride_down, stride_across, above, left};
  if (auto e = check_convolution(*dx, kernel.dimensions(), dy, ids, walk, &call); e.failure()) return e;
  const auto type = dy.element_type();
  if (kernel.element_type() != type || dx->element_type() != type) {
    return wrong("dy, kernel and dx must have one dtype");
  }
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    convolve_input_gradient(pool_of(threads), call.convolution, data<T>(dy), call.batch,
                            data<T>(kernel), call.layer.kept, data<T>(*dx));
  });
}

// dw = (what x and dy give) * M; db = the sums of dy, unless db is empty.
ffi::Error convolution_gradient(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                                ffi::AnyBuffer ids, ffi::Result<ffi::AnyBuffer> dw,
                                ffi::Result<ffi::AnyBuffer> db, int64_t rows, int64_t cols,
                                int64_t stride_down, int64_t stride_across, int64_t above,
                                int64_t left) {
  ConvolutionCall call;
  const Walk walk{rows, cols, stride_down, stride_across, above, left};
  if (auto e = check_convolution(x, dw->dimensions(), dy, ids, walk, &call); e.failure()) return e;
  const bool has_db = db->element_count() > 0;
  if (has_db && (db->dimensions().size() != 1 || db->dimensions()[0] != dy.dimensions().back())) {
    return wrong("db of shape " + shape_of(*db) + " does not fit");
  }
  const auto type = x.element_type();
  if (dy.element_type() != type || dw->element_type() != type || db->element_type() != type) {
    return wrong("x, dy, dW and db must have one dtype");
  }
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    convolve_gradient(pool_of(threads), call.convolution, data<T>(x), data<T>(dy), call.batch,
                      call.layer.kept, data<T>(*dw), has_db ? data<T>(*db) : nullptr);
  });
}

}  // namespace
}  // namespace sparsemlp

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_convolution, sparsemlp::convolution,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // kernel
                                  .Arg<xla::ffi::AnyBuffer>()  // bias, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids
                                  .Ret<xla::ffi::AnyBuffer>()  // y
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("cols")
                                  .Attr<int64_t>("stride_down")
                                  .Attr<int64_t>("stride_across")
                                  .Attr<int64_t>("above")
                                  .Attr<int64_t>("left"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_convolution_input_gradient,
                              sparsemlp::convolution_input_gradient,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // kernel
                                  .Arg<xla::ffi::AnyBuffer>()  // ids
                                  .Ret<xla::ffi::AnyBuffer>()  // dx
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("cols")
                                  .Attr<int64_t>("stride_down")
                                  .Attr<int64_t>("stride_across")
                                  .Attr<int64_t>("above")
                                  .Attr<int64_t>("left"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_convolution_gradient, sparsemlp::convolution_gradient,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // ids
                                  .Ret<xla::ffi::AnyBuffer>()  // dw
                                  .Ret<xla::ffi::AnyBuffer>()  // db, or empty
                                  .Attr<int64_t>("rows")
                                  .Attr<int64_t>("cols")
                                  .Attr<int64_t>("stride_down")
                                  .Attr<int64_t>("stride_across")
                                  .Attr<int64_t>("above")
                                  .Attr<int64_t>("left"));
