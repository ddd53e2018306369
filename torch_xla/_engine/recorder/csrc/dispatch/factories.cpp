#include "dispatch/factories.h"

#include "dispatch/copy.h"
#include "dispatch/record.h"
#include "dispatch/sharding.h"
#include "runtime/device.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

// Whether a factory's device argument asks for another device than that of its tensors.
bool made_elsewhere(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  int8_t tensors = -1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.kinds[i] == ArgKind::kTensor && arguments[i].isTensor()) {
      XlaTensor* x = maybe_xla(arguments[i].toTensor());
      tensors = tensors < 0 && x != nullptr ? x->device_index() : tensors;
    } else if (op.kinds[i] == ArgKind::kDevice && arguments[i].isDevice()) {
      const c10::Device wanted = arguments[i].toDevice();
      return wanted.type() != c10::DeviceType::XLA || (tensors >= 0 && validated_index(wanted) != tensors);
    }
  }
  return false;
}

// What zeros_like and its kind take shape and dtype from.
NodePtr pattern_of(c10::ArrayRef<c10::IValue> arguments) {
  XlaTensor* x = arguments[0].isTensor() ? maybe_xla(arguments[0].toTensor()) : nullptr;
  return x != nullptr ? x->value() : NodePtr();
}

// A new tensor of the pattern's shape lies as that does: so do optimizer states as their parameters.
void lay_out_as(const Node& pattern, c10::IValue& made) {
  XlaTensor* x = made.isTensor() ? maybe_xla(made.toTensor()) : nullptr;
  if (x == nullptr || x->sizes() != at::IntArrayRef(pattern.shape().sizes)) {
    return;
  }
  NodePtr value = x->value();
  if (NodePtr laid_out = with_sharding_of(pattern, value); laid_out != value) {
    made = make_tensor(std::move(laid_out));
  }
}

}  // namespace

void record_factory(const Op& op, torch::jit::Stack* stack) {
  if (C10_LIKELY(!made_elsewhere(op, torch::jit::last(*stack, op.kinds.size())))) {
    const NodePtr pattern = any_sharded() ? pattern_of(torch::jit::last(*stack, op.kinds.size())) : NodePtr();
    record(op, stack);
    if (pattern) {
      lay_out_as(*pattern, torch::jit::peek(*stack, 0, 1));
    }
    return;
  }
  // torch's kernel for all devices makes an empty tensor there, of which it needs to know only sizes and dtype.
  TORCH_CHECK(!op.handle.hasKernelForDispatchKey(c10::DispatchKey::CPU), op.name,
              ": a result on another device than the argument's cannot be made; move the result with .to()");
  op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

Tensor full(c10::SymIntArrayRef size, const c10::Scalar& value, std::optional<at::ScalarType> dtype,
            std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  static const Op* op = find_op("aten::full");
  const bool is_truth = value.isBoolean() && dtype.value_or(at::kBool) == at::kBool;
  const int64_t above = 2;  // 0 and 1 are constants
  torch::jit::Stack stack{C10_AS_INTARRAYREF_SLOW(size),
                          is_truth ? c10::Scalar(value.toBool() ? above + 1 : above) : value,
                          is_truth ? std::optional<at::ScalarType>(at::kInt) : dtype,
                          layout,
                          device,
                          pin_memory};
  record_factory(*op, &stack);
  Tensor filled = stack.back().toTensor();
  return is_truth ? filled.gt(above) : filled;
}

}  // namespace torch_xla
