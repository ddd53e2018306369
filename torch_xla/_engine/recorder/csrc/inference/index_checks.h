// Argument checks for indices and masks, as torch's CPU kernels do them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace torch_xla {

// Returns whether an index is a mask: the number of elements that it selects is unknown at recording time.
bool is_mask(const c10::IValue& index);

// Returns whether the CPU may reject an indexing call: values of another dtype or count, or an empty operand. The
// number of elements that a mask selects is unknown. Raises torch's error for indices that do not fit the first
// argument's sizes.
bool is_invalid_index_write(const std::string& name, c10::ArrayRef<c10::IValue> arguments);

// Raises torch's error for a value of an index tensor on the CPU that is out of range. `indices` may contain masks.
void check_cpu_indices(const at::Tensor& x, c10::ArrayRef<c10::IValue> indices);

}  // namespace torch_xla
