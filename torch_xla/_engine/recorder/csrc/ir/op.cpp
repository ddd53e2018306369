#include "ir/op.h"

#include <ATen/core/jit_type.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "support/fork_safe_lock.h"

namespace torch_xla {
namespace {

bool constant_numbers = true;  // set once, before recording starts

c10::TypePtr element_or_self(const c10::TypePtr& type, c10::TypeKind container) {
  return type->kind() == container ? type->containedType(0) : type;
}

ArgKind classify_argument(const c10::Argument& arg, const std::unordered_set<std::string>& static_args) {
  const c10::TypePtr type = element_or_self(arg.real_type(), c10::TypeKind::OptionalType);
  const bool is_list = type->kind() == c10::TypeKind::ListType;
  const c10::TypePtr element =
      element_or_self(element_or_self(type, c10::TypeKind::ListType), c10::TypeKind::OptionalType);
  switch (element->kind()) {
    case c10::TypeKind::TensorType:
      return is_list ? ArgKind::kTensorList : ArgKind::kTensor;
    case c10::TypeKind::NumberType:
      return static_args.count(arg.name()) ? ArgKind::kAttribute : is_list ? ArgKind::kScalars : ArgKind::kScalar;
    case c10::TypeKind::DeviceObjType:
      return ArgKind::kDevice;
    case c10::TypeKind::GeneratorType:
      return ArgKind::kGenerator;
    case c10::TypeKind::ScalarTypeType:
      return ArgKind::kDtype;
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return ArgKind::kIgnored;
    default:
      return arg.name() == "pin_memory" || arg.name() == "non_blocking" ? ArgKind::kIgnored : ArgKind::kAttribute;
  }
}

// Returns whether torch converts the op's numbers to the result dtype and raises on overflow; in arithmetic they wrap
// around. The in-place variant of an op has its name with an underscore.
bool numbers_become_elements(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::clamp",
                                                     "aten::clamp_max",
                                                     "aten::clamp_min",
                                                     "aten::constant_pad_nd",
                                                     "aten::fill.Scalar",
                                                     "aten::full",
                                                     "aten::full_like",
                                                     "aten::index_fill.int_Scalar",
                                                     "aten::new_full",
                                                     "aten::masked_fill.Scalar",
                                                     "aten::scatter.value",
                                                     "aten::scalar_tensor",
                                                     "aten::threshold",
                                                     "aten::where.self",
                                                     "aten::_foreach_clamp_max.Scalar",
                                                     "aten::_foreach_clamp_max.ScalarList",
                                                     "aten::_foreach_clamp_min.Scalar",
                                                     "aten::_foreach_clamp_min.ScalarList",
                                                     "aten::_foreach_maximum.Scalar",
                                                     "aten::_foreach_maximum.ScalarList",
                                                     "aten::_foreach_minimum.Scalar",
                                                     "aten::_foreach_minimum.ScalarList"};
  std::string base = name;
  const size_t underscore = base.find("_.");
  if (underscore != std::string::npos) {
    base.erase(underscore, 1);
  } else if (base.back() == '_') {
    base.pop_back();
  }
  return names.count(base) != 0;
}

// Sets which argument is the start of the slice that an op reads or writes.
void set_range_argument(Op& op) {
  struct RangeArgument {
    RangeKind kind;
    uint8_t start;
  };
  static const std::unordered_map<std::string, RangeArgument> range_arguments{
      {"aten::slice.Tensor", {RangeKind::kSlice, 2}},    {"aten::slice_copy.Tensor", {RangeKind::kSlice, 2}},
      {"aten::slice_scatter", {RangeKind::kSlice, 3}},   {"aten::slice_backward", {RangeKind::kSlice, 3}},
      {"aten::narrow_copy", {RangeKind::kLength, 2}},    {"aten::select.int", {RangeKind::kIndex, 2}},
      {"aten::select_copy.int", {RangeKind::kIndex, 2}}, {"aten::select_scatter", {RangeKind::kIndex, 3}},
      {"aten::select_backward", {RangeKind::kIndex, 3}}};
  const auto found = range_arguments.find(op.name);
  if (found != range_arguments.end()) {
    op.range_kind = found->second.kind;
    op.start = found->second.start;
  }
}

const Op* make_pseudo_op(const char* name) {
  // torch requires a schema for the handle; only the name is used.
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::alias", "");
  auto* op = new Op(handle, {}, false);
  op->name = name;
  op->key = Key{};
  op->key.mix(std::string_view(op->name));
  return op;
}

struct OpTable {
  std::shared_mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Op>> ops;
};

OpTable& op_table() {
  static auto* t = new OpTable;
  return *t;
}

const ForkSafeLock ops_fork_safe(op_table().mutex);

}  // namespace

void set_constant_numbers(bool enabled) { constant_numbers = enabled; }

std::string qualified_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

Op::Op(const c10::OperatorHandle& handle_, const std::unordered_set<std::string>& static_args, bool random_)
    : name(qualified_name(handle_.operator_name())), handle(handle_), random(random_) {
  for (const auto& arg : handle.schema().arguments()) {
    kinds.push_back(classify_argument(arg, static_args));
    arg_names.push_back(arg.name());
    takes_device |= kinds.back() == ArgKind::kDevice;
  }
  key.mix(std::string_view(name));
  may_overlap = name == "aten::expand" || name == "aten::as_strided" || name == "aten::unfold";
  set_range_argument(*this);
  converts_numbers = numbers_become_elements(name);
  foreach
    = name.rfind("aten::_foreach_", 0) == 0;
  pointwise = handle.hasTag(at::Tag::pointwise) && name.rfind("aten::", 0) == 0;
  const auto& returns = handle.schema().returns();
  returns_list = returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType;
  const std::string& qualified = handle.operator_name().name;
  recorded = counter("xla::" + qualified.substr(qualified.find("::") + 2));
}

bool is_constant_number(const c10::IValue& value) {
  if (value.isInt()) {
    return constant_numbers && value.toInt() >= -1 && value.toInt() <= 1;
  }
  if (value.isDouble()) {
    const double d = value.toDouble();
    return constant_numbers && ((d == 0 && !std::signbit(d)) || d == 1 || d == -1);
  }
  return !value.isComplexDouble();
}

const Op* getitem_op() {
  static const Op* op = make_pseudo_op("torch_xla::getitem");
  return op;
}

const Op* seed_op() {
  static const Op* op = make_pseudo_op("torch_xla::seed");
  return op;
}

const Op* find_op(const std::string& name) {
  std::shared_lock<std::shared_mutex> lock(op_table().mutex);
  const auto found = op_table().ops.find(name);
  return found == op_table().ops.end() ? nullptr : found->second.get();
}

Op* add_op(const std::string& name, const std::unordered_set<std::string>& static_args, bool random) {
  const size_t dot = name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  if (!handle.has_value()) {
    return nullptr;
  }
  std::unique_lock<std::shared_mutex> lock(op_table().mutex);
  auto& slot = op_table().ops[name];
  if (!slot) {
    slot = std::make_unique<Op>(*handle, static_args, random);
  }
  return slot.get();
}

void mark_decomposition(const std::string& name) {
  std::unique_lock<std::shared_mutex> lock(op_table().mutex);
  const auto found = op_table().ops.find(name);
  TORCH_CHECK(found != op_table().ops.end(), "mark_decomposition: ", name, " is not recorded");
  found->second->decomposes = true;
}

const Op* add_variant(const std::string& name, const Op* functional) {
  std::unordered_set<std::string> static_args;
  for (size_t i = 0; i < functional->kinds.size(); ++i) {
    if (functional->kinds[i] == ArgKind::kAttribute) {
      static_args.insert(functional->arg_names[i]);
    }
  }
  Op* op = add_op(name, static_args, functional->random);
  op->functional = functional;
  op->pointwise = functional->pointwise;
  op->needs_cpu = functional->needs_cpu;
  op->cpu_indices = functional->cpu_indices;
  op->decomposes = functional->decomposes;
  op->uniform = name == "aten::zero_" || name == "aten::fill_.Scalar";
  return op;
}

std::vector<const Op*> all_ops() {
  std::shared_lock<std::shared_mutex> lock(op_table().mutex);
  std::vector<const Op*> out;
  for (const auto& [name, op] : op_table().ops) {
    out.push_back(op.get());
  }
  return out;
}

}  // namespace torch_xla
