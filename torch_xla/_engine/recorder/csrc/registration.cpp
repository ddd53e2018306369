#include "registration.h"

#include <memory>
#include <unordered_map>

#include "aten/attention.h"
#include "aten/autocast.h"
#include "aten/batch_norm.h"
#include "aten/composites.h"
#include "aten/device_specific_ops.h"
#include "aten/linear.h"
#include "aten/recurrent.h"
#include "aten/reshape.h"
#include "aten/storage_ops.h"
#include "aten/unboxed_views.h"
#include "dispatch/copy.h"
#include "dispatch/cpu_fallback.h"
#include "dispatch/data_dependent.h"
#include "dispatch/factories.h"
#include "dispatch/library.h"
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

bool has_unboxed_view_kernel(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::alias",        "aten::detach",  "aten::expand",
                                                     "aten::lift_fresh",   "aten::permute", "aten::select.int",
                                                     "aten::slice.Tensor", "aten::t",       "aten::transpose.int",
                                                     "aten::unsqueeze",    "aten::view"};
  return names.count(name) != 0;
}

namespace {

// Names of overloads that have a kernel of the recorder.
std::unordered_set<std::string>& registered_names() {
  static auto* names = new std::unordered_set<std::string>;
  return *names;
}

template <typename Function>
void register_kernel(const char* name, Function function) {
  implementations("aten").impl(name, function);
  registered_names().insert(std::string("aten::") + name);
}

void register_boxed(const std::string& name, const Op* op, Kernel kernel) {
  const size_t colons = name.find("::");
  implementations(name.substr(0, colons))
      .impl(name.substr(colons + 2).c_str(),
            torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(op, kernel)));
  registered_names().insert(name);
}

}  // namespace

void register_special_kernels() {
  for (const char* name : {"_nested_tensor_from_tensor_list", "_nested_tensor_from_mask", "_nested_from_padded",
                           "_nested_view_from_buffer"}) {
    implementations("aten").impl(name, torch::CppFunction::makeFromBoxedFunction<&no_nested_tensors>());
    registered_names().insert(std::string("aten::") + name);
  }
  register_kernel("_to_copy", to_copy);
  register_kernel("copy", copy);
  register_kernel("copy_", copy_);
  register_kernel("_copy_from", copy_from);
  register_kernel("_copy_from_and_resize", copy_from_and_resize);
  register_kernel("_local_scalar_dense", local_scalar_dense);
  register_kernel("native_batch_norm", native_batch_norm);
  register_kernel("native_batch_norm.out", native_batch_norm_out);
  register_kernel("_amp_foreach_non_finite_check_and_unscale_", amp_unscale_);
  register_kernel("_amp_update_scale_", amp_update_scale_);
  // Returns a list and a tensor, which no boxed kernel supports; torch derives it from the in-place op above.
  registered_names().insert("aten::_amp_foreach_non_finite_check_and_unscale");
  register_kernel("_native_batch_norm_legit", native_batch_norm_legit);
  register_kernel("_native_batch_norm_legit.out", native_batch_norm_legit_out);
  register_kernel("_propagate_xla_data", propagate_xla_data);
  register_kernel("resize_", resize_);
  register_kernel("full", full);
  register_kernel("_efficientzerotensor", efficient_zeros);
  register_kernel("_weight_norm_interface_backward", weight_norm_backward);
  register_kernel("set_.source_Tensor", set_source_tensor);
  register_attention();
  register_linear();
  register_recurrent();
  register_composites();
  register_kernel("set_.source_Storage", set_whole_storage);
  register_kernel("set_.source_Storage_storage_offset", set_source_storage);
  register_kernel("is_set_to", is_set_to);
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
  // Compressed layouts: torch makes them by functions that do not dispatch. `to` has the key of its result.
  for (auto key : {c10::DispatchKey::XLA, c10::DispatchKey::SparseCsrXLA}) {
    for (const char* name :
         {"sparse_compressed_tensor.comp_plain_value_size", "sparse_compressed_tensor.comp_plain_value",
          "_sparse_compressed_tensor_unsafe", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"}) {
      library("aten", key).impl(name, torch::CppFunction::makeFromBoxedFunction<&unsupported_layout>());
    }
  }
  library("aten", c10::DispatchKey::SparseCsrXLA)
      .impl("_to_copy", torch::CppFunction::makeFromBoxedFunction<&unsupported_layout>());
}

namespace {

bool takes_indices(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::index.Tensor", "aten::_unsafe_index.Tensor",
                                                     "aten::index_put", "aten::_index_put_impl",
                                                     "aten::_unsafe_index_put"};
  return names.count(name) != 0;
}

}  // namespace

bool register_recorded(const std::string& name, const std::unordered_set<std::string>& static_args, bool random) {
  Op* op = add_op(name, static_args, random);
  if (op == nullptr) {
    return false;
  }
  op->is_view = is_view(op->handle.schema());
  op->cpu_indices = takes_indices(name);
  op->needs_cpu = depends_on_values(name);
  // A kernel for a composite op would hide its components from autograd; its lowering rule serves decompositions. A
  // composite op that also has a CPU kernel (silu_backward) has its own derivative or none, as on the CPU, and
  // decomposed it would round to 16 bits after each component.
  const bool composite = op->handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                         !op->handle.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (has_unboxed_view_kernel(name)) {
    registered_names().insert(name);
  } else if (registered_names().count(name) == 0 && !composite) {
    register_boxed(name, op, select_kernel(*op));
  }
  return true;
}

std::pair<int64_t, int64_t> register_variants() {
  register_unboxed_views();
  const OpsByName recorded = recorded_ops();
  int64_t variants = 0;
  int64_t to_cpu = 0;
  for (const auto& operator_name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (operator_name.name.rfind("aten::", 0) != 0) {
      continue;
    }
    const std::string name = qualified_name(operator_name);
    const auto handle = c10::Dispatcher::singleton().findSchema(operator_name);
    if (!handle.has_value() || registered_names().count(name) != 0 ||
        handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
      continue;
    }
    if (const MutatingOverload variant = find_functional(recorded, name, *handle); variant.functional != nullptr) {
      register_boxed(name, add_variant(name, variant.functional), variant.kernel);
      ++variants;
    } else if (is_functional(handle->schema()) &&
               handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) {
      // torch's default would call an out= variant that does not exist here; the CPU has a kernel for the op itself.
      implementations("aten").impl(name.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
      ++to_cpu;
    }
  }
  return {variants, to_cpu};
}

}  // namespace torch_xla
