#include "dispatch/cpu_fallback.h"

#include <algorithm>
#include <map>

#include "compat/torch_internal.h"
#include "dispatch/strided_layout.h"
#include "runtime/device.h"
#include "runtime/generator.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

namespace {

// Returns the values that a call reads, by device. Several devices are allowed only for calls that are loops over
// single-device calls and return nothing: in-place ops on lists.
std::map<int8_t, std::vector<NodePtr>> inputs_by_device(const c10::OperatorHandle& handle, const std::string& name,
                                                        const torch::jit::Stack& stack) {
  std::map<int8_t, std::vector<NodePtr>> inputs;
  const auto add_input = [&](const at::Tensor& t) {
    if (XlaTensor* x = maybe_xla(t)) {
      inputs[x->device_index()].push_back(x->value());
    }
  };
  for (const c10::IValue& value : torch::jit::last(stack, handle.schema().arguments().size())) {
    if (value.isTensor()) {
      add_input(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) {
          add_input(element.toTensor());
        }
      }
    }
  }
  TORCH_CHECK(inputs.size() < 2 || handle.schema().returns().empty(), name,
              ": expected all tensors on one device, but found xla:", static_cast<int>(inputs.begin()->first),
              " and xla:", static_cast<int>(inputs.rbegin()->first));
  return inputs;
}

// Checks that written arguments are xla tensors, which results can be copied to, and do not partially overlap the
// inputs.
void check_written(const c10::OperatorHandle& handle, const std::string& name, const torch::jit::Stack& stack) {
  const auto& schema = handle.schema().arguments();
  const auto arguments = torch::jit::last(stack, schema.size());
  for (size_t i = 0; i < schema.size(); ++i) {
    const auto* alias = schema[i].alias_info();
    if (alias == nullptr || !alias->isWrite() || !arguments[i].isTensor() || !arguments[i].toTensor().defined()) {
      continue;
    }
    XlaTensor* written = maybe_xla(arguments[i].toTensor());
    TORCH_CHECK(written != nullptr, name, ": expected all tensors on one device, but argument '", schema[i].name(),
                "' (", arguments[i].toTensor().sizes(), ") is on ", arguments[i].toTensor().device(),
                "; move it with .to('xla')");
    check_no_partial_overlap(*written, arguments);
  }
}

bool is_cpu_generator(const c10::IValue& value) {
  return value.isGenerator() && maybe_xla(value.toGenerator()) == nullptr;
}

bool has_cpu_generator(c10::ArrayRef<c10::IValue> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), is_cpu_generator);
}

// Returns whether the platform lacks the matrix decomposition that the op's rule uses. The first call of an op compiles
// small programs to find out; threads that ask at the same time get the same answer.
bool lacks_decomposition(const Op& called) {
  const Op& op = called.functional != nullptr ? *called.functional : called;
  int8_t supported = op.supported.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(supported < 0)) {
    supported = hooks().supports_operator(op.name) ? 1 : 0;
    op.supported.store(supported, std::memory_order_relaxed);
  }
  return supported == 0;
}

}  // namespace

void run_on_cpu(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const std::string& name = handle.operator_name().name;
  const std::string& overload = handle.operator_name().overload_name;
  const std::string full = overload.empty() ? name : name + "." + overload;
  check_written(handle, full, *stack);
  counter(full)->add();
  const PythonReentryScope reentry;
  const std::map<int8_t, std::vector<NodePtr>> inputs = inputs_by_device(handle, full, *stack);
  hooks().fallback(full, has_cpu_generator(torch::jit::last(*stack, handle.schema().arguments().size())));
  for (const auto& [device, values] : inputs) {
    hooks().materialize(values, device);  // one sync for all inputs
  }
  compat::cpu_fallback(handle, stack);
  hooks().fallback_done();
}

bool needs_cpu_fallback(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.needs_cpu != nullptr && op.needs_cpu(arguments)) {
    return true;
  }
  if (C10_UNLIKELY(op.decomposes) && lacks_decomposition(op)) {
    return true;
  }
  return op.random && has_cpu_generator(arguments);
}

}  // namespace torch_xla
