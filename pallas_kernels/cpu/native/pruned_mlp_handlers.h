// The border to XLA of two layers with a GELU between them whose other operands are pruned.
#pragma once

#include "mlp_handlers.h"
#include "pruned_mlp_gradient.h"

namespace sparsemlp {
namespace {

// Checks numbers of `n` columns, or empty for none.
ffi::Error check_scale(const char* name, const ffi::AnyBuffer& scale, int64_t n,
                       ffi::DataType type) {
  const auto shape = scale.dimensions();
  if (shape.size() != 1 || (shape[0] != n && shape[0] != 0) || scale.element_type() != type) {
    return wrong(std::string(name) + " of shape " + shape_of(scale) + " is not one for each of " +
                 std::to_string(n) + " columns, of x's dtype");
  }
  return ffi::Error::Success();
}

template <typename T>
const T* data_or_null(const ffi::AnyBuffer& buffer) {
  return buffer.element_count() ? data<T>(buffer) : nullptr;
}

// Checks blocks of an activation [n, in] and neighbours of a gradient [n, out].
ffi::Error check_pruning(const Pruning& pruning, int64_t n, int64_t in, int64_t out) {
  const auto [height, width, pools, gradient, positions] = pruning;
  if (height < 0 || (height > 0 && (width < 1 || n % height != 0 || in % width != 0))) {
    return wrong((pools ? "windows of " : "blocks of ") + std::to_string(height) + "x" + std::to_string(width) +
                 " do not divide the activation [" + std::to_string(n) + ", " + std::to_string(in) +
                 "]");
  }
  if (gradient.m != 0 && (gradient.n < 1 || gradient.n > gradient.m ||
                          gradient.m > kMostNeighbours || out % gradient.m != 0)) {
    return wrong("the " + std::to_string(gradient.n) + " largest of " + std::to_string(gradient.m) +
                 " neighbours cannot be taken of " + std::to_string(out));
  }
  if (positions < 0 || (positions > 0 && n % positions != 0)) {
    return wrong(std::to_string(n) + " rows are no samples of " + std::to_string(positions));
  }
  return ffi::Error::Success();
}

ffi::Error check_norms(const ffi::AnyBuffer& norms, const Pruning& pruning, int64_t n, int64_t in) {
  const int64_t count =
      pruning.takes_blocks() ? n / pruning.height * (in / pruning.width) : 0;
  if (norms.element_type() != ffi::F32 || static_cast<int64_t>(norms.element_count()) != count) {
    return wrong("norms of shape " + shape_of(norms) + " are not one for each block, float32");
  }
  return ffi::Error::Success();
}

// The kept blocks of an activation, ids empty where none are pruned.
ffi::Error check_kept(const ffi::AnyBuffer& ids, const Pruning& pruning, int64_t n, int64_t in,
                      Compact* kept) {
  if (ids.element_type() != ffi::S32 || ids.dimensions().size() != 1) {
    return wrong("the ids of kept blocks of an activation must be int32 of rank 1");
  }
  *kept = {n, in, pruning.height, pruning.width, ids.typed_data<int32_t>(), ids.dimensions()[0]};
  if (pruning.takes_blocks() ? !valid(*kept) : kept->k > 0) {
    return wrong("the ids of kept blocks do not ascend within the activation");
  }
  return ffi::Error::Success();
}

// y = gelu((scale x + shift) (W1 * M1) + b1) (W2 * M2) + b2 (+ x), and the norms of blocks.
ffi::Error pruned_mlp(ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer w1,
                      ffi::AnyBuffer b1, ffi::AnyBuffer ids1, ffi::AnyBuffer w2, ffi::AnyBuffer b2,
                      ffi::AnyBuffer ids2, ffi::AnyBuffer scale, ffi::AnyBuffer shift,
                      ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> norms1,
                      ffi::Result<ffi::AnyBuffer> norms2, int64_t rows1, int64_t cols1,
                      int64_t rows2, int64_t cols2, bool residual, int64_t height1, int64_t width1,
                      int64_t height2, int64_t width2) {
  Call first, second;
  if (auto e = check_mlp(x, *y, w1, b1, ids1, w2, b2, ids2, rows1, cols1, rows2, cols2, residual,
                         &first, &second);
      e.failure()) {
    return e;
  }
  const auto type = x.element_type();
  const Grid &g1 = first.kept.grid, &g2 = second.kept.grid;
  const Pruning of_first{height1, width1, false, {0, 0}, 0};
  const Pruning of_second{height2, width2, false, {0, 0}, 0};
  if (auto e = check_scale("scale", scale, g1.in, type); e.failure()) return e;
  if (auto e = check_scale("shift", shift, g1.in, type); e.failure()) return e;
  if (auto e = check_pruning(of_first, first.n, g1.in, g1.out); e.failure()) return e;
  if (auto e = check_pruning(of_second, first.n, g2.in, g2.out); e.failure()) return e;
  if (auto e = check_norms(*norms1, of_first, first.n, g1.in); e.failure()) return e;
  if (auto e = check_norms(*norms2, of_second, first.n, g2.in); e.failure()) return e;
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const PrunedMlp<T> pruned{mlp_of<T>(first, second, w1, b1, w2, b2, residual),
                              data_or_null<T>(scale), data_or_null<T>(shift), nullptr,
                              of_first, of_second};
    multiply_pruned_mlp(pool_of(threads), pruned, data<T>(x), first.n, data<T>(*y),
                        norms1->typed_data<float>(), norms2->typed_data<float>());
  });
}

// The gradients of all operands, y being after (gelu(...) (W2 * M2) + b2) (+ x).
ffi::Error pruned_mlp_gradient(
    ffi::ThreadPool threads, ffi::AnyBuffer x, ffi::AnyBuffer dy, ffi::AnyBuffer w1,
    ffi::AnyBuffer b1, ffi::AnyBuffer ids1, ffi::AnyBuffer w2, ffi::AnyBuffer b2,
    ffi::AnyBuffer ids2, ffi::AnyBuffer scale, ffi::AnyBuffer shift, ffi::AnyBuffer after,
    ffi::AnyBuffer kept1, ffi::AnyBuffer kept2, ffi::Result<ffi::AnyBuffer> dx,
    ffi::Result<ffi::AnyBuffer> dw1, ffi::Result<ffi::AnyBuffer> db1,
    ffi::Result<ffi::AnyBuffer> dw2, ffi::Result<ffi::AnyBuffer> db2,
    ffi::Result<ffi::AnyBuffer> d_scale, ffi::Result<ffi::AnyBuffer> d_shift,
    ffi::Result<ffi::AnyBuffer> d_after, int64_t rows1, int64_t cols1, int64_t rows2,
    int64_t cols2, bool residual, bool straight_through, int64_t height1, int64_t width1,
    int64_t height2, int64_t width2, bool pools1, bool pools2, int64_t n1, int64_t m1, int64_t n2,
    int64_t m2, int64_t positions1, int64_t positions2) {
  Call first, second;
  if (auto e = check_mlp(x, dy, w1, b1, ids1, w2, b2, ids2, rows1, cols1, rows2, cols2, residual,
                         &first, &second);
      e.failure()) {
    return e;
  }
  const auto type = x.element_type();
  const Grid &g1 = first.kept.grid, &g2 = second.kept.grid;
  const Pruning of_first{height1, width1, pools1, {n1, m1}, positions1};
  const Pruning of_second{height2, width2, pools2, {n2, m2}, positions2};
  Compact of_x, of_hidden;
  if (auto e = check_scale("scale", scale, g1.in, type); e.failure()) return e;
  if (auto e = check_scale("shift", shift, g1.in, type); e.failure()) return e;
  if (auto e = check_scale("after", after, g2.out, type); e.failure()) return e;
  if (auto e = check_pruning(of_first, first.n, g1.in, g1.out); e.failure()) return e;
  if (auto e = check_pruning(of_second, first.n, g2.in, g2.out); e.failure()) return e;
  if (auto e = check_kept(kept1, of_first, first.n, g1.in, &of_x); e.failure()) return e;
  if (auto e = check_kept(kept2, of_second, first.n, g2.in, &of_hidden); e.failure()) return e;
  if (!alike(*dx, x) || !alike(*dw1, w1) || !alike(*db1, b1) || !alike(*dw2, w2) ||
      !alike(*db2, b2) || !alike(*d_scale, scale) || !alike(*d_shift, shift) ||
      !alike(*d_after, after)) {
    return wrong("gradients must have the shapes and the dtype of what they belong to");
  }
  return with_type(type, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    const PrunedMlp<T> pruned{
        mlp_of<T>(first, second, w1, b1, w2, b2, residual, straight_through),
        data_or_null<T>(scale), data_or_null<T>(shift), data_or_null<T>(after), of_first, of_second};
    pruned_mlp_gradients(
        pool_of(threads), pruned, of_x, of_hidden, data<T>(x), data<T>(dy), first.n,
        PrunedMlpGradients<T>{{data<T>(*dx), data<T>(*dw1), data<T>(*db1), data<T>(*dw2),
                               data<T>(*db2)},
                              data<T>(*d_scale), data<T>(*d_shift), data<T>(*d_after)});
  });
}

}  // namespace
}  // namespace sparsemlp

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_pruned_mlp, sparsemlp::pruned_mlp,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // w1
                                  .Arg<xla::ffi::AnyBuffer>()  // b1, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids1
                                  .Arg<xla::ffi::AnyBuffer>()  // w2
                                  .Arg<xla::ffi::AnyBuffer>()  // b2, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // ids2
                                  .Arg<xla::ffi::AnyBuffer>()  // scale, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // shift, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // y
                                  .Ret<xla::ffi::AnyBuffer>()  // norms1, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // norms2, or empty
                                  .Attr<int64_t>("rows1")
                                  .Attr<int64_t>("cols1")
                                  .Attr<int64_t>("rows2")
                                  .Attr<int64_t>("cols2")
                                  .Attr<bool>("residual")
                                  .Attr<int64_t>("height1")
                                  .Attr<int64_t>("width1")
                                  .Attr<int64_t>("height2")
                                  .Attr<int64_t>("width2"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sparsemlp_pruned_mlp_gradient, sparsemlp::pruned_mlp_gradient,
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
                                  .Arg<xla::ffi::AnyBuffer>()  // scale, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // shift, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // after, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // kept1, or empty
                                  .Arg<xla::ffi::AnyBuffer>()  // kept2, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // dx
                                  .Ret<xla::ffi::AnyBuffer>()  // dw1
                                  .Ret<xla::ffi::AnyBuffer>()  // db1, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // dw2
                                  .Ret<xla::ffi::AnyBuffer>()  // db2, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // d_scale, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // d_shift, or empty
                                  .Ret<xla::ffi::AnyBuffer>()  // d_after, or empty
                                  .Attr<int64_t>("rows1")
                                  .Attr<int64_t>("cols1")
                                  .Attr<int64_t>("rows2")
                                  .Attr<int64_t>("cols2")
                                  .Attr<bool>("residual")
                                  .Attr<bool>("straight_through")
                                  .Attr<int64_t>("height1")
                                  .Attr<int64_t>("width1")
                                  .Attr<int64_t>("height2")
                                  .Attr<int64_t>("width2")
                                  .Attr<bool>("pools1")
                                  .Attr<bool>("pools2")
                                  .Attr<int64_t>("n1")
                                  .Attr<int64_t>("m1")
                                  .Attr<int64_t>("n2")
                                  .Attr<int64_t>("m2")
                                  .Attr<int64_t>("positions1")
                                  .Attr<int64_t>("positions2"));
