// Shapes and errors of float8 matrix multiplication with scales. torch's meta functions check either nothing (_scaled_mm)
// or the strides of CUDA's kernels, which results on xla do not depend on (_scaled_mm_v2).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace torch_xla {

// Raises for calls of aten::_scaled_mm that the CPU rejects.
void check_scaled_mm(c10::ArrayRef<c10::IValue> arguments);

// The result of aten::_scaled_mm_v2, the operator of torch.nn.functional.scaled_mm. Raises ValueError, as the CPU does,
// for arguments that its lowering rule does not support.
at::Tensor scaled_mm_v2_on_meta(c10::ArrayRef<c10::IValue> arguments);

// The result of aten::_scaled_grouped_mm, on meta. Raises ValueError, as CUDA does; the CPU has no kernel.
at::Tensor scaled_grouped_mm_on_meta(c10::ArrayRef<c10::IValue> arguments);

// The result of aten::_scaled_grouped_mm_v2, the operator of torch.nn.functional.scaled_grouped_mm.
at::Tensor scaled_grouped_mm_v2_on_meta(c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_xla
