// Ops that torch writes anew for each kind of device, made of others here.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace torch_xla {

// Zeros that other devices need no memory for; here the compiler sees to that.
at::Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                           std::optional<at::Layout> layout, std::optional<at::Device> device,
                           std::optional<bool> pin_memory);

std::tuple<at::Tensor, at::Tensor> weight_norm_backward(const at::Tensor& gradient, const at::Tensor& v,
                                                        const at::Tensor& g, const at::Tensor& norms, int64_t dim);

}  // namespace torch_xla
