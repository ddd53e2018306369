#include "inference/pointwise_inference.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <functional>
#include <string>

#include "inference/redispatch.h"

namespace torch_xla {
namespace {

bool is_of_integers(const Op& op) {
  const std::string& name = op.functional ? op.functional->name : op.name;
  const auto begins = [&](const char* with) { return name.rfind(with, 0) == 0; };
  return begins("aten::bitwise_") || begins("aten::__lshift__") || begins("aten::__rshift__") || begins("aten::gcd") ||
         begins("aten::lcm");
}

// Not zeros, which nothing is divided by.
at::Tensor one_element(const at::Tensor& t) {
  return at::ones(at::DimVector(t.dim(), 1), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
}

// What the CPU gives for other tensors in place of ours; none where it has no kernel for a dtype that XLA has.
std::optional<torch::jit::Stack> results_of(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                            const std::function<at::Tensor(const at::Tensor&)>& instead) {
  try {
    return redispatch(op, arguments, DeviceSubstitution{at::kCPU, instead});
  } catch (const c10::Error& error) {
    // A number that is divided by is not part of what is cached, and may be another the next time.
    if (is_missing_kernel(op, error) ||
        std::string(error.what_without_backtrace()).find("ZeroDivisionError") != std::string::npos) {
      return std::nullopt;
    }
    throw;
  }
}

// Whether the elements of all lists of tensors have, place by place, the same shape, and tensors beside them none.
bool are_of_equal_shapes(c10::ArrayRef<c10::IValue> arguments) {
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
  static constexpr const char* kHeld[] = {"'Float'",  "'Double'", "'Half'",   "'BFloat16'",
                                          "'Float8_", "'UInt16'", "'UInt32'", "'UInt64'"};
  if (dynamic_cast<const c10::NotImplementedError*>(&error) == nullptr || is_of_integers(op)) {
    return false;
  }
  const std::string said = error.what_without_backtrace();
  return std::any_of(std::begin(kHeld), std::end(kHeld),
                     [&](const char* dtype) { return said.find(dtype) != std::string::npos; });
}

std::optional<at::ScalarType> cpu_result_dtype(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto results = results_of(op, arguments, one_element);
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
  if (!are_of_equal_shapes(arguments)) {
    return std::nullopt;
  }
  std::vector<at::Tensor> known;  // of a few dtypes and numbers of dimensions
  const auto shared = [&](const at::Tensor& t) {
    for (const at::Tensor& one : known) {
      if (one.scalar_type() == t.scalar_type() && one.dim() == t.dim()) {
        return one;
      }
    }
    return known.emplace_back(one_element(t));
  };
  const auto results = results_of(op, arguments, shared);
  const auto first = first_list(arguments);
  if (!results || results->size() != 1 || !results->front().isTensorList()) {
    return std::nullopt;
  }
  std::vector<at::ScalarType> found;
  for (const c10::IValue& result : results->front().toListRef()) {
    if (found.size() == first.size() || result.toTensor().dim() != first[found.size()].toTensor().dim()) {
      return std::nullopt;  // it reduces
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
