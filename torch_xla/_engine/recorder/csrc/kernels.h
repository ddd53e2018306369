// What a dispatcher call of each form of op does: views, in place, out=, and the few ops that are a case of their own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "op.h"

namespace torch_xla {

class XlaTensor;

// A view that is one tensor; `arguments` are all of the op's.
at::Tensor record_one_view(const Op& op, XlaTensor& base, c10::ArrayRef<c10::IValue> arguments);
void record_view(const Op& op, torch::jit::Stack* stack);
void record_inplace(const Op& op, torch::jit::Stack* stack);
void record_inplace_view(const Op& op, torch::jit::Stack* stack);
void record_out(const Op& op, torch::jit::Stack* stack);
// An op that writes to some arguments beside what it returns: `op.functional` returns their new values after the rest.
void record_side_writes(const Op& op, torch::jit::Stack* stack);
// A step of a fused optimizer: `op.functional` returns the new values of the lists that the op writes to, one after the
// other. Lists over several devices go to the CPU.
void record_fused(const Op& op, torch::jit::Stack* stack);

// A truth value of the program (whether a loop is at its end) is an operand: it would be a constant of the graph else.
at::Tensor full(c10::SymIntArrayRef size, const c10::Scalar& value, std::optional<at::ScalarType> dtype,
                std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory);
const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>);
at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source);
at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                               c10::SymIntArrayRef stride);
at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source);
bool is_set_to(const at::Tensor& self, const at::Tensor& other);
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(const at::Tensor& input,
                                                                 const std::optional<at::Tensor>& weight,
                                                                 const std::optional<at::Tensor>& bias,
                                                                 const std::optional<at::Tensor>& running_mean,
                                                                 const std::optional<at::Tensor>& running_var,
                                                                 bool training, double momentum, double eps);
std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> native_batch_norm_out(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var, bool training,
    double momentum, double eps, at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd);
// Gradient scaling: the gradients divided by the scale in place, and found_inf set where one is not finite.
void amp_unscale_(at::TensorList gradients, at::Tensor& found_inf, const at::Tensor& inv_scale);
at::Tensor& amp_update_scale_(at::Tensor& scale, at::Tensor& growth_tracker, const at::Tensor& found_inf,
                              double growth_factor, double backoff_factor, int64_t growth_interval);
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm_legit(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    at::Tensor& running_mean, at::Tensor& running_var, bool training, double momentum, double eps);
std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> native_batch_norm_legit_out(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    at::Tensor& running_mean, at::Tensor& running_var, bool training, double momentum, double eps, at::Tensor& out,
    at::Tensor& save_mean, at::Tensor& save_invstd);
void propagate_xla_data(const at::Tensor& input, const at::Tensor& output);

}  // namespace torch_xla
