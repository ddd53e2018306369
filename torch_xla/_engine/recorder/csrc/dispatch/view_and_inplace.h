// Records ops that return a view or write in place. Other schema kinds: dispatch/record.h, dispatch/factories.h,
// dispatch/out_variants.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "ir/op.h"

namespace torch_xla {

class XlaTensor;

// Records a view op with one result; `arguments` are all of the op's.
at::Tensor record_one_view(const Op& op, XlaTensor& base, c10::ArrayRef<c10::IValue> arguments);
void record_view(const Op& op, torch::jit::Stack* stack);
void record_inplace(const Op& op, torch::jit::Stack* stack);
// Records t_(), squeeze_(), transpose_(): the tensor becomes the view.
void record_inplace_view(const Op& op, torch::jit::Stack* stack);

}  // namespace torch_xla
