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

bool constant_numbers = true;  // set once, before anything is recorded

c10::TypePtr element_or_self(const c10::TypePtr& type, c10::TypeKind container) {
  return type->kind() == container ? type->containedType(0) : type;
}

ArgKind kind_of(const c10::Argument& arg, const std::unordered_set<std::string>& baked) {
  const c10::TypePtr type = element_or_self(arg.real_type(), c10::TypeKind::OptionalType);
  const bool is_list = type->kind() == c10::TypeKind::ListType;
  const c10::TypePtr element =
      element_or_self(element_or_self(type, c10::TypeKind::ListType), c10::TypeKind::OptionalType);
  switch (element->kind()) {
    case c10::TypeKind::TensorType:
      return is_list ? ArgKind::kTensorList : ArgKind::kTensor;
    case c10::TypeKind::NumberType:
      return baked.count(arg.name()) ? ArgKind::kAttribute : is_list ? ArgKind::kScalars : ArgKind::kScalar;
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

// Ops of torch that convert a number to the dtype of their result and refuse one that does not fit; in arithmetic it
// wraps around. In-place forms have the names of the ops with an underscore.
bool becomes_elements(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::clamp",         "aten::clamp_max",
                                                     "aten::clamp_min",     "aten::constant_pad_nd",
                                                     "aten::fill.Scalar",   "aten::full",
                                                     "aten::full_like",     "aten::index_fill.int_Scalar",
                                                     "aten::new_full",      "aten::masked_fill.Scalar",
                                                     "aten::scatter.value", "aten::scalar_tensor",
                                                     "aten::threshold",     "aten::where.self"};
  std::string base = name;
  const size_t underscore = base.find("_.");
  if (underscore != std::string::npos) {
    base.erase(underscore, 1);
  } else if (base.back() == '_') {
    base.pop_back();
  }
  return names.count(base) != 0;
}

// Which argument says where the part of one dimension starts that an op reads or writes.
void find_start(Op& op) {
  struct Place {
    PartForm form;
    uint8_t start;
  };
  static const std::unordered_map<std::string, Place> places{
      {"aten::slice.Tensor", {PartForm::kSlice, 2}},    {"aten::slice_copy.Tensor", {PartForm::kSlice, 2}},
      {"aten::slice_scatter", {PartForm::kSlice, 3}},   {"aten::slice_backward", {PartForm::kSlice, 3}},
      {"aten::narrow_copy", {PartForm::kLength, 2}},    {"aten::select.int", {PartForm::kIndex, 2}},
      {"aten::select_copy.int", {PartForm::kIndex, 2}}, {"aten::select_scatter", {PartForm::kIndex, 3}},
      {"aten::select_backward", {PartForm::kIndex, 3}}};
  const auto found = places.find(op.name);
  if (found != places.end()) {
    op.part = found->second.form;
    op.start = found->second.start;
  }
}

const Op* special(const char* name) {
  // A schema of torch lends the handle; only the name is ever used.
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

const ForkSafeLock ops_held(op_table().mutex);

}  // namespace

void set_constant_numbers(bool enabled) { constant_numbers = enabled; }

std::string qualified_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

Op::Op(const c10::OperatorHandle& handle_, const std::unordered_set<std::string>& baked, bool random_)
    : name(qualified_name(handle_.operator_name())), handle(handle_), random(random_) {
  for (const auto& arg : handle.schema().arguments()) {
    kinds.push_back(kind_of(arg, baked));
    arg_names.push_back(arg.name());
    takes_device |= kinds.back() == ArgKind::kDevice;
  }
  key.mix(std::string_view(name));
  may_overlap = name == "aten::expand" || name == "aten::as_strided" || name == "aten::unfold";
  find_start(*this);
  converts_numbers = becomes_elements(name);
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
  static const Op* op = special("torch_xla::getitem");
  return op;
}

const Op* seed_op() {
  static const Op* op = special("torch_xla::seed");
  return op;
}

const Op* find_op(const std::string& name) {
  std::shared_lock<std::shared_mutex> lock(op_table().mutex);
  const auto found = op_table().ops.find(name);
  return found == op_table().ops.end() ? nullptr : found->second.get();
}

Op* add_op(const std::string& name, const std::unordered_set<std::string>& baked, bool random) {
  const size_t dot = name.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  if (!handle.has_value()) {
    return nullptr;
  }
  std::unique_lock<std::shared_mutex> lock(op_table().mutex);
  auto& slot = op_table().ops[name];
  if (!slot) {
    slot = std::make_unique<Op>(*handle, baked, random);
  }
  return slot.get();
}

const Op* add_form(const std::string& name, const Op* functional) {
  std::unordered_set<std::string> baked;
  for (size_t i = 0; i < functional->kinds.size(); ++i) {
    if (functional->kinds[i] == ArgKind::kAttribute) {
      baked.insert(functional->arg_names[i]);
    }
  }
  Op* op = add_op(name, baked, functional->random);
  op->functional = functional;
  op->pointwise = functional->pointwise;
  op->needs_cpu = functional->needs_cpu;
  op->cpu_indices = functional->cpu_indices;
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
