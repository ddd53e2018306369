#include "interpreter/cpu_kernel_call.h"

#include <ATen/ScalarOps.h>

#include <unordered_set>
#include <utility>

#include "ir/op.h"

namespace torch_xla {
namespace {

using at::Tensor;

// Returns the default of an argument that is not recorded.
c10::IValue default_value(const c10::Argument& argument) {
  if (argument.default_value().has_value()) {
    return *argument.default_value();
  }
  return argument.type()->kind() == c10::TypeKind::BoolType ? c10::IValue(false) : c10::IValue();
}

// Returns whether torch's kernel of a view op depends on its operand's strides; the recorded op expects a contiguous
// operand.
bool needs_contiguous_operand(const Op* op) {
  static const std::unordered_set<const Op*> ops{
      find_op("aten::view"),         find_op("aten::_reshape_alias"),  find_op("aten::view.dtype"),
      find_op("aten::as_strided"),   find_op("aten::view_as_complex"), find_op("aten::view_as_real"),
      find_op("aten::_unsafe_view"),
  };
  return ops.count(op) != 0;
}

c10::IValue tensors(const Node& node, const c10::IValue& positions, const c10::Argument& schema, ValueOf value) {
  const auto* list = schema.type()->cast<c10::ListType>().get();
  c10::List<Tensor> all;
  c10::List<std::optional<Tensor>> some;
  for (const int64_t position : positions.toIntVector()) {
    if (list != nullptr && list->getElementType()->kind() == c10::TypeKind::OptionalType) {
      some.push_back(position < 0 ? std::optional<Tensor>() : value(*node.inputs[position]));
    } else {
      all.push_back(position < 0 ? Tensor() : value(*node.inputs[position]));
    }
  }
  return some.empty() ? c10::IValue(std::move(all)) : c10::IValue(std::move(some));
}

}  // namespace

c10::IValue kernel_argument(const Node& node, const Op& op, size_t i, ValueOf value) {
  const c10::Argument& schema = op.handle.schema().arguments()[i];
  const c10::IValue& given = node.attrs[i];
  switch (node.op->kinds[i]) {
    case ArgKind::kTensor:
      if (node.numbers >> i & 1) {
        Tensor number = at::scalar_to_tensor(given.toScalar());
        number.unsafeGetTensorImpl()->set_wrapped_number(true);
        return number;
      }
      return given.isNone() ? c10::IValue() : c10::IValue(value(*node.inputs[given.toInt()]));
    case ArgKind::kTensorList:
      return given.isNone() ? c10::IValue() : tensors(node, given, schema, value);
    case ArgKind::kDevice:
    case ArgKind::kGenerator:
    case ArgKind::kIgnored:
      return default_value(schema);
    default:
      return given;
  }
}

torch::jit::Stack kernel_arguments(const Node& node, const Op& op, ValueOf value) {
  const size_t count = op.handle.schema().arguments().size();
  torch::jit::Stack stack;
  stack.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    stack.push_back(kernel_argument(node, op, i, value));
  }
  if (needs_contiguous_operand(&op)) {
    stack[0] = stack[0].toTensor().resolve_conj().resolve_neg().contiguous();
  }
  return stack;
}

Values kernel_results(const torch::jit::Stack& stack) {
  Values found;
  for (const c10::IValue& result : stack) {
    if (result.isTensor() || result.isNone()) {
      found.push_back(result.isNone() ? Tensor() : result.toTensor());
      continue;
    }
    for (const Tensor& element : result.toTensorVector()) {
      found.push_back(element);
    }
  }
  return found;
}

Values conform_results(const Node& node, c10::ArrayRef<Shape> outs, Values found) {
  TORCH_CHECK(found.size() == outs.size(), "the CPU kernel returned ", found.size(), " results, expected ",
              outs.size());
  for (size_t i = 0; i < outs.size(); ++i) {
    if (outs[i].dtype == at::ScalarType::Undefined || !found[i].defined()) {
      found[i] = Tensor();
      continue;
    }
    if (node.op->functional != nullptr) {
      found[i] = found[i].to(outs[i].dtype);
    }
    if (found[i].sizes() != at::IntArrayRef(outs[i].sizes) || found[i].scalar_type() != outs[i].dtype) {
      TORCH_CHECK(outs.size() > 1, "the CPU kernel returned ", found[i].toString(), found[i].sizes(), ", expected ",
                  at::toString(outs[i].dtype), at::IntArrayRef(outs[i].sizes));
      found[i] = Tensor();
    }
  }
  return found;
}

}  // namespace torch_xla
