#include "dispatch/factories.h"

#include "dispatch/copy.h"
#include "dispatch/record.h"
#include "ir/sharding.h"
#include "runtime/device.h"
#include "runtime/pending_sharding.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

// Returns whether a factory's device argument differs from the device of its tensors.
bool is_on_other_device(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  int8_t tensors = -1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.kinds[i] == ArgKind::kTensor && arguments[i].isTensor()) {
      XlaTensor* x = maybe_xla(arguments[i].toTensor());
      tensors = tensors < 0 && x != nullptr ? x->device_index() : tensors;
    } else if (op.kinds[i] == ArgKind::kDevice && arguments[i].isDevice()) {
      const c10::Device requested = arguments[i].toDevice();
      return requested.type() != c10::DeviceType::XLA || (tensors >= 0 && validated_index(requested) != tensors);
    }
  }
  return false;
}

// Returns the value that zeros_like and similar ops take shape and dtype from.
NodePtr like_operand(c10::ArrayRef<c10::IValue> arguments) {
  XlaTensor* x = arguments[0].isTensor() ? maybe_xla(arguments[0].toTensor()) : nullptr;
  return x != nullptr ? x->value() : NodePtr();
}

// Gives a new tensor the sharding of the tensor it is modeled on, as optimizer states are of parameters.
void copy_sharding(const Node& pattern, c10::IValue& result) {
  XlaTensor* x = result.isTensor() ? maybe_xla(result.toTensor()) : nullptr;
  if (x == nullptr || x->sizes() != at::IntArrayRef(pattern.shape().sizes)) {
    return;
  }
  NodePtr value = x->value();
  if (NodePtr resharded = with_sharding_of(pattern, value); resharded != value) {
    result = make_tensor(std::move(resharded));
  }
}

}  // namespace

void record_factory(const Op& op, torch::jit::Stack* stack) {
  if (C10_LIKELY(!is_on_other_device(op, torch::jit::last(*stack, op.kinds.size())))) {
    const NodePtr pattern = any_sharded() ? like_operand(torch::jit::last(*stack, op.kinds.size())) : NodePtr();
    record(op, stack);
    if (pattern) {
      copy_sharding(*pattern, torch::jit::peek(*stack, 0, 1));
    }
    return;
  }
  // torch's composite kernel makes an empty tensor there, and reads only sizes and dtype.
  TORCH_CHECK(!op.handle.hasKernelForDispatchKey(c10::DispatchKey::CPU), op.name,
              ": the result cannot be made on another device than the argument; move the result with .to()");
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

Tensor full(c10::SymIntArrayRef size, const c10::Scalar& value, std::optional<at::ScalarType> dtype,
            std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  static const OpPointer op("aten::full");
  const bool is_bool = value.isBoolean() && dtype.value_or(at::kBool) == at::kBool;
  if (!dtype && value.isComplex()) {
    // As on the CPU. The meta function returns torch.complex32 or torch.bcomplex32 if the default dtype has 16 bits.
    dtype = c10::get_default_dtype_as_scalartype() == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
  }
  const int64_t offset = 2;  // 0 and 1 are constants
  torch::jit::Stack stack{C10_AS_INTARRAYREF_SLOW(size),
                          is_bool ? c10::Scalar(value.toBool() ? offset + 1 : offset) : value,
                          is_bool ? std::optional<at::ScalarType>(at::kInt) : dtype,
                          layout,
                          device,
                          pin_memory};
  record_factory(*op, &stack);
  Tensor filled = stack.back().toTensor();
  return is_bool ? filled.gt(offset) : filled;
}

}  // namespace torch_xla
