#include "registration.h"

#include <memory>
#include <unordered_map>

#include "attention.h"
#include "autocast.h"
#include "composites.h"
#include "copies.h"
#include "cpu_fallback.h"
#include "device_forms.h"
#include "hot_views.h"
#include "kernels.h"
#include "record.h"
#include "refusals.h"
#include "reshapes.h"

namespace torch_xla {
namespace {

using Kernel = void (*)(const Op&, torch::jit::Stack*);

struct BoxedKernel final : c10::OperatorKernel {
  BoxedKernel(const Op* op_, Kernel kernel_) : op(op_), kernel(kernel_) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { kernel(*op, stack); }
  const Op* op;
  Kernel kernel;
};

void unsupported_layout(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(
      false, op.operator_name(),
      ": sparse and quantized tensors do not exist on xla; call .to_dense() or .dequantize() before .to('xla')");
}

void no_nested_tensors(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.operator_name(),
                              ": nested tensors of the strided layout do not exist on xla; make them with "
                              "layout=torch.jagged");
}

}  // namespace

// Libraries own the registrations; kept for the life of the process.
torch::Library& library(const std::string& ns, c10::DispatchKey key) {
  static auto* libraries = new std::vector<std::unique_ptr<torch::Library>>;
  libraries->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, ns, key, __FILE__, __LINE__));
  return *libraries->back();
}

torch::Library& implementations(const std::string& ns) {
  static auto* by_namespace = new std::unordered_map<std::string, torch::Library*>;
  auto& lib = (*by_namespace)[ns];
  if (lib == nullptr) {
    lib = &library(ns, c10::DispatchKey::XLA);
  }
  return *lib;
}

bool is_hot_view(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::alias",        "aten::detach",  "aten::expand",
                                                     "aten::lift_fresh",   "aten::permute", "aten::select.int",
                                                     "aten::slice.Tensor", "aten::t",       "aten::transpose.int",
                                                     "aten::unsqueeze",    "aten::view"};
  return names.count(name) != 0;
}

namespace {

// Names that have a kernel of ours.
std::unordered_set<std::string>& taken() {
  static auto* names = new std::unordered_set<std::string>;
  return *names;
}

template <typename Function>
void special(const char* name, Function function) {
  implementations("aten").impl(name, function);
  taken().insert(std::string("aten::") + name);
}

void boxed(const std::string& name, const Op* op, Kernel kernel) {
  const size_t colons = name.find("::");
  implementations(name.substr(0, colons))
      .impl(name.substr(colons + 2).c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(op, kernel)));
  taken().insert(name);
}

bool is_tensor_or_list(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::TensorType ||
         (type->kind() == c10::TypeKind::ListType && type->containedType(0)->kind() == c10::TypeKind::TensorType);
}

bool writes(const c10::Argument& arg) { return arg.alias_info() != nullptr && arg.alias_info()->isWrite(); }

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

// x[mask]: as many elements as the mask has ones.
bool reads_by_mask(c10::ArrayRef<c10::IValue> arguments) {
  for (const auto& index : arguments[1].toListRef()) {
    if (is_mask(index)) {
      return true;
    }
  }
  return false;
}

// x[mask] = y is a select and stays on the device; a mask beside another index is a list of unknown length.
bool writes_by_mask_and_index(c10::ArrayRef<c10::IValue> arguments) {
  size_t given = 0;
  for (const auto& index : arguments[1].toListRef()) {
    given += index.isTensor() && index.toTensor().defined();
  }
  return given > 1 && reads_by_mask(arguments);
}

// Residuals are there where the rank, a value, is full.
bool has_residuals_by_values(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor();
  return !arguments[3].isNone() && (arguments[3].toStringRef() == "gelss" || arguments[3].toStringRef() == "gelsd") &&
         a.dim() >= 2 && a.size(-2) > a.size(-1);
}

// A complex number is refused for a real tensor unless its imaginary part is 0, and a float for an integer unless it
// fits: only its value tells.
bool converts_by_value(const c10::IValue& self, const c10::IValue& value) {
  const at::Tensor x = value.toTensor();
  return x.dim() == 0 && x.device().is_xla() && !c10::canCast(x.scalar_type(), self.toTensor().scalar_type());
}

bool fills_mask_by_value(c10::ArrayRef<c10::IValue> arguments) { return converts_by_value(arguments[0], arguments[2]); }

bool fills_index_by_value(c10::ArrayRef<c10::IValue> arguments) {
  return converts_by_value(arguments[0], arguments[3]);
}

bool puts_by_value(c10::ArrayRef<c10::IValue> arguments) {
  return writes_by_mask_and_index(arguments) ||
         (reads_by_mask(arguments) && converts_by_value(arguments[0], arguments[2]));
}

bool takes_indices(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::index.Tensor", "aten::_unsafe_index.Tensor",
                                                     "aten::index_put", "aten::_index_put_impl",
                                                     "aten::_unsafe_index_put"};
  return names.count(name) != 0;
}

const std::unordered_map<std::string, bool (*)(c10::ArrayRef<c10::IValue>)>& needs_cpu() {
  static const std::unordered_map<std::string, bool (*)(c10::ArrayRef<c10::IValue>)> table{
      {"aten::_index_put_impl", puts_by_value},
      {"aten::_unsafe_index.Tensor", reads_by_mask},
      {"aten::_unsafe_index_put", writes_by_mask_and_index},
      {"aten::index.Tensor", reads_by_mask},
      {"aten::index_fill.int_Tensor", fills_index_by_value},
      {"aten::index_put", puts_by_value},
      {"aten::linalg_lstsq", has_residuals_by_values},
      {"aten::masked_fill.Tensor", fills_mask_by_value},
  };
  return table;
}

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

using OpsByName = std::unordered_map<std::string, std::vector<const Op*>>;

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

// Registers `name` if it writes to arguments beside what it returns, and `name`_functional, which is recorded, returns
// the new values of those too.
bool register_side_writes(const OpsByName& recorded, const std::string& name, const c10::FunctionSchema& schema) {
  std::string base = schema.name();
  size_t aside = 0;  // written to, and not returned
  for (const auto& arg : schema.arguments()) {
    if (writes(arg) && arg.type()->kind() != c10::TypeKind::TensorType) {
      return false;  // a list: torch takes those apart
    }
    aside += writes(arg);
  }
  for (const auto& result : schema.returns()) {
    aside -= result.alias_info() != nullptr;
  }
  base = base.back() == '_' ? base.substr(0, base.size() - 1) : base;
  const Op* functional = aside == 0 ? nullptr : find_functional(recorded, base, schema, schema.arguments().size());
  if (functional == nullptr || functional->handle.schema().returns().size() != schema.returns().size() + aside) {
    return false;
  }
  boxed(name, add_form(name, functional), &record_side_writes);
  return true;
}

// Registers `name` if it is the step of a fused optimizer that has a functional form of ours.
bool register_fused(const std::string& name) {
  static const std::string prefix = "aten::_fused_";
  const size_t end = name.find("_.") == std::string::npos ? name.size() - 1 : name.find("_.");
  if (name.rfind(prefix, 0) != 0 || name[end] != '_') {
    return false;
  }
  const std::string plain = name.substr(prefix.size(), end - prefix.size()) + name.substr(end + 1);
  const Op* functional = find_op("torch_xla::fused_" + plain);
  if (functional == nullptr) {
    return false;
  }
  boxed(name, add_form(name, functional), &record_fused);
  return true;
}

// Registers `name` as a form of a recorded op if it is one.
bool register_form(const OpsByName& recorded, const std::string& name, const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  const auto& args = schema.arguments();
  if (register_fused(name) || register_side_writes(recorded, name, schema)) {
    return true;
  }
  const std::string& base = handle.operator_name().name;
  const bool inplace = base.back() == '_' && !args.empty() && writes(args[0]) && arguments_before_outs(schema) == -1 &&
                       args[0].type()->kind() == c10::TypeKind::TensorType;
  const int64_t before = arguments_before_outs(schema);
  const bool out = before >= 0 && before < static_cast<int64_t>(args.size());
  if (!inplace && !out) {
    return false;
  }
  const size_t n = inplace ? args.size() : static_cast<size_t>(before);
  const Op* functional = find_functional(recorded, inplace ? base.substr(0, base.size() - 1) : base, schema, n);
  if (functional == nullptr || (out && functional->is_view)) {
    return false;
  }
  const Op* op = add_form(name, functional);
  boxed(name, op, out ? &record_out : functional->is_view ? &record_inplace_view : &record_inplace);
  return true;
}

bool has_default_that_needs_out(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

}  // namespace

void register_special_kernels() {
  for (const char* name : {"_nested_tensor_from_tensor_list", "_nested_tensor_from_mask", "_nested_from_padded",
                           "_nested_view_from_buffer"}) {
    implementations("aten").impl(name, torch::CppFunction::makeFromBoxedFunction<&no_nested_tensors>());
    taken().insert(std::string("aten::") + name);
  }
  special("_to_copy", to_copy);
  special("copy", copy);
  special("copy_", copy_);
  special("_copy_from", copy_from);
  special("_copy_from_and_resize", copy_from_and_resize);
  special("_local_scalar_dense", local_scalar_dense);
  special("native_batch_norm", native_batch_norm);
  special("native_batch_norm.out", native_batch_norm_out);
  special("_amp_foreach_non_finite_check_and_unscale_", amp_unscale_);
  special("_amp_update_scale_", amp_update_scale_);
  // Returns a list and a tensor, which no boxed kernel here does; torch makes it of the one above.
  taken().insert("aten::_amp_foreach_non_finite_check_and_unscale");
  special("_native_batch_norm_legit", native_batch_norm_legit);
  special("_native_batch_norm_legit.out", native_batch_norm_legit_out);
  special("_propagate_xla_data", propagate_xla_data);
  special("resize_", resize_);
  special("full", full);
  special("_efficientzerotensor", efficient_zeros);
  special("_weight_norm_interface_backward", weight_norm_backward);
  special("set_.source_Tensor", set_source_tensor);
  register_attention();
  register_composites();
  special("set_.source_Storage", set_whole_storage);
  special("set_.source_Storage_storage_offset", set_source_storage);
  special("is_set_to", is_set_to);
  for (auto key : {c10::DispatchKey::XLA, c10::DispatchKey::AutogradXLA}) {
    library("aten", key).impl("reshape", reshape);
    library("aten", key).impl("flatten.using_ints", flatten);
    library("aten", key).impl("resolve_conj", resolve_conj);
    library("aten", key).impl("resolve_neg", resolve_neg);
  }
  library("_", c10::DispatchKey::XLA).fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  library("_", c10::DispatchKey::AutocastXLA).fallback(torch::CppFunction::makeFallthrough());
  register_autocast();
  for (auto key : {c10::DispatchKey::QuantizedCPU, c10::DispatchKey::QuantizedXLA}) {
    library("aten", key).impl("_to_copy", quantized_to_copy);
  }
  for (auto key : {c10::DispatchKey::SparseXLA, c10::DispatchKey::QuantizedXLA}) {
    library("_", key).fallback(torch::CppFunction::makeFromBoxedFunction<&unsupported_layout>());
  }
}

namespace {

Kernel kernel_of(const Op& op) {
  if (op.is_view) {
    return &record_view;
  }
  // Where torch has a kernel for all devices that takes the lists apart.
  const bool foreach = op.name.rfind("aten::_foreach_", 0) == 0 &&
                       op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  return foreach ? &record_foreach : op.takes_device ? &record_factory : &record;
}

}  // namespace

bool register_recorded(const std::string& name, const std::unordered_set<std::string>& baked, bool random) {
  Op* op = add_op(name, baked, random);
  if (op == nullptr) {
    return false;
  }
  op->is_view = is_view(op->handle.schema());
  op->cpu_indices = takes_indices(name);
  const auto cpu = needs_cpu().find(name);
  op->needs_cpu = cpu == needs_cpu().end() ? nullptr : cpu->second;
  // A kernel for an op that is made of others would keep autograd from seeing the others; its rule serves
  // decompositions.
  const bool composite = op->handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (is_hot_view(name)) {
    taken().insert(name);
  } else if (taken().count(name) == 0 && !composite) {
    boxed(name, op, kernel_of(*op));
  }
  return true;
}

std::pair<int64_t, int64_t> register_forms() {
  register_hot_views();
  OpsByName recorded;
  for (const Op* op : all_ops()) {
    recorded[op->handle.operator_name().name].push_back(op);
  }
  int64_t forms = 0;
  int64_t to_cpu = 0;
  for (const auto& operator_name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (operator_name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const std::string name = qualified_name(operator_name);
    const auto handle = c10::Dispatcher::singleton().findSchema(operator_name);
    if (!handle.has_value() || taken().count(name) != 0 ||
        handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      continue;
    }
    if (register_form(recorded, name, *handle)) {
      ++forms;
    } else if (is_functional(handle->schema()) && has_default_that_needs_out(*handle)) {
      // torch's default would call an out= form that does not exist here; the CPU knows the op itself.
      implementations("aten").impl(name.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
      ++to_cpu;
    }
  }
  return {forms, to_cpu};
}

}  // namespace torch_xla
