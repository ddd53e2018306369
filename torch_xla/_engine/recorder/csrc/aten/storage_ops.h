// Ops that give a tensor another memory, which other devices do by changing its storage: resize_, set_. Here the tensor
// gets another Alias or another Node (tensor/xla_tensor.h); there is no storage to change.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_xla {

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>);
at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source);
// What torch.load() does with a storage, which is the CPU's; what it shows is copied to the device.
at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                               c10::SymIntArrayRef stride);
at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source);
// Whether two tensors show the same elements of the same memory.
bool is_set_to(const at::Tensor& self, const at::Tensor& other);

}  // namespace torch_xla
