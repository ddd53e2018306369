// Records aten::linear as one op. torch decomposes it into a transpose, a matrix multiplication and an addition, with
// views around them if the input has more than two dims, and differentiates each. Here autograd gets LinearBackward0,
// which torch has for devices with a fused linear; its gradients are recorded as the matrix multiplications and the sum
// that they are.
//
//  torch's decomposition is used for calls that a mode or a subclass must see op by op (torch.compile, vmap of a
//  subclass, selective checkpoints), that have tangents or a second-order gradient, or that torch rejects
#include "aten/linear.h"

#include <ATen/ATen.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <array>
#include <tuple>

#include "compat/torch_internal.h"
#include "dispatch/graph_size_limit.h"
#include "dispatch/library.h"
#include "dispatch/record.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
using LinearGradients = std::tuple<Tensor, Tensor, Tensor>;

// Returns the XlaTensor if no Python key or tangent is involved; null for any other tensor.
XlaTensor* as_plain_xla(const Tensor& t) {
  XlaTensor* x = maybe_xla(t);
  return x != nullptr && !x->key_set().has(c10::DispatchKey::Python) && !compat::isFwGradDefined(t) ? x : nullptr;
}

bool is_like(const XlaTensor& x, const XlaTensor& other) {
  return x.dtype() == other.dtype() && x.device_index() == other.device_index();
}

bool can_record(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const XlaTensor* x = as_plain_xla(input);
  const XlaTensor* w = as_plain_xla(weight);
  if (x == nullptr || w == nullptr || c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    return false;
  }
  if (x->dim() < 2 || w->dim() != 2 || x->sizes().back() != w->sizes()[1] || x->numel() == 0 || w->numel() == 0 ||
      !is_like(*x, *w) || !(at::isFloatingType(input.scalar_type()) && !at::isFloat8Type(input.scalar_type()))) {
    return false;
  }
  if (!bias.defined()) {
    return true;
  }
  const XlaTensor* b = as_plain_xla(bias);
  return b != nullptr && b->dim() == 1 && b->sizes()[0] == w->sizes()[0] && is_like(*b, *x);
}

// Records the op, below autograd.
Tensor record_linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  static const OpPointer op("aten::linear");
  flush_if_over_limit();
  NodePtr node = record_node(*op, {input, weight, bias.defined() ? c10::IValue(bias) : c10::IValue()});
  const int8_t device = node->device;
  Tensor result = make_tensor(std::move(node));
  count_pending(device);
  return result;
}

Tensor linear_no_grad(const Tensor& input, const Tensor& weight, const OptTensor& bias) {
  const Tensor b = bias.value_or(Tensor());
  return can_record(input, weight, b) ? record_linear(input, weight, b) : compat::linear(input, weight, bias);
}

Tensor linear(const Tensor& input, const Tensor& weight, const OptTensor& bias) {
  const Tensor b = bias.value_or(Tensor());
  if (!can_record(input, weight, b)) {
    return compat::linear(input, weight, bias);
  }
  if (!compat::compute_requires_grad(input, weight, b)) {
    return record_linear(input, weight, b);
  }
  const auto backward = compat::make_grad_fn<compat::LinearBackward>();
  backward->set_next_edges(compat::collect_next_edges(input, weight, b));
  if (backward->should_compute_output(1)) {
    backward->input_ = compat::SavedVariable(input, false);
  }
  if (backward->should_compute_output(0)) {
    backward->weight_ = compat::SavedVariable(weight, false);
  }
  Tensor result = record_linear(input, weight, b);
  compat::set_history(result, backward);
  return result;
}

// Computes the gradients by differentiable ops, visible to modes.
LinearGradients differentiable_linear_gradients(const Tensor& input, const Tensor& grad, const Tensor& weight,
                                                std::array<bool, 3> mask) {
  const Tensor rows = grad.reshape_symint({-1, grad.sym_size(-1)});
  Tensor of_input, of_weight, of_bias;
  if (mask[0]) {
    of_input = at::matmul(grad, weight);
  }
  if (mask[1]) {
    of_weight = at::mm(rows.t(), input.reshape_symint({-1, input.sym_size(-1)}));
  }
  if (mask[2]) {
    of_bias = rows.sum(0);
  }
  return {of_input, of_weight, of_bias};
}

// Records the gradients of one call below autograd, without the dispatcher.
class LinearBackward {
 public:
  explicit LinearBackward(XlaTensor& grad) : sizes_(grad.sizes().vec()), rows_(as_rows(grad.value())) {}
  // Counts the recorded ops; in eager mode this runs them.
  void finish() const { count_pending(rows_->device, ops_); }

  Tensor of_input(const NodePtr& weight) {
    static const OpPointer view("aten::view");
    NodePtr value = product(rows_, weight);
    if (sizes_.size() != 2) {
      std::vector<int64_t> sizes = sizes_;
      sizes.back() = weight->shape().sizes[1];
      value = record_op(*view, {node_as_ivalue(value), std::move(sizes)});
    }
    return make_tensor(std::move(value));
  }

  Tensor of_weight(const NodePtr& input) {
    static const OpPointer transpose("aten::t");
    return make_tensor(product(record_op(*transpose, {node_as_ivalue(rows_)}), as_rows(input)));
  }

  Tensor of_bias() {
    static const OpPointer sum("aten::sum.dim_IntList");
    return make_tensor(record_op(*sum, {node_as_ivalue(rows_), std::vector<int64_t>{0}, false, c10::IValue()}));
  }

 private:
  NodePtr record_op(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
    ++ops_;
    return record_node(op, arguments);
  }

  NodePtr product(const NodePtr& a, const NodePtr& b) {
    static const OpPointer op("aten::mm");
    return record_op(*op, {node_as_ivalue(a), node_as_ivalue(b)});
  }

  // Views a value as a matrix with the same last dimension.
  NodePtr as_rows(const NodePtr& value) {
    static const OpPointer view("aten::view");
    const auto& sizes = value->shape().sizes;
    if (sizes.size() == 2) {
      return value;
    }
    const int64_t width = sizes.back();
    return record_op(*view, {node_as_ivalue(value), std::vector<int64_t>{value->shape().elements() / width, width}});
  }

  int64_t ops_ = 0;  // recorded so far; initialized before rows_, which increments it
  std::vector<int64_t> sizes_;
  NodePtr rows_;
};

LinearGradients linear_backward(const Tensor& input, const Tensor& grad, const Tensor& weight,
                                std::array<bool, 3> mask) {
  XlaTensor* g = as_plain_xla(grad);
  XlaTensor* x = mask[1] ? as_plain_xla(input) : nullptr;
  XlaTensor* w = mask[0] ? as_plain_xla(weight) : nullptr;
  const auto unusable = [&](bool required, const XlaTensor* t) {
    return required && (t == nullptr || t->dim() < 2 || t->numel() == 0 || !is_like(*t, *g));
  };
  if (g == nullptr || unusable(true, g) || unusable(mask[1], x) || unusable(mask[0], w) ||
      c10::impl::TorchDispatchModeTLS::any_modes_set() || compat::compute_requires_grad(input, grad, weight)) {
    return differentiable_linear_gradients(input, grad, weight, mask);
  }
  flush_if_over_limit();
  LinearBackward backward(*g);
  LinearGradients gradients;
  if (mask[0]) {
    std::get<0>(gradients) = backward.of_input(w->value());
  }
  if (mask[1]) {
    std::get<1>(gradients) = backward.of_weight(x->value());
  }
  if (mask[2]) {
    std::get<2>(gradients) = backward.of_bias();
  }
  backward.finish();
  return gradients;
}

}  // namespace

void register_linear() {
  implementations("aten").impl("linear", &linear_no_grad);
  implementations("aten").impl("linear_backward", &linear_backward);
  auto& differentiable = library("aten", c10::DispatchKey::AutogradXLA);
  differentiable.impl("linear", &linear);
  differentiable.impl("linear_backward", &linear_backward);
}

}  // namespace torch_xla
