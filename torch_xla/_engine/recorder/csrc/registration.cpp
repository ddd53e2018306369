#include "registration.h"

#include <memory>
#include <unordered_map>

#include "aten/attention.h"
#include "aten/autocast.h"
#include "aten/batch_norm.h"
#include "aten/composites.h"
#include "aten/device_specific_ops.h"
#include "aten/linear.h"
#include "aten/reshape.h"
#include "aten/storage_ops.h"
#include "aten/unboxed_views.h"
#include "dispatch/copy.h"
#include "dispatch/cpu_fallback.h"
#include "dispatch/data_dependent.h"
#include "dispatch/factories.h"
#include "dispatch/schema_kind.h"

namespace torch_xla {
namespace {

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

bool has_unboxed_view_kernel(const std::string& name) {
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
  register_linear();
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

bool takes_indices(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::index.Tensor", "aten::_unsafe_index.Tensor",
                                                     "aten::index_put", "aten::_index_put_impl",
                                                     "aten::_unsafe_index_put"};
  return names.count(name) != 0;
}

}  // namespace

bool register_recorded(const std::string& name, const std::unordered_set<std::string>& baked, bool random) {
  Op* op = add_op(name, baked, random);
  if (op == nullptr) {
    return false;
  }
  op->is_view = is_view(op->handle.schema());
  op->cpu_indices = takes_indices(name);
  op->needs_cpu = depends_on_values(name);
  // A kernel for an op that is made of others would keep autograd from seeing the others; its rule serves
  // decompositions. An op with a CPU kernel as well (silu_backward) has a derivative of its own or none, as on the CPU,
  // and its parts would round to 16 bits one by one.
  const bool composite = op->handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !op->handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (has_unboxed_view_kernel(name)) {
    taken().insert(name);
  } else if (taken().count(name) == 0 && !composite) {
    boxed(name, op, kernel_of(*op));
  }
  return true;
}

std::pair<int64_t, int64_t> register_forms() {
  register_hot_views();
  const OpsByName recorded = recorded_ops();
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
    if (const MutatingOverload form = find_functional(recorded, name, *handle); form.functional != nullptr) {
      boxed(name, add_form(name, form.functional), form.kernel);
      ++forms;
    } else if (is_functional(handle->schema()) &&
               handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      // torch's default would call an out= form that does not exist here; the CPU knows the op itself.
      implementations("aten").impl(name.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
      ++to_cpu;
    }
  }
  return {forms, to_cpu};
}

}  // namespace torch_xla
