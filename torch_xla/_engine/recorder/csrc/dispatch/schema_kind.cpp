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

// Returns the number of arguments before the trailing out arguments; -1 if the op writes to any of them.
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

// Returns whether `b` takes the first `n` arguments of `a`, and otherwise only factory arguments, which an out tensor
// implies.
bool same_arguments(const c10::FunctionSchema& a, const c10::FunctionSchema& b, size_t n) {
  static const std::unordered_set<std::string> factory_arguments{"dtype", "layout", "device", "pin_memory"};
  if (a.arguments().size() < n || b.arguments().size() < n) {
    return false;
  }
  for (size_t i = n; i < b.arguments().size(); ++i) {
    if (factory_arguments.count(b.arguments()[i].name()) == 0) {
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

// For an op that writes to arguments it does not return, if NAME_functional is recorded, which returns their new values
// too.
MutatingOverload find_extra_mutations(const OpsByName& recorded, const c10::FunctionSchema& schema) {
  std::string base = schema.name();
  size_t extra = 0;  // written to, but not returned
  for (const auto& arg : schema.arguments()) {
    if (writes(arg) && arg.type()->kind() != c10::TypeKind::TensorType) {
      return {};  // a list: torch decomposes those
    }
    extra += writes(arg);
  }
  for (const auto& result : schema.returns()) {
    extra -= result.alias_info() != nullptr;
  }
  base = base.back() == '_' ? base.substr(0, base.size() - 1) : base;
  const Op* functional = extra == 0 ? nullptr : find_functional(recorded, base, schema, schema.arguments().size());
  if (functional == nullptr || functional->handle.schema().returns().size() != schema.returns().size() + extra) {
    return {};
  }
  return {functional, &record_extra_mutations};
}

// For a fused optimizer step that has a functional op in torch_xla.
MutatingOverload find_fused(const std::string& name) {
  static const std::string prefix = "aten::_fused_";
  const size_t end = name.find("_.") == std::string::npos ? name.size() - 1 : name.find("_.");
  if (name.rfind(prefix, 0) != 0 || name[end] != '_') {
    return {};
  }
  const std::string plain = name.substr(prefix.size(), end - prefix.size()) + name.substr(end + 1);
  const Op* functional = find_op("torch_xla::fused_" + plain);
  return functional == nullptr ? MutatingOverload() : MutatingOverload{functional, &record_fused};
}

// For an in-place op on lists, if torch's composite kernel is a loop.
MutatingOverload find_foreach(const OpsByName& recorded, const c10::OperatorHandle& handle) {
  const std::string& name = handle.operator_name().name;
  if (name.rfind("aten::_foreach_", 0) != 0 || name.back() != '_' || !writes(handle.schema().arguments()[0]) ||
      !handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
    return {};
  }
  const Op* functional =
      find_functional(recorded, name.substr(0, name.size() - 1), handle.schema(), handle.schema().arguments().size());
  return functional == nullptr ? MutatingOverload() : MutatingOverload{functional, &record_foreach_inplace};
}

// For an in-place op, or an out= variant.
MutatingOverload find_inplace_or_out(const OpsByName& recorded, const c10::OperatorHandle& handle) {
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

Kernel select_kernel(const Op& op) {
  if (op.is_view) {
    return &record_view;
  }
  // Only if torch has a composite kernel that loops over the lists.
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
  for (const MutatingOverload& variant :
       {find_fused(name), find_extra_mutations(recorded, handle.schema()), find_foreach(recorded, handle)}) {
    if (variant.functional != nullptr) {
      return variant;
    }
  }
  return find_inplace_or_out(recorded, handle);
}

}  // namespace torch_xla
