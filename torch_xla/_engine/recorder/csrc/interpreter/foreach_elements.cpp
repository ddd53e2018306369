#include "interpreter/foreach_elements.h"

#include <utility>

#include "ir/op.h"

namespace torch_xla {
namespace {

// Returns whether argument `i` is an operand of all elements.
bool is_shared_operand(const Node& node, size_t i) {
  return node.op->kinds[i] == ArgKind::kTensor && (node.numbers >> i & 1) == 0 && !node.attrs[i].isNone();
}

}  // namespace

//   argument                      of an element
//   tensors, one per result       its own
//   numbers, one per result       its own
//   a tensor without dims         the same for all
//   a tensor with dims            has_elements() is false: numbers per element, by position
//   any other                     the same for all
bool has_elements(const Node& node) {
  if (!node.op->foreach) {
    return false;
  }
  const size_t count = node.output_spec->outs.size();
  for (size_t i = 0; i < node.attrs.size(); ++i) {
    const c10::IValue& given = node.attrs[i];
    switch (node.op->kinds[i]) {
      case ArgKind::kTensorList:
        if (given.isNone() || given.toIntList().size() != count) {
          return false;
        }
        break;
      case ArgKind::kScalars:
        if (!given.isList() || given.toListRef().size() != count) {
          return false;
        }
        break;
      case ArgKind::kTensor:
        if (is_shared_operand(node, i) && !node.inputs[given.toInt()]->shape().sizes.empty()) {
          return false;
        }
        break;
      default:
        break;
    }
  }
  return true;
}

void visit_element_operands(const Node& node, size_t i, c10::function_ref<void(const NodePtr&)> visit) {
  for (size_t position = 0; position < node.attrs.size(); ++position) {
    if (node.op->kinds[position] == ArgKind::kTensorList) {
      visit(node.inputs[node.attrs[position].toIntList()[i]]);
    } else if (is_shared_operand(node, position)) {
      visit(node.inputs[node.attrs[position].toInt()]);
    }
  }
}

torch::jit::Stack element_arguments(const Node& node, size_t i, ValueOf value) {
  torch::jit::Stack stack;
  for (size_t position = 0; position < node.attrs.size(); ++position) {
    const c10::IValue& given = node.attrs[position];
    switch (node.op->kinds[position]) {
      case ArgKind::kTensorList:
        stack.emplace_back(c10::List<at::Tensor>({value(*node.inputs[given.toIntList()[i]])}));
        break;
      case ArgKind::kScalars:
        stack.emplace_back(c10::List<at::Scalar>({given.toListRef()[i].toScalar()}));
        break;
      default:
        stack.push_back(kernel_argument(node, *node.op, position, value));
    }
  }
  return stack;
}

}  // namespace torch_xla
