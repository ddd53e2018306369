#include "reshapes.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/InferSize.h>

#include "compat.h"
#include "layout.h"
#include "tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

// The shape that reshape() is asked for, without -1.
c10::SmallVector<int64_t, 8> full_shape(const Tensor& self, at::IntArrayRef shape) {
  const auto full = at::infer_size_dv(shape, self.numel());
  return {full.begin(), full.end()};
}

bool copies(XlaTensor& x, const Tensor& self, at::IntArrayRef shape) {
  const Steps steps = x.steps();
  return !steps.ops.empty() &&
         !compat::computeStride(self.sizes(), layout_of(steps).strides, at::DimVector(shape.begin(), shape.end()));
}

}  // namespace

Tensor reshape(const Tensor& self, c10::SymIntArrayRef shape) {
  XlaTensor* x = maybe_xla(self);
  if (x != nullptr && x->is_view()) {
    if (const auto ints = C10_AS_INTARRAYREF_SLOW_ALLOC(shape); copies(*x, self, full_shape(self, ints))) {
      return at::_reshape_copy(self, ints);
    }
  }
  return compat::reshape_symint(self, shape);
}

Tensor flatten(const Tensor& self, int64_t start_dim, int64_t end_dim) {
  XlaTensor* x = maybe_xla(self);
  if (x == nullptr || !x->is_view() || self.dim() == 0) {
    return compat::flatten(self, start_dim, end_dim);
  }
  const int64_t first = at::maybe_wrap_dim(start_dim, self.dim());
  const int64_t last = at::maybe_wrap_dim(end_dim, self.dim());
  c10::SmallVector<int64_t, 8> shape;
  int64_t flat = 1;
  for (int64_t i = 0; i < self.dim(); ++i) {
    if (i < first || i > last) {
      shape.push_back(self.size(i));
      continue;
    }
    flat *= self.size(i);
    if (i == last) {
      shape.push_back(flat);
    }
  }
  if (first < last && copies(*x, self, shape)) {
    return at::_reshape_copy(self, at::IntArrayRef(shape));
  }
  return compat::flatten(self, start_dim, end_dim);
}

}  // namespace torch_xla
