#include "inference/redispatch.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <string>

#include "compat/python_internal.h"

namespace torch_xla {
namespace {

c10::IValue substituted(const c10::IValue& value, const DeviceSubstitution& substitute) {
  if (value.isTensor()) {
    return substitute(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) {
      list.push_back(substitute(t));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& t : value.toListRef()) {
      list.push_back(t.isNone() ? std::optional<at::Tensor>() : std::optional<at::Tensor>(substitute(t.toTensor())));
    }
    return list;
  }
  return value.isDevice() ? c10::IValue(substitute.device) : value;
}

}  // namespace

torch::jit::Stack redispatch(const Op& op, c10::ArrayRef<c10::IValue> arguments, const DeviceSubstitution& substitute) {
  // Only the kernel: the substitute tensors have no autograd.
  c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::ADInplaceOrView}));
  torch::jit::Stack stack;
  for (const auto& argument : arguments) {
    stack.push_back(substituted(argument, substitute));
  }
  op.handle.callBoxed(&stack);
  return stack;
}

std::optional<torch::jit::Stack> raise_cpu_error(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                                 int64_t max_elements) {
  int64_t elements = 0;
  const auto on_cpu = [&](const at::Tensor& t) {
    elements += t.numel();
    TORCH_CHECK(elements <= max_elements, "too large to try");
    return at::zeros(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  };
  try {
    for (const auto& argument : arguments) {
      substituted(argument, DeviceSubstitution{at::kCPU, on_cpu});
    }
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  elements = 0;
  return redispatch(op, arguments, DeviceSubstitution{at::kCPU, on_cpu});
}

namespace {

// Names the operator and the dtypes in an error of the CPU that names two dtypes only, as einsum of bfloat16 and bool.
void explain_dtype_error(const Op& op, c10::ArrayRef<c10::IValue> arguments, const c10::Error& error) {
  const std::string message = error.what_without_backtrace();
  if (message.rfind("expected scalar type", 0) != 0) {
    return;
  }
  std::string dtypes;
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      dtypes += (dtypes.empty() ? "" : " and ") + std::string(at::toString(argument.toTensor().scalar_type()));
    }
  }
  TORCH_CHECK(false, message, " (", op.name, " of ", dtypes, "): convert the operands to one dtype with .to(dtype)");
}

// Substitutes zeros on the CPU for xla tensors of at most `max_elements` elements.
DeviceSubstitution zeros_on_cpu(int64_t max_elements) {
  return {at::kCPU, [max_elements](const at::Tensor& t) {
            TORCH_CHECK(t.numel() <= max_elements, "too large to try");
            return at::zeros(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
          }};
}

// For calls that fail for zeros, such as the pivots of an LU decomposition, or that are large: structured kernels check
// dtypes first.
void raise_for_structured_out(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  try {
    redispatch(op, arguments, zeros_on_cpu(1 << 20));
  } catch (const c10::Error& error) {
    if (std::string(error.what_without_backtrace()).find("Expected out tensor to have dtype") != std::string::npos) {
      throw;
    }
  } catch (const std::exception&) {
    compat::raise_interrupts();
  }
}

}  // namespace

std::optional<torch::jit::Stack> raise_cpu_error_with_dtypes(const Op& op, c10::ArrayRef<c10::IValue> arguments,
                                                             int64_t max_elements) {
  try {
    return raise_cpu_error(op, arguments, max_elements);
  } catch (const c10::Error& error) {
    explain_dtype_error(op, arguments, error);
    throw;
  }
}

void raise_cpu_out_error(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results) {
  std::vector<c10::IValue> matching(arguments.begin(), arguments.end());
  std::copy(results.begin(), results.end(), matching.end() - static_cast<std::ptrdiff_t>(results.size()));
  const DeviceSubstitution small_zeros = zeros_on_cpu(1 << 12);
  try {
    redispatch(op, matching, small_zeros);
  } catch (const std::exception&) {
    compat::raise_interrupts();
    raise_for_structured_out(op, arguments);
    return;
  }
  redispatch(op, arguments, small_zeros);
}

}  // namespace torch_xla
