// Copies: host to device, device to host, between devices, and in place.
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/node.h"

namespace torch_xla {

// Uploads the values of a CPU tensor. `op` is the prefix of error messages.
NodePtr upload(const char* op, const at::Tensor& cpu, at::ScalarType dtype, int8_t device);

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format);
// Rejects a move of a quantized CPU tensor to xla, which torch would silently leave on the CPU.
at::Tensor quantized_to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout, std::optional<at::Device> device,
                             std::optional<bool> pin_memory, bool non_blocking,
                             std::optional<at::MemoryFormat> memory_format);
at::Tensor copy(const at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination);
at::Scalar local_scalar_dense(const at::Tensor& self);

}  // namespace torch_xla
