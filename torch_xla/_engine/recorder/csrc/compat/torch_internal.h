// All that the recorder uses of torch that torch does not document for extensions: headers under torch/csrc,
// ATen/native and detail, and functions of at::native. No other file includes or names them (tests/base/test_compat.py).
// Built and tested with torch 2.11 to 2.15. Where a later torch lacks one, the build ends at its line here, and
// RecorderBuildError says that this torch was not tested. compat/python_internal.h has what is converted to Python.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorUtils.h>
#include <ATen/detail/XLAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/ctc_loss_native.h>
#include <ATen/ops/flatten_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/reshape_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>

namespace torch_xla::compat {

// torch's own kernels of ops that have one of ours: for tensors that are not xla's, and for what ours does not do.
using at::native::_to_copy;
using at::native::alias;
using at::native::ctc_loss;
using at::native::flatten;
using at::native::linear;
using at::native::reshape_symint;
using at::native::scaled_dot_product_attention;

// An op on copies of its arguments on the CPU, and its results back.
using at::native::cpu_fallback;

// What a kernel does first with an `out` of another size, its warning included.
using at::native::resize_output;
using at::native::resize_output_symint;

// The strides of a view of other sizes, none where it would have to copy: is `reshape` a view?
using at::detail::computeStride;

// torch.manual_seed seeds this one; and one that nobody else draws from.
using at::detail::createCPUGenerator;
using at::detail::getDefaultCPUGenerator;

// Forward-mode autograd: whether a tensor has a tangent.
using torch::autograd::isFwGradDefined;

// The function of the backward pass that this thread is running: ops of a backward have the scope of its forward.
using torch::autograd::get_current_node;

// A function with a backward of its own. Documented, but not by a header outside of torch/csrc that is small.
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The gradient of a linear that is one operation, and how a kernel tells autograd of it.
using LinearBackward = torch::autograd::generated::LinearBackward0;
using torch::autograd::collect_next_edges;
using torch::autograd::compute_requires_grad;
using torch::autograd::SavedVariable;
using torch::autograd::set_history;

// What holds a function of the backward pass: c10::intrusive_ptr, in torch 2.11 std::shared_ptr.
template <typename T>
auto make_grad_fn() {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<T>(new T(), [](auto* made) { deleteNode(made); });
  } else {
    return c10::make_intrusive<T>();
  }
}

// How torch makes generators of the device.
using XLAHooks = at::XLAHooksInterface;

// A hash table whose look-ups stay within a cache line or two.
template <typename Key, typename Value, typename Hash>
using FlatMap = ska::flat_hash_map<Key, Value, Hash>;

}  // namespace torch_xla::compat
