#include "aten/reshape.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>
#include <ATen/InferSize.h>

#include <algorithm>

#include "compat/torch_internal.h"
#include "ir/op.h"
#include "tensor/view_layout.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

// Returns the shape passed to reshape(), with -1 resolved.
c10::SmallVector<int64_t, 8> full_shape(const Tensor& self, at::IntArrayRef shape) {
  const auto full = at::infer_size_dv(shape, self.numel());
  return {full.begin(), full.end()};
}

bool must_copy(XlaTensor& x, const Tensor& self, at::IntArrayRef shape) {
  const ViewChain chain = x.view_chain();
  return !chain.ops.empty() &&
         !compat::computeStride(self.sizes(), layout_of(chain).strides, at::DimVector(shape.begin(), shape.end()));
}

// Returns whether a tensor is a view through an odd number of conj or neg steps, each of which cancels the one before.
bool is_lazily_viewed(const Tensor& self, const char* step) {
  XlaTensor* x = maybe_xla(self);
  if (x == nullptr || !x->is_view()) {
    return false;
  }
  const ViewChain chain = x->view_chain();
  return std::count_if(chain.ops.begin(), chain.ops.end(),
                       [&](const ViewPtr& view) { return view->op->name == step; }) %
             2 !=
         0;
}

}  // namespace

Tensor reshape(const Tensor& self, c10::SymIntArrayRef shape) {
  XlaTensor* x = maybe_xla(self);
  if (x != nullptr && x->is_view()) {
    if (const auto ints = C10_AS_INTARRAYREF_SLOW_ALLOC(shape); must_copy(*x, self, full_shape(self, ints))) {
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
  if (first < last && must_copy(*x, self, shape)) {
    return at::_reshape_copy(self, at::IntArrayRef(shape));
  }
  return compat::flatten(self, start_dim, end_dim);
}

// xla tensors have no conj and neg bits: a view computes the conjugate or the negative. It must become unshared all the
// same, because resolving on the CPU copies.
Tensor resolve_conj(const Tensor& self) { return is_lazily_viewed(self, "aten::_conj") ? self.clone() : self; }

Tensor resolve_neg(const Tensor& self) { return is_lazily_viewed(self, "aten::_neg_view") ? self.clone() : self; }

}  // namespace torch_xla
