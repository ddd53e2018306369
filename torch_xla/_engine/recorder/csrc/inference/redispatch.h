// Calling an op on tensors of another device in place of ours: meta tensors for shapes, small CPU ones for refusals.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>

#include "ir/op.h"

namespace torch_xla {

// Another device, and the tensors that stand for ours there.
struct DeviceSubstitution {
  c10::Device device;
  std::function<at::Tensor(const at::Tensor&)> make;

  at::Tensor operator()(const at::Tensor& t) const {
    return t.defined() && t.device().type() == c10::DeviceType::XLA ? make(t) : t;
  }
};

// The results of the op on tensors of another device in place of ours.
torch::jit::Stack redispatch(const Op& op, c10::ArrayRef<c10::IValue> arguments, const DeviceSubstitution& substitute);

// torch's meta functions are partly in Python and say some things in other words than the kernels. So the words of a
// refusal are the CPU's, where the CPU refuses too; asking it costs something, but only once something went wrong.
// Calls with more elements than that are not tried. Returns what the CPU gives for zeros, if it was tried.
std::optional<torch::jit::Stack> raise_cpu_error(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                                 int64_t most_elements = 1 << 20);

// Raises what the CPU raises for writing to outs of these dtypes, and not for outs of those of the results.
void raise_cpu_out_error(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

}  // namespace torch_xla
