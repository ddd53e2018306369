// reshape() and flatten() copy where the CPU would: for a view whose elements are not in memory order. So do
// resolve_conj() and resolve_neg(): for a view whose elements differ from those in memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_xla {

// xla tensors appear contiguous, so torch's own kernels would return a view for every xla tensor, and a later write to
// the result would change the input.
at::Tensor reshape(const at::Tensor& self, c10::SymIntArrayRef shape);
at::Tensor flatten(const at::Tensor& self, int64_t start_dim, int64_t end_dim);
at::Tensor resolve_conj(const at::Tensor& self);
at::Tensor resolve_neg(const at::Tensor& self);

}  // namespace torch_xla
