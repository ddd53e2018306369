#include "aten/unboxed_views.h"

#include <torch/library.h>

#include <array>

#include "compat/torch_internal.h"
#include "dispatch/library.h"
#include "dispatch/record.h"
#include "dispatch/view_and_inplace.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

c10::IValue pack(int64_t value) { return value; }
c10::IValue pack(bool value) { return value; }
c10::IValue pack(const c10::SymInt& value) { return value.guard_int(__FILE__, __LINE__); }
c10::IValue pack(const std::optional<c10::SymInt>& value) { return value ? pack(*value) : c10::IValue(); }
c10::IValue pack(at::IntArrayRef value) { return value; }
c10::IValue pack(c10::SymIntArrayRef value) { return C10_AS_INTARRAYREF_SLOW(value); }

// One slot per registered function: a kernel's function pointer cannot hold its Op.
template <int Slot>
const Op*& op_of() {
  static const Op* op = nullptr;
  return op;
}

template <int Slot, typename... Args>
Tensor view_kernel(const Tensor& self, Args... args) {
  const Op& op = *op_of<Slot>();
  XlaTensor* base = maybe_xla(self);
  if (base == nullptr) {
    raise_not_xla(op, 0, self, -1);
  }
  const std::array<c10::IValue, sizeof...(Args) + 1> arguments{c10::IValue(self), pack(args)...};
  return record_one_view(op, *base, arguments);
}

// Aliases the tensor: records no node.
Tensor detach_kernel(const Tensor& self) {
  static const OpPointer op("aten::alias");
  XlaTensor* x = maybe_xla(self);
  if (x == nullptr) {
    if (self.key_set().has(c10::DispatchKey::XLA) && self.is_meta()) {
      return compat::alias(self);  // of a fake tensor that torch is creating
    }
    raise_not_xla(*op, 0, self, -1);
  }
  return x->make_alias();
}

Tensor alias_kernel(const Tensor& self) {
  Tensor alias = detach_kernel(self);
  if (C10_UNLIKELY(alias.is_inference())) {
    alias.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(c10::VariableVersion::DISABLED));
  }
  return alias;
}

template <int Slot, typename... Args>
void register_view(torch::Library& library, const char* name) {
  op_of<Slot>() = find_op(std::string("aten::") + name);
  if (op_of<Slot>() != nullptr) {
    library.impl(name, &view_kernel<Slot, Args...>);
  }
}

}  // namespace

void register_unboxed_views() {
  auto& library = implementations("aten");
  register_view<0, c10::SymIntArrayRef>(library, "view");
  register_view<1, int64_t, std::optional<c10::SymInt>, std::optional<c10::SymInt>, c10::SymInt>(library,
                                                                                                 "slice.Tensor");
  register_view<2>(library, "t");
  register_view<3, int64_t, int64_t>(library, "transpose.int");
  register_view<4, int64_t, c10::SymInt>(library, "select.int");
  register_view<5, int64_t>(library, "unsqueeze");
  register_view<6, c10::SymIntArrayRef, bool>(library, "expand");
  register_view<7, at::IntArrayRef>(library, "permute");
  library.impl("detach", detach_kernel);
  library.impl("alias", alias_kernel);
  library.impl("lift_fresh", alias_kernel);
}

}  // namespace torch_xla
