// reshape() and flatten() copy where the CPU would: in a view whose elements do not lie in their order in the memory.
// So do resolve_conj() and resolve_neg(): in a view that shows something else than what lies there.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_xla {

// xla tensors look contiguous, so torch's own kernels would make a view of every xla tensor, and a later write to the
// result would change what it was made of.
at::Tensor reshape(const at::Tensor& self, c10::SymIntArrayRef shape);
at::Tensor flatten(const at::Tensor& self, int64_t start_dim, int64_t end_dim);
at::Tensor resolve_conj(const at::Tensor& self);
at::Tensor resolve_neg(const at::Tensor& self);

}  // namespace torch_xla
