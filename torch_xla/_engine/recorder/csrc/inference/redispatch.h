// Redispatches an op to another device: meta tensors for shape inference, small CPU tensors for argument checks.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>

#include "ir/op.h"

namespace torch_xla {

// A device, and a function that makes tensors there in place of xla tensors.
struct DeviceSubstitution {
  c10::Device device;
  std::function<at::Tensor(const at::Tensor&)> make;

  at::Tensor operator()(const at::Tensor& t) const {
    return t.defined() && t.device().type() == c10::DeviceType::XLA ? make(t) : t;
  }
};

// Calls the op with xla tensors replaced by tensors of another device.
torch::jit::Stack redispatch(const Op& op, c10::ArrayRef<c10::IValue> arguments, const DeviceSubstitution& substitute);

// Raises the CPU's error for a call, if the CPU raises one. torch's meta functions are partly in Python and have other
// error messages than the kernels; users get the CPU's. Costly, but used only after a failure. Calls with more than
// `max_elements` elements are not tried. Returns the CPU's results for zeros, if it was tried.
std::optional<torch::jit::Stack> raise_cpu_error(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                                 int64_t max_elements = 1 << 20);

// The same; an error that names two dtypes only, as einsum of bfloat16 and bool, names the operator, too.
std::optional<torch::jit::Stack> raise_cpu_error_with_dtypes(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                                             int64_t max_elements = 1 << 20);

// Raises the CPU's error for writing to outs of these dtypes, if it accepts outs of the results' dtypes.
void raise_cpu_out_error(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

}  // namespace torch_xla
