#include "pointwise.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <string>

#include "elsewhere.h"

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

std::optional<at::ScalarType> dtype_on_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  torch::jit::Stack results;
  try {
    results = call_elsewhere(op, arguments, Substitute{at::kCPU, one_element});
  } catch (const c10::Error& error) {
    // A number that is divided by is not part of what is cached, and may be another the next time.
    if (is_missing_kernel(op, error) ||
        std::string(error.what_without_backtrace()).find("ZeroDivisionError") != std::string::npos) {
      return std::nullopt;
    }
    throw;
  }
  if (results.size() != 1 || !results[0].isTensor()) {
    return std::nullopt;
  }
  return results[0].toTensor().scalar_type();
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
