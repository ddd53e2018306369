// Values in and out of a device, between devices, and copies in place.
#pragma once

#include <ATen/core/Tensor.h>

#include "ir/node.h"

namespace torch_xla {

// The values of a CPU tensor on a device. `op` is what an error begins with.
NodePtr upload(const char* op, const at::Tensor& cpu, at::ScalarType dtype, int8_t device);

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format);
// The same for a quantized CPU tensor, which torch would quietly leave where it is.
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
