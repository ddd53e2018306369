// Shapes and errors of matrix multiplication by groups. torch's meta functions accept only the dtypes and strides of
// CUDA's kernels, which results on xla do not depend on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace torch_xla {

// Returns why matrices cannot be multiplied by groups, in the words of torch's CPU kernel; empty if they can.
std::string find_grouping_error(const at::Tensor& a, const at::Tensor& b, const c10::IValue& offsets,
                                const c10::IValue& bias);

// Returns the number of groups of matrices without a grouping error.
int64_t group_count(const at::Tensor& a, const at::Tensor& b, const c10::IValue& offsets);

// Returns the product by groups, on meta.
at::Tensor make_grouped_product(const at::Tensor& a, const at::Tensor& b, const c10::IValue& offsets,
                                at::ScalarType dtype);

// The result of aten::_grouped_mm, on meta.
at::Tensor grouped_mm_on_meta(c10::ArrayRef<c10::IValue> arguments);

}  // namespace torch_xla
