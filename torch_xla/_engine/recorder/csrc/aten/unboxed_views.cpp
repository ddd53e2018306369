#include "aten/unboxed_views.h"

#include <torch/library.h>

#include <array>

#include "compat/torch_internal.h"
#include "dispatch/record.h"
#include "dispatch/view_and_inplace.h"
#include "registration.h"
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

// One slot per registered function: a kernel's function pointer has no room for its Op.
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

// The same elements in the same order: no step, no node.
Tensor detached(const Tensor& self) {
  static const Op* op = find_op("aten::alias");
  XlaTensor* x = maybe_xla(self);
  if (x == nullptr) {
    if (self.key_set().has(c10::DispatchKey::XLA) && self.is_meta()) {
      return compat::alias(self);  // of a fake tensor that torch is making
    }
    raise_not_xla(*op, 0, self, -1);
  }
  return x->make_alias();
}

Tensor twin(const Tensor& self) {
  Tensor same = detached(self);
  if (C10_UNLIKELY(same.is_inference())) {
    same.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(c10::VariableVersion::DISABLED));
  }
  return same;
}

template <int Slot, typename... Args>
void use(torch::Library& library, const char* name) {
  op_of<Slot>() = find_op(std::string("aten::") + name);
  if (op_of<Slot>() != nullptr) {
    library.impl(name, &view_kernel<Slot, Args...>);
  }
}

}  // namespace

void register_hot_views() {
  auto& library = implementations("aten");
  use<0, c10::SymIntArrayRef>(library, "view");
  use<1, int64_t, std::optional<c10::SymInt>, std::optional<c10::SymInt>, c10::SymInt>(library, "slice.Tensor");
  use<2>(library, "t");
  use<3, int64_t, int64_t>(library, "transpose.int");
  use<4, int64_t, c10::SymInt>(library, "select.int");
  use<5, int64_t>(library, "unsqueeze");
  use<6, c10::SymIntArrayRef, bool>(library, "expand");
  use<7, at::IntArrayRef>(library, "permute");
  library.impl("detach", detached);
  library.impl("alias", twin);
  library.impl("lift_fresh", twin);
}

}  // namespace torch_xla
