#include "inference/pointwise_inference.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <functional>
#include <string>

#include "inference/redispatch.h"

namespace torch_xla {
namespace {

bool is_integer_op(const Op& op) {
  const std::string& name = op.functional ? op.functional->name : op.name;
  const auto starts_with = [&](const char* prefix) { return name.rfind(prefix, 0) == 0; };
  return starts_with("aten::bitwise_") || starts_with("aten::__lshift__") || starts_with("aten::__rshift__") ||
         starts_with("aten::gcd") || starts_with("aten::lcm");
}

// Ones, not zeros: zeros would cause divisions by zero.
at::Tensor one_element(const at::Tensor& t) {
  return at::ones(at::DimVector(t.dim(), 1), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
}

// Returns the results of the CPU kernel for substituted tensors; nullopt if it lacks a kernel for a dtype that XLA
// supports.
std::optional<torch::jit::Stack> call_on_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                             const std::function<at::Tensor(const at::Tensor&)>& make) {
  try {
    return redispatch(op, arguments, DeviceSubstitution{at::kCPU, make});
  } catch (const c10::Error& error) {
    // A divisor is not part of the cache key: the next call with this key may have a nonzero one.
    if (is_missing_kernel(op, error) ||
        std::string(error.what_without_backtrace()).find("ZeroDivisionError") != std::string::npos) {
      return std::nullopt;
    }
    throw;
  }
}

// Returns whether corresponding elements of all lists have equal shapes, and all other tensors are 0-d.
bool have_equal_shapes(c10::ArrayRef<c10::IValue> arguments) {
  const auto first = first_list(arguments);
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().dim() != 0) {
      return false;
    }
    const auto list = argument.isTensorList() ? argument.toListRef() : first;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list.size() != first.size() || list[i].toTensor().sizes() != first[i].toTensor().sizes()) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

bool is_missing_kernel(const Op& op, const c10::Error& error) {
  static constexpr const char* kXlaDtypes[] = {"'Float'",  "'Double'", "'Half'",   "'BFloat16'",
                                               "'Float8_", "'UInt16'", "'UInt32'", "'UInt64'"};
  if (dynamic_cast<const c10::NotImplementedError*>(&error) == nullptr || is_integer_op(op)) {
    return false;
  }
  const std::string message = error.what_without_backtrace();
  return std::any_of(std::begin(kXlaDtypes), std::end(kXlaDtypes),
                     [&](const char* dtype) { return message.find(dtype) != std::string::npos; });
}

std::optional<at::ScalarType> cpu_result_dtype(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto results = call_on_cpu(op, arguments, one_element);
  if (!results || results->size() != 1 || !results->front().isTensor()) {
    return std::nullopt;
  }
  return results->front().toTensor().scalar_type();
}

c10::ArrayRef<c10::IValue> first_list(c10::ArrayRef<c10::IValue> arguments) {
  const auto* found =
      std::find_if(arguments.begin(), arguments.end(), [](const c10::IValue& value) { return value.isTensorList(); });
  return found == arguments.end() ? c10::ArrayRef<c10::IValue>() : found->toListRef();
}

std::optional<std::vector<at::ScalarType>> cpu_result_dtypes_of_lists(const Op& op,
                                                                      c10::ArrayRef<c10::IValue> arguments) {
  if (!have_equal_shapes(arguments)) {
    return std::nullopt;
  }
  std::vector<at::Tensor> known;  // one per dtype and rank
  const auto shared = [&](const at::Tensor& t) {
    for (const at::Tensor& one : known) {
      if (one.scalar_type() == t.scalar_type() && one.dim() == t.dim()) {
        return one;
      }
    }
    return known.emplace_back(one_element(t));
  };
  const auto results = call_on_cpu(op, arguments, shared);
  const auto first = first_list(arguments);
  if (!results || results->size() != 1 || !results->front().isTensorList()) {
    return std::nullopt;
  }
  std::vector<at::ScalarType> found;
  for (const c10::IValue& result : results->front().toListRef()) {
    if (found.size() == first.size() || result.toTensor().dim() != first[found.size()].toTensor().dim()) {
      return std::nullopt;  // a reduction
    }
    found.push_back(result.toTensor().scalar_type());
  }
  return found;
}

at::DimVector broadcast_shape(c10::ArrayRef<c10::IValue> arguments) {
  at::DimVector shape;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      shape = at::infer_size_dimvector(shape, argument.toTensor().sizes());
    }
  }
  return shape;
}

void check_broadcasts_to_self(c10::ArrayRef<c10::IValue> arguments) {
  check_same_sizes(arguments[0].toTensor().sizes(), broadcast_shape(arguments));
}

void check_same_sizes(at::IntArrayRef self, at::IntArrayRef result) {
  TORCH_CHECK(self == result, "output with shape ", self, " doesn't match the broadcast shape ", result);
}

}  // namespace torch_xla
