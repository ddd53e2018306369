#include "dispatch/schema_kind.h"

#include <unordered_set>

#include "dispatch/factories.h"
#include "dispatch/foreach.h"
#include "dispatch/out_variants.h"
#include "dispatch/record.h"
#include "dispatch/view_and_inplace.h"

namespace torch_xla {
namespace {

bool is_tensor_or_list(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType ||
         (type->kind() == c10::TypeKind::ListType && type->containedType(0)->kind() == c10::TypeKind::TensorType);
}

bool writes(const c10::Argument& arg) { return arg.alias_info() != nullptr && arg.alias_info()->isWrite(); }

// The number of arguments after which only tensors to write to follow; -1 if the op writes to any before.
int64_t arguments_before_outs(const c10::FunctionSchema& schema) {
  const auto& args = schema.arguments();
  size_t end = args.size();
  while (end > 0 && args[end - 1].kwarg_only() && writes(args[end - 1]) &&
         args[end - 1].type()->kind() == c10::TypeKind::TensorType) {
    --end;
  }
  for (size_t i = 0; i < end; ++i) {
    if (writes(args[i])) {
      return -1;
    }
  }
  return static_cast<int64_t>(end);
}

// Whether `b` takes the first `n` arguments of `a`, and besides them only what an out tensor says itself.
bool same_arguments(const c10::FunctionSchema& a, const c10::FunctionSchema& b, size_t n) {
  static const std::unordered_set<std::string> of_factories{"dtype", "layout", "device", "pin_memory"};
  if (a.arguments().size() < n || b.arguments().size() < n) {
    return false;
  }
  for (size_t i = n; i < b.arguments().size(); ++i) {
    if (of_factories.count(b.arguments()[i].name()) == 0) {
      return false;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (a.arguments()[i].name() != b.arguments()[i].name() || *a.arguments()[i].type() != *b.arguments()[i].type()) {
      return false;
    }
  }
  return true;
}

const Op* find_functional(const OpsByName& recorded, const std::string& base, const c10::FunctionSchema& schema,
                          size_t n) {
  for (const std::string& name : {base, base + "_functional"}) {
    const auto found = recorded.find(name);
    if (found == recorded.end()) {
      continue;
    }
    for (const Op* op : found->second) {
      if (same_arguments(schema, op->handle.schema(), n)) {
        return op;
      }
    }
  }
  return nullptr;
}

// Of an op that writes to arguments beside what it returns, where `name`_functional, which is recorded, returns the new
// values of those too.
MutatingOverload side_writes_form(const OpsByName& recorded, const c10::FunctionSchema& schema) {
  std::string base = schema.name();
  size_t aside = 0;  // written to, and not returned
  for (const auto& arg : schema.arguments()) {
    if (writes(arg) && arg.type()->kind() != c10::TypeKind::TensorType) {
      return {};  // a list: torch takes those apart
    }
    aside += writes(arg);
  }
  for (const auto& result : schema.returns()) {
    aside -= result.alias_info() != nullptr;
  }
  base = base.back() == '_' ? base.substr(0, base.size() - 1) : base;
  const Op* functional = aside == 0 ? nullptr : find_functional(recorded, base, schema, schema.arguments().size());
  if (functional == nullptr || functional->handle.schema().returns().size() != schema.returns().size() + aside) {
    return {};
  }
  return {functional, &record_extra_mutations};
}

// Of the step of a fused optimizer that has a functional form of ours.
MutatingOverload fused_form(const std::string& name) {
  static const std::string prefix = "aten::_fused_";
  const size_t end = name.find("_.") == std::string::npos ? name.size() - 1 : name.find("_.");
  if (name.rfind(prefix, 0) != 0 || name[end] != '_') {
    return {};
  }
  const std::string plain = name.substr(prefix.size(), end - prefix.size()) + name.substr(end + 1);
  const Op* functional = find_op("torch_xla::fused_" + plain);
  return functional == nullptr ? MutatingOverload() : MutatingOverload{functional, &record_fused};
}

// Of an op on lists in place, where torch's kernel for all devices takes the lists apart.
MutatingOverload foreach_form(const OpsByName& recorded, const c10::OperatorHandle& handle) {
  const std::string& name = handle.operator_name().name;
  if (name.rfind("aten::_foreach_", 0) != 0 || name.back() != '_' || !writes(handle.schema().arguments()[0]) ||
      !handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
    return {};
  }
  const Op* functional =
      find_functional(recorded, name.substr(0, name.size() - 1), handle.schema(), handle.schema().arguments().size());
  return functional == nullptr ? MutatingOverload() : MutatingOverload{functional, &record_foreach_inplace};
}

// Of an op in place, or out=.
MutatingOverload written_form(const OpsByName& recorded, const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  const auto& args = schema.arguments();
  const std::string& base = handle.operator_name().name;
  const int64_t before = arguments_before_outs(schema);
  const bool inplace = base.back() == '_' && !args.empty() && writes(args[0]) && before == -1 &&
                       args[0].type()->kind() == c10::TypeKind::TensorType;
  const bool out = before >= 0 && before < static_cast<int64_t>(args.size());
  if (!inplace && !out) {
    return {};
  }
  const size_t n = inplace ? args.size() : static_cast<size_t>(before);
  const Op* functional = find_functional(recorded, inplace ? base.substr(0, base.size() - 1) : base, schema, n);
  if (functional == nullptr || (out && functional->is_view)) {
    return {};
  }
  return {functional, out ? &record_out : functional->is_view ? &record_inplace_view : &record_inplace};
}

}  // namespace

bool is_functional(const c10::FunctionSchema& schema) {
  for (const auto& arg : schema.arguments()) {
    if (arg.alias_info() != nullptr) {
      return false;
    }
  }
  for (const auto& result : schema.returns()) {
    if (!is_tensor_or_list(result.type())) {
      return false;
    }
  }
  return !schema.returns().empty();
}

bool is_view(const c10::FunctionSchema& schema) {
  const auto& args = schema.arguments();
  return !args.empty() && args[0].alias_info() != nullptr && !writes(args[0]) && schema.returns().size() == 1 &&
         is_tensor_or_list(schema.returns()[0].type());
}

Kernel kernel_of(const Op& op) {
  if (op.is_view) {
    return &record_view;
  }
  // Where torch has a kernel for all devices that takes the lists apart.
  const bool foreach = op.foreach && op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  return foreach ? &record_foreach : op.takes_device ? &record_factory : &record;
}

OpsByName recorded_ops() {
  OpsByName recorded;
  for (const Op* op : all_ops()) {
    recorded[op->handle.operator_name().name].push_back(op);
  }
  return recorded;
}

MutatingOverload find_functional(const OpsByName& recorded, const std::string& name,
                                 const c10::OperatorHandle& handle) {
  for (const MutatingOverload& form :
       {fused_form(name), side_writes_form(recorded, handle.schema()), foreach_form(recorded, handle)}) {
    if (form.functional != nullptr) {
      return form;
    }
  }
  return written_form(recorded, handle);
}

}  // namespace torch_xla
