#include "dispatch/copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>

#include "compat/torch_internal.h"
#include "dispatch/record.h"
#include "dispatch/strided_layout.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

XlaTensor& expect_xla(const char* op, const Tensor& t) {
  XlaTensor* x = maybe_xla(t);
  TORCH_CHECK(x != nullptr, op, ": Input tensor is not an XLA tensor: ", t.toString());
  return *x;
}

void check_uploadable(const char* op, const Tensor& t, at::ScalarType dtype) {
  TORCH_CHECK(t.layout() == at::kStrided, op, ": a tensor with layout ", t.layout(), " and shape ", t.sizes(),
              " cannot move to xla, where all tensors are dense; call .to_dense() first");
  TORCH_CHECK(!t.is_quantized() && !at::isQIntType(dtype) && !at::isBitsType(dtype), op, ": a tensor of dtype ",
              at::toString(t.scalar_type()), " cannot move to xla; call .dequantize() (or .int_repr()) first");
}

// Downloads the value to a new CPU tensor.
Tensor download(XlaTensor& x) {
  const NodePtr node = x.value();
  hooks().materialize({node}, node->device);
  return hooks().download(node->buffer, node->shape().dtype, node->shape().sizes);
}

NodePtr to_device(XlaTensor& x, int8_t device) {
  const NodePtr node = x.value();
  if (node->device == device) {
    return node;
  }
  hooks().materialize({node}, node->device);
  return make_leaf(hooks().transfer(node->buffer, device), make_output_spec(node->shape().dtype, node->shape().sizes),
                   device);
}

NodePtr record_by_name(const char* name, torch::jit::Stack arguments) {
  const Op* op = find_op(name);
  TORCH_INTERNAL_ASSERT(op != nullptr, name);
  return record_node(*op, std::move(arguments));
}

// Returns the value of `source` in the shape and dtype of `like`, on its device.
NodePtr convert_source(XlaTensor& like, const Tensor& source) {
  constexpr const char* op = "aten::copy_";
  const at::ScalarType dtype = c10::typeMetaToScalarType(like.dtype());
  const int8_t device = like.device_index();
  XlaTensor* x = maybe_xla(source);
  if (x == nullptr) {
    TORCH_CHECK(source.device().is_cpu(), op, ": cannot copy a tensor from ", source.device(),
                " to xla:", static_cast<int>(device), "; go through .cpu()");
    check_uploadable(op, source, dtype);
    const auto common = at::infer_size(like.sizes(), source.sizes());
    TORCH_CHECK(like.sizes() == at::IntArrayRef(common), op, ": output with shape ", like.sizes(),
                " doesn't match the broadcast shape ", at::IntArrayRef(common));
    return upload(op, source.expand(like.sizes()), dtype, device);
  }
  NodePtr value = to_device(*x, device);
  if (value->shape().dtype == dtype && like.sizes() == at::IntArrayRef(value->shape().sizes)) {
    return value;  // values are immutable: a copy may share one
  }
  return record_by_name("aten::copy", {make_tensor(like.value()), make_tensor(std::move(value)), false});
}

}  // namespace

NodePtr upload(const char* op, const Tensor& cpu, at::ScalarType dtype, int8_t device) {
  check_uploadable(op, cpu, dtype);
  const Tensor source = cpu.to(dtype).contiguous().resolve_conj().resolve_neg();
  return make_leaf(hooks().upload(source, device), make_output_spec(dtype, source.sizes()), device);
}

Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
               std::optional<at::Device> device, std::optional<bool>, bool, std::optional<at::MemoryFormat>) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "aten::_to_copy: xla tensors are dense; layout ",
              layout.value_or(at::kStrided), " is not supported on this device");
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  const at::Device target = device.value_or(self.device());
  if (target.type() != c10::DeviceType::XLA) {
    return download(expect_xla("aten::_to_copy", self)).to(at::TensorOptions().device(target).dtype(type));
  }
  XlaTensor* x = maybe_xla(self);
  if (x == nullptr) {
    return make_tensor(upload("aten::_to_copy", self, type, validated_index(target)));
  }
  return make_tensor(cast(to_device(*x, target.has_index() ? validated_index(target) : x->device_index()), type));
}

Tensor quantized_to_copy(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                         std::optional<at::MemoryFormat> memory_format) {
  if (device && device->type() == c10::DeviceType::XLA) {
    check_uploadable("aten::_to_copy", self, self.scalar_type());
  }
  return compat::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format);
}

Tensor copy(const Tensor& self, const Tensor& source, bool) {
  if (XlaTensor* x = maybe_xla(self)) {
    return make_tensor(convert_source(*x, source));
  }
  return download(expect_xla("aten::copy_", source)).to(self.scalar_type()).expand_as(self).clone();
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  if (XlaTensor* x = maybe_xla(self)) {
    if (XlaTensor* from = maybe_xla(source)) {
      check_no_partial_overlap(*x, *from, /*copies_lazy=*/false);
    }
    x->write(convert_source(*x, source));
  } else {
    self.copy_(download(expect_xla("aten::copy_", source)));
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& destination, bool non_blocking) {
  Tensor target = destination;
  return copy_(target, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& destination) {
  Tensor target = destination;
  if (target.sizes() != self.sizes()) {
    target.resize_(self.sizes());
  }
  return copy_(target, self, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  static const CounterPointer count("aten::_local_scalar_dense");
  count->add();
  return download(expect_xla("aten::_local_scalar_dense", self)).item();
}

}  // namespace torch_xla
