#include "elsewhere.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torch_xla {
namespace {

c10::IValue substituted(const c10::IValue& value, const Substitute& substitute) {
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

torch::jit::Stack call_elsewhere(const Op& op, c10::ArrayRef<c10::IValue> arguments, const Substitute& substitute) {
  // Below everything that is not the kernel itself: these tensors have no autograd of their own.
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

void raise_as_cpu_does(const Op& op, c10::ArrayRef<c10::IValue> arguments, int64_t most_elements) {
  int64_t elements = 0;
  const auto on_cpu = [&](const at::Tensor& t) {
    elements += t.numel();
    TORCH_CHECK(elements <= most_elements, "too large to try");
    return at::zeros(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  };
  try {
    for (const auto& argument : arguments) {
      substituted(argument, Substitute{at::kCPU, on_cpu});
    }
  } catch (const c10::Error&) {
    return;
  }
  elements = 0;
  call_elsewhere(op, arguments, Substitute{at::kCPU, on_cpu});
}

void raise_for_out(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results) {
  constexpr int64_t kMost = 1 << 12;
  std::vector<c10::IValue> matching(arguments.begin(), arguments.end());
  const size_t first = arguments.size() - results.size();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].toTensor().numel() > kMost) {
      return;
    }
    matching[first + i] = results[i];
  }
  const auto on_cpu = [](const at::Tensor& t) {
    TORCH_CHECK(t.numel() <= kMost, "too large to try");
    return at::zeros(t.sizes(), at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
  };
  try {
    call_elsewhere(op, matching, Substitute{at::kCPU, on_cpu});
  } catch (const std::exception&) {
    return;
  }
  call_elsewhere(op, arguments, Substitute{at::kCPU, on_cpu});
}

}  // namespace torch_xla
