// Ops that replace a tensor's memory, which other devices implement on storages: resize_, set_. On xla the tensor gets
// another Alias or Node (tensor/xla_tensor.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_xla {

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>);
at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source);
// Called by torch.load() with a CPU storage, whose content is copied to the device.
at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                               c10::SymIntArrayRef stride);
at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source);
// Returns whether two tensors have the same elements of the same memory.
bool is_set_to(const at::Tensor& self, const at::Tensor& other);

}  // namespace torch_xla
