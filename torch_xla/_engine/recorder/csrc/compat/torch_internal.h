// Every torch API that torch does not document for extensions: headers under torch/csrc, ATen/native and detail, and
// functions of at::native. No other file includes or names them (tests/base/test_compat.py). Built and tested with
// torch 2.11 to 2.15. If a later torch lacks one, the build fails at its line here, and RecorderBuildError reports that
// this torch is untested. Conversions to Python are in compat/python_internal.h.
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
#include <ATen/ops/gru_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/reshape_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/variable.h>

namespace torch_xla::compat {

// torch's kernels of operators that xla overrides: for tensors of other devices, and for calls that the override does
// not support.
using at::native::_to_copy;
using at::native::alias;
using at::native::ctc_loss;
using at::native::flatten;
using at::native::gru;
using at::native::linear;
using at::native::lstm;
using at::native::reshape_symint;
using at::native::rnn_relu;
using at::native::rnn_tanh;
using at::native::scaled_dot_product_attention;

// Runs an operator on CPU copies of its arguments, and copies the results back.
using at::native::cpu_fallback;

// Resizes an `out` tensor of another size, and warns as torch's kernels do.
using at::native::resize_output;
using at::native::resize_output_symint;

// Returns the strides of a view with other sizes, or nullopt if the view would have to copy: is `reshape` a view?
using at::detail::computeStride;

// The generator that torch.manual_seed seeds, and a function that makes an independent one.
using at::detail::createCPUGenerator;
using at::detail::getDefaultCPUGenerator;

// Forward-mode autograd: returns whether a tensor has a tangent.
using torch::autograd::isFwGradDefined;

// The autograd node that runs on this thread: operators of a backward pass get the module scope of their forward.
using torch::autograd::get_current_node;

// An autograd function with a custom backward. It is documented, but the only small header is below torch/csrc.
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Gradients of tensors: a backward pass that is itself differentiable.
using torch::autograd::grad;

// The autograd node of a fused linear, and how a kernel attaches it to its result.
using LinearBackward = torch::autograd::generated::LinearBackward0;
using torch::autograd::collect_next_edges;
using torch::autograd::compute_requires_grad;
using torch::autograd::SavedVariable;
using torch::autograd::set_history;

// Returns whether a tensor ever had a hook: register_hook, register_post_accumulate_grad_hook.
inline bool has_hooks(const at::Tensor& t) {
  return torch::autograd::impl::get_autograd_meta(t) != nullptr &&
         (!torch::autograd::impl::hooks(t).empty() || torch::autograd::impl::post_acc_grad_hooks(t) != nullptr);
}

// Makes an autograd node, held by c10::intrusive_ptr, or by std::shared_ptr in torch 2.11.
template <typename T>
auto make_grad_fn() {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::shared_ptr<T>(new T(), [](auto* made) { deleteNode(made); });
  } else {
    return c10::make_intrusive<T>();
  }
}

// The interface by which torch creates generators of the device.
using XLAHooks = at::XLAHooksInterface;

// A hash table whose lookups touch one or two cache lines.
template <typename Key, typename Value, typename Hash>
using FlatMap = ska::flat_hash_map<Key, Value, Hash>;

}  // namespace torch_xla::compat
