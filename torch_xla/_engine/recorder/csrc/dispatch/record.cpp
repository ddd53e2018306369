#include "dispatch/record.h"

#include <ATen/core/Generator.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "dispatch/copy.h"
#include "dispatch/cpu_fallback.h"
#include "dispatch/graph_size_limit.h"
#include "inference/index_checks.h"
#include "inference/output_spec_cache.h"
#include "ir/attribute_hash.h"
#include "ir/number_checks.h"
#include "ir/rng_state.h"
#include "ir/slice_range.h"
#include "ir/source_location.h"
#include "runtime/generator.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

// What a key contains, and what it does not.
//
// A Node's key selects its output spec (inference/output_spec_cache.h). A graph's key selects its compiled program;
// compilation/program_cache.py combines it with the placement and the matmul precision. Both are 128-bit hashes
// (support/hash.h). What a key does not contain must not change the output spec or the program:
// tests/recorder/test_graph_keys.py and verify_cache() check that.
//
//   Key of a Node          contains                                    does not contain
//   op                     its name                                    source location, module scope
//   tensor argument        dtype and sizes                             which value it is, its sharding
//   number                 0, 1, -1, bools: the value; else the type   the value of other numbers: operands
//   list of numbers        length, whether all are equal, each number  repetitions of one operand
//   dtype, string, ints    the value                                   -
//   device, generator      -                                           the device index, the generator
//   layout, memory format  -                                           the value: xla tensors have no layout
//   slice                  its length                                  start and end, if it could start elsewhere
//   random op              draws since the last flush                  the seed: an operand
//   scatter, getitem       a marker; index of the view or the result   -     (tensor/view.cpp, ir/node.cpp)
//   reshard                the sharding id                             -     (ir/sharding.cpp)
//   global state           torch's default dtype, if not float32       other state: changes no dtype or shape here
//
//   Key of a graph         contains                                    does not contain
//   leaf                   dtype, sizes and sharding                   the buffer, its provenance
//   node, in post-order    its key, and the indices of its inputs      source location, module scope
//   root                   its index, and whether it is pending        the tensors that refer to it
//   donation               the indices of the donated leaves           -
//   slice start            whether it is an operand; if not, its value the value of an operand
//   number operand, seed   -                                           the value
//   device                 -                                           the index
//
// Example: x * 0.5 and x * 0.25 have one key, and share a program with an operand; x * 1.0 has another key. The graph
// part is in graph/post_order.cpp, graph/graph.cpp and graph/slice_starts.cpp.

// Builds one Node from a call's arguments.
class Recording {
 public:
  Recording(const Op& op, c10::ArrayRef<c10::IValue> arguments)
      : op_(op), arguments_(arguments), node_(c10::make_intrusive<Node>()) {
    node_->op = &op;
    node_->key = op.key;
    node_->origin = current_origin();
    node_->attrs.reserve(arguments.size());
  }

  NodePtr run() {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      argument(i);
    }
    if (device_ < 0) {
      device_ = validated_index(c10::Device(c10::DeviceType::XLA, current_device()));
    }
    node_->device = device_;
    mix_globals();
    node_->output_spec = infer_output_spec(op_, node_->key, arguments_);
    if (C10_UNLIKELY(op_.converts_numbers)) {
      check_numbers(op_, *node_, arguments_);
    }
    if (op_.random) {
      add_seed();
    }
    return std::move(node_);
  }

 private:
  // Mixes in the global state that determines an op's results: the default dtype. Deterministic algorithms, inference
  // mode and the default device change no shape or dtype below autograd.
  void mix_globals() { mix_default_dtype(*node_, c10::get_default_dtype_as_scalartype()); }

  void argument(size_t i) {
    const c10::IValue& value = arguments_[i];
    switch (op_.kinds[i]) {
      case ArgKind::kTensor:
        node_->attrs.push_back(value.isTensor() ? tensor(i, value.toTensor())
                               : value.isNone() ? none()
                                                : node_argument(i, value));
        break;
      case ArgKind::kTensorList:
        tensor_list(i, value);
        break;
      case ArgKind::kScalar:
        scalar(value);
        break;
      case ArgKind::kScalars:
        scalar_list(value);
        break;
      case ArgKind::kDevice:
        if (value.isDevice()) {
          set_device(i, validated_index(value.toDevice()));
        }
        node_->attrs.emplace_back();
        break;
      case ArgKind::kGenerator:
        generator_ = value.isNone() ? nullptr : maybe_xla(value.toGenerator());
        node_->attrs.emplace_back();
        break;
      case ArgKind::kIgnored:
        node_->attrs.emplace_back();
        break;
      case ArgKind::kDtype:
      case ArgKind::kAttribute:
        if (is_large_unsigned(value)) {
          scalar(value);
        } else if (C10_LIKELY(op_.range_kind == RangeKind::kNone) || !range_bound(i)) {
          mix_attribute(node_->key, value);
          node_->attrs.push_back(value);
        }
        break;
    }
  }

  // Records argument `i` as the start or the end of a movable slice; returns false if it is neither.
  bool range_bound(size_t i) {
    if (i == op_.start) {
      // slice_backward and select_backward have the sizes of the sliced tensor as an argument.
      const auto found = arguments_[1].isIntList() ? range_of(op_, arguments_, arguments_[1].toDimVector())
                                                   : range_of(op_, arguments_, node_->inputs[0]->shape().sizes);
      if (!found || !found->can_move()) {
        return false;
      }
      range_ = *found;
      mix_movable_range(*node_, range_);
      node_->attrs.emplace_back(range_.begin);
      return true;
    }
    if (!node_->has_start || op_.range_kind != RangeKind::kSlice || i != op_.start + 1u) {
      return false;
    }
    node_->attrs.emplace_back(range_.end);
    return true;
  }

  c10::IValue none() {
    node_->key.mix(kNone);
    return {};
  }

  c10::IValue node_argument(size_t i, const c10::IValue& value) {
    return input(i, c10::static_intrusive_pointer_cast<Node>(value.toCapsule()));
  }

  // Returns the index of the input; the number itself for a Python number that torch wrapped in a tensor.
  c10::IValue tensor(size_t i, const at::Tensor& t) {
    if (!t.defined()) {
      return none();
    }
    if (XlaTensor* x = maybe_xla(t)) {
      return input(i, x->value());
    }
    if (t.dim() != 0 || !t.device().is_cpu()) {
      if (op_.cpu_indices && i == 1 && device_ >= 0 && t.device().is_cpu()) {
        return input(i, upload(op_.name.c_str(), t, t.scalar_type(), device_));
      }
      raise_not_xla(op_, i, t, device_);
    }
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
      c10::IValue number = read_wrapped_number(t);
      if (is_large_unsigned(number)) {
        node_->key.mix(kUnsigned);
        number = convert_large_unsigned(number, number_dtype());
      }
      mix_scalar(node_->key, number);
      node_->numbers |= 1ull << i;
      return number;
    }
    static const OpPointer scalar_tensor("aten::scalar_tensor");
    return input(i,
                 record_node(*scalar_tensor,
                             {c10::IValue(t.item()), c10::IValue(static_cast<int64_t>(t.scalar_type())), c10::IValue(),
                              c10::IValue(c10::Device(c10::DeviceType::XLA, device_ < 0 ? current_device() : device_)),
                              c10::IValue()}));
  }

  c10::IValue input(size_t i, const NodePtr& value) {
    set_device(i, value->device);
    node_->key.mix(value->shape().hash);
    node_->inputs.push_back(value);
    return static_cast<int64_t>(node_->inputs.size() - 1);
  }

  // Sets the device that argument `i` is on or requests: a Node has one.
  void set_device(size_t i, int8_t device) {
    if (device_ >= 0 && device != device_) {
      TORCH_CHECK(false, op_.name, ": expected all tensors on one device, but found xla:", static_cast<int>(device_),
                  " and xla:", static_cast<int>(device), " (argument '", op_.arg_names[i], "')");
    }
    device_ = device;
  }

  void tensor_list(size_t i, const c10::IValue& value) {
    if (value.isNone()) {
      node_->attrs.push_back(none());
      return;
    }
    const auto list = value.toListRef();
    if (op_.cpu_indices && i == 1 && device_ >= 0 && arguments_[0].isTensor()) {
      check_cpu_indices(arguments_[0].toTensor(), list);
    }
    c10::List<int64_t> positions;
    positions.reserve(list.size());
    node_->key.mix(kList + (static_cast<uint64_t>(list.size()) << 32));
    for (const auto& element : list) {
      if (element.isNone() || !element.toTensor().defined()) {
        node_->key.mix(kNone);
        positions.push_back(-1);
        continue;
      }
      at::Tensor t = element.toTensor();
      if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
        t.unsafeGetTensorImpl()->set_wrapped_number(false);  // in a list it is an ordinary 0-d tensor
      }
      positions.push_back(tensor(i, t).toInt());
    }
    node_->attrs.emplace_back(std::move(positions));
  }

  // The dtype in which a number takes part: that of the first tensor, or of a factory.
  at::ScalarType number_dtype() const {
    at::ScalarType dtype = at::kLong;
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const c10::IValue& value = arguments_[i];
      if (value.isTensor() && !value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
        return value.toTensor().scalar_type();
      }
      if (value.isTensorList() && !value.toTensorList().empty()) {
        return value.toTensorList().get(0).scalar_type();
      }
      if (op_.kinds[i] == ArgKind::kDtype && value.isInt()) {
        dtype = static_cast<at::ScalarType>(value.toInt());
      }
    }
    return dtype;
  }

  void scalar(const c10::IValue& value) {
    if (is_large_unsigned(value)) {
      node_->key.mix(kUnsigned);
      scalar(convert_large_unsigned(value, number_dtype()));
      return;
    }
    if (value.isNone()) {
      node_->key.mix(kNone);
    } else {
      mix_scalar(node_->key, value);
    }
    node_->attrs.push_back(value);
  }

  void scalar_list(const c10::IValue& value) {
    const auto list = value.toListRef();
    if (C10_UNLIKELY(std::any_of(list.begin(), list.end(), is_large_unsigned))) {
      c10::List<at::Scalar> converted;
      for (const auto& element : list) {
        converted.push_back(
            (is_large_unsigned(element) ? convert_large_unsigned(element, number_dtype()) : element).toScalar());
      }
      node_->key.mix(kUnsigned);
      scalar_list(converted);
      return;
    }
    node_->key.mix(kList + (static_cast<uint64_t>(list.size()) << 32));
    const bool uniform = is_uniform(list);
    if (uniform) {
      node_->key.mix(kUniform);
    }
    for (const auto& element : uniform ? list.slice(0, 1) : list) {
      mix_scalar(node_->key, element);
    }
    node_->attrs.push_back(value);
  }

  // Call it after shape inference, whose cache must not depend on the offset.
  void add_seed() {
    TORCH_CHECK(generator_ == nullptr || generator_->device().index() == device_, op_.name,
                ": expected a generator of xla:", static_cast<int>(device_), ", but found one of ",
                generator_->device());
    RngOperand draw = generator_ != nullptr ? next_rng_operand(*generator_) : next_rng_operand(device_);
    node_->inputs.push_back(std::move(draw.seed));
    node_->attrs.emplace_back(static_cast<int64_t>(draw.offset));
    node_->key.mix(static_cast<uint64_t>(draw.offset));
  }

  const Op& op_;
  c10::ArrayRef<c10::IValue> arguments_;
  NodePtr node_;
  int8_t device_ = -1;
  XlaGenerator* generator_ = nullptr;
  Range range_;  // of the slice that the op reads or writes, if node_ has_start
};

void push_results(const NodePtr& node, torch::jit::Stack* stack) {
  const auto& outs = node->output_spec->outs;
  if (outs.size() == 1 && !node->output_spec->is_list) {
    stack->emplace_back(make_tensor(node));
    return;
  }
  const auto result = [&](uint32_t i) {
    return outs[i].dtype == at::ScalarType::Undefined ? at::Tensor() : make_tensor(getitem_node(node, i));
  };
  if (node->output_spec->is_list) {
    c10::List<at::Tensor> list;
    list.reserve(outs.size());
    for (uint32_t i = 0; i < outs.size(); ++i) {
      list.push_back(result(i));
    }
    stack->emplace_back(std::move(list));
    return;
  }
  for (uint32_t i = 0; i < outs.size(); ++i) {
    stack->emplace_back(result(i));
  }
}

}  // namespace

void raise_not_xla(const Op& op, size_t argument, const at::Tensor& t, int8_t device) {
  std::string type = t.toString();  // CPUFloatType -> torch.FloatTensor, torch.cuda.FloatTensor
  type = type.rfind("CPU", 0) == 0 ? "torch." + type.substr(3, type.size() - 7) + "Tensor" : type;
  const std::string where = device >= 0 ? "xla:" + std::to_string(device) : std::string("xla");
  TORCH_CHECK(
      false, "Expected all tensors to be on the same device, but got ", op.arg_names[argument], " is on ", t.device(),
      ", different from other tensors on ", where, " (when checking argument in method ", op.name,
      ")\n  Input tensor is not an XLA tensor: ", type, "\n  ", op.name, ": argument '", op.arg_names[argument],
      "' is ", at::toString(t.scalar_type()), t.sizes(), " on ", t.device(), ", the other tensors are on ", where,
      t.requires_grad() && t.is_leaf() ? "; if it is a parameter, move its module with model.to('xla'), else" : ";",
      " move it with .to('", where, "')\n  See: torch-xla explain wrong-device");
}

void record(const Op& op, torch::jit::Stack* stack) {
  flush_if_over_limit();
  const size_t n = op.kinds.size();
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, n);
  if (needs_cpu_fallback(op, arguments)) {
    run_on_cpu(op.handle, stack);
    return;
  }
  const NodePtr node = Recording(op, arguments).run();
  op.recorded->add();
  torch::jit::drop(*stack, n);
  push_results(node, stack);
  count_pending(node->device, op_count(op, *node->output_spec));
}

NodePtr record_node(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  block_if_shutting_down();
  op.recorded->add();
  return Recording(op, arguments).run();
}

NodePtr cast(NodePtr value, at::ScalarType dtype) {
  if (value->shape().dtype == dtype) {
    return value;
  }
  static const OpPointer convert("prims::convert_element_type");
  return record_node(*convert, {c10::IValue(make_tensor(std::move(value))), c10::IValue(static_cast<int64_t>(dtype))});
}

}  // namespace torch_xla
