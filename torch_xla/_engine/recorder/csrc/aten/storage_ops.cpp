#include "aten/storage_ops.h"

#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include <utility>

#include "dispatch/copy.h"
#include "dispatch/record.h"
#include "dispatch/strided_layout.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

using at::Tensor;

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  static const OpPointer op("aten::resize");
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  XlaTensor& target = require_xla(*op, self);
  if (self.sizes() == sizes) {
    return self;
  }
  if (base_has_room(target, sizes)) {
    // The view extends over memory that other tensors share. On the CPU a memory that is too small grows, and stays
    // shared; here the tensor gets a separate value.
    const Tensor content = view_as_strided(target, sizes, c10::contiguous_strides(sizes), std::nullopt);
    target.take_over(require_xla(*op, content));
  } else {
    target.reset_value(record_node(*op, {c10::IValue(flat_base_from(target)), c10::IValue(sizes), c10::IValue()}));
  }
  return self;
}

Tensor& set_source_tensor(Tensor& self, const Tensor& source) {
  static const OpPointer op("aten::resize");
  XlaTensor& target = require_xla(*op, self);
  XlaTensor& other = require_xla(*op, source);
  TORCH_CHECK(target.device_index() == other.device_index(), "aten::set_: a tensor on ", self.device(),
              " cannot take over the memory of one on ", source.device());
  target.take_over(other);
  return self;
}

Tensor& set_source_storage(Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                           c10::SymIntArrayRef stride) {
  static const OpPointer op("aten::resize");
  XlaTensor& target = require_xla(*op, self);
  TORCH_CHECK(source.device().is_cpu(),
              "aten::set_: xla tensors have no storage that could be read or taken over (this one has ",
              source.nbytes(), " bytes on ", source.device(), "); use set_(tensor), or .cpu() first");
  const Tensor content =
      at::empty({0}, self.scalar_type()).set__symint(std::move(source), std::move(offset), size, stride);
  target.reset_value(upload("aten::set_", content, self.scalar_type(), target.device_index()));
  return self;
}

Tensor& set_whole_storage(Tensor& self, c10::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source_storage(self, std::move(source), 0, {c10::SymInt(count)}, {c10::SymInt(1)});
}

bool is_set_to(const Tensor& self, const Tensor& other) {
  static const OpPointer op("aten::resize");
  return require_xla(*op, self).id() == require_xla(*op, other, 0).id();
}

}  // namespace torch_xla
