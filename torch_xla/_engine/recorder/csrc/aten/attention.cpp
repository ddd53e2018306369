// torch selects a fused attention per device type from a table without xla, so it would always decompose: matrix
// multiplications in float32 even for 16-bit inputs, and the weights of every pair saved for backward. The kernel here
// records aten::_scaled_dot_product_efficient_attention, which autograd can differentiate.
#include "aten/attention.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>

#include "compat/torch_internal.h"
#include "dispatch/library.h"
#include "ir/op.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

bool is_given(const OptTensor& t) { return t.has_value() && t->defined(); }

// Returns false inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH), which requests the decomposition.
bool fused_allowed() {
  const auto& context = at::globalContext();
  return context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP();
}

// Sizes are symbolic: torch.compile and torch.export trace this function with dynamic sizes.
bool heads_match(const Tensor& query, const Tensor& key, bool enable_gqa) {
  const c10::SymInt heads = query.sym_size(1), groups = key.sym_size(1);
  return heads == groups || (enable_gqa && groups > 0 && heads % groups == 0);
}

bool mask_matches(const Tensor& mask, const Tensor& query, const Tensor& key) {
  if (!mask.device().is_xla() || (mask.scalar_type() != at::kBool && mask.scalar_type() != query.scalar_type()) ||
      mask.dim() < 2 || mask.dim() > 4) {
    return false;
  }
  const std::array<c10::SymInt, 4> full{query.sym_size(0), query.sym_size(1), query.sym_size(2), key.sym_size(2)};
  for (int64_t i = 1; i <= mask.dim(); ++i) {
    if (mask.sym_size(-i) != 1 && mask.sym_size(-i) != full[4 - i]) {
      return false;
    }
  }
  return true;
}

// Returns whether the fused op supports a call: four dims, one 16- or 32-bit float dtype, a mask that broadcasts, no
// forward-mode autograd.
bool can_use_fused(const Tensor& query, const Tensor& key, const Tensor& value, const OptTensor& mask, double dropout_p,
                   bool is_causal, bool enable_gqa) {
  const auto dtype = query.scalar_type();
  if ((dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16) || dropout_p < 0 || dropout_p >= 1 ||
      (is_causal && is_given(mask))) {
    return false;
  }
  for (const Tensor& t : {query, key, value}) {
    if (!t.device().is_xla() || t.layout() != at::kStrided || t.dim() != 4 || t.scalar_type() != dtype ||
        t.sym_numel() == 0 || t.sym_size(0) != query.sym_size(0) || compat::isFwGradDefined(t)) {
      return false;
    }
  }
  return key.sym_size(1) == value.sym_size(1) && key.sym_size(2) == value.sym_size(2) &&
         query.sym_size(3) == key.sym_size(3) && heads_match(query, key, enable_gqa) &&
         (!is_given(mask) || (mask_matches(*mask, query, key) && !compat::isFwGradDefined(mask)));
}

bool any_requires_grad(std::initializer_list<Tensor> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); });
}

// Repeats each of `groups` heads for all heads of its group; sum_head_groups is the inverse: it sums over them.
Tensor repeat_heads(const Tensor& t, const c10::SymInt& heads) {
  const c10::SymInt batch = t.sym_size(0), groups = t.sym_size(1), length = t.sym_size(2), width = t.sym_size(3);
  return groups == heads ? t
                         : t.unsqueeze(2)
                               .expand_symint({batch, groups, heads / groups, length, width})
                               .reshape_symint({batch, heads, length, width});
}

Tensor sum_head_groups(const Tensor& t, const c10::SymInt& groups) {
  const c10::SymInt batch = t.sym_size(0), heads = t.sym_size(1);
  return groups == heads ? t : t.reshape_symint({batch, groups, heads / groups, t.sym_size(2), t.sym_size(3)}).sum(2);
}

Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, const OptTensor& mask, double dropout_p,
                 bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (query.dim() == 3 && key.dim() == 3 && value.dim() == 3) {
    const Tensor out = attention(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), mask, dropout_p, is_causal,
                                 scale, enable_gqa);
    return out.squeeze(0);
  }
  if (!fused_allowed() || !can_use_fused(query, key, value, mask, dropout_p, is_causal, enable_gqa)) {
    return compat::scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  }
  if (maybe_xla(query) == nullptr && query.sym_size(1) != key.sym_size(1)) {
    // Traced: before torch 2.14 the meta function of backward has a gradient per query head, not per key head.
    const c10::SymInt heads = query.sym_size(1);
    return attention(query, repeat_heads(key, heads), repeat_heads(value, heads), mask, dropout_p, is_causal, scale,
                     false);
  }
  const bool saves = any_requires_grad({query, key, value, is_given(mask) ? *mask : Tensor()});
  return std::get<0>(
      at::_scaled_dot_product_efficient_attention(query, key, value, mask, saves, dropout_p, is_causal, scale));
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The gradients, computed by differentiable ops: for double backward.
Gradients differentiable_gradients(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                                   const Tensor& bias, bool wants_bias, bool is_causal, double scale) {
  const c10::SymInt heads = query.sym_size(1), groups = key.sym_size(1);
  const Tensor keys = repeat_heads(key, heads), values = repeat_heads(value, heads);
  Tensor scores = at::matmul(query, keys.transpose(-2, -1)) * scale;
  if (bias.defined()) {
    scores = bias.scalar_type() == at::kBool ? scores.masked_fill(bias.logical_not(), kMinusInfinity) : scores + bias;
  }
  if (is_causal) {
    const Tensor later =
        at::ones_symint({query.sym_size(2), key.sym_size(2)}, query.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(later, kMinusInfinity);
  }
  const Tensor weights = at::_safe_softmax(scores, -1);
  const Tensor grad_weights = at::matmul(grad, values.transpose(-2, -1));
  const Tensor inner = weights * (grad_weights - (grad_weights * weights).sum(-1, true));
  return {at::matmul(inner, keys) * scale, sum_head_groups(at::matmul(inner.transpose(-2, -1), query) * scale, groups),
          sum_head_groups(at::matmul(weights.transpose(-2, -1), grad), groups),
          wants_bias ? inner.sum_to_size_symint(bias.sym_sizes()) : Tensor()};
}

Gradients attention_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                             const Tensor& bias, const Tensor& out, const Tensor& logsumexp, const Tensor& seed,
                             const Tensor& offset, double dropout_p, std::array<bool, 4> mask, bool is_causal,
                             std::optional<double> scale) {
  if (any_requires_grad({grad, query, key, value, bias})) {
    TORCH_CHECK(dropout_p == 0,
                "scaled_dot_product_attention: the gradient of the gradient does not exist with dropout (dropout_p=",
                dropout_p, "); use torch.nn.attention.sdpa_kernel(SDPBackend.MATH)");
    const double factor =
        scale.value_or(1 / std::sqrt(static_cast<double>(query.sym_size(3).guard_int(__FILE__, __LINE__))));
    return differentiable_gradients(grad, query, key, value, bias, mask[3] && bias.defined(), is_causal, factor);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, query, key, value, bias, out, logsumexp, seed, offset, dropout_p, mask, is_causal, scale);
  // Traced: up to torch 2.13 the meta function has a gradient per query head, also where several share a key head.
  return {dq, sum_head_groups(dk, key.sym_size(1)), sum_head_groups(dv, key.sym_size(1)), dbias};
}

// Converts a bias to the form that torch's CPU kernel supports: four dims and the dtype of the query, added to the
// scores.
OptTensor cpu_bias(const Tensor& bias, const Tensor& query, const Tensor& key) {
  if (!bias.defined()) {
    return std::nullopt;
  }
  const Tensor added = bias.scalar_type() == at::kBool
                           ? at::zeros(bias.sizes(), query.options()).masked_fill(bias.logical_not(), kMinusInfinity)
                           : bias;
  return added.expand({query.size(0), query.size(1), query.size(2), key.size(2)}).contiguous();
}

double factor(const c10::IValue& scale, const Tensor& query) {
  return scale.isNone() ? 1 / std::sqrt(static_cast<double>(query.size(3))) : scale.toDouble();
}

Tensor tensor_or_undefined(const c10::IValue& argument) { return argument.isNone() ? Tensor() : argument.toTensor(); }

c10::SmallVector<Tensor, 1> forward_on_cpu(const OutputSpec& output_spec, const torch::jit::Stack& a) {
  const Tensor query = a[0].toTensor(), key = repeat_heads(a[1].toTensor(), query.size(1)),
               value = repeat_heads(a[2].toTensor(), query.size(1));
  const OptTensor bias = cpu_bias(tensor_or_undefined(a[3]), query, key);
  const auto [out, sums] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, a[6].toBool(), bias, factor(a[7], query));
  const auto options = query.options();
  const auto& outs = output_spec.outs;
  Tensor saved = at::zeros(outs[1].sizes, options.dtype(outs[1].dtype));
  if (a[4].toBool()) {  // a fully masked row has no weights: exp(-inf - inf)
    saved.slice(2, 0, query.size(2)).copy_(sums.masked_fill(sums.isfinite().logical_not(), -kMinusInfinity));
  }
  return {out, saved, at::zeros(outs[2].sizes, options.dtype(outs[2].dtype)),
          at::zeros(outs[3].sizes, options.dtype(outs[3].dtype))};
}

c10::SmallVector<Tensor, 1> backward_on_cpu(const OutputSpec& output_spec, const torch::jit::Stack& a) {
  const Tensor grad = a[0].toTensor(), query = a[1].toTensor(), key = a[2].toTensor(), value = a[3].toTensor();
  const c10::SymInt heads = query.sym_size(1);
  const bool wants_bias = a[10].toBoolList().get(3) && !a[4].isNone();
  const Tensor keys = repeat_heads(key, heads), values = repeat_heads(value, heads);
  auto [dq, dk, dv, dbias] = differentiable_gradients(grad, query, keys, values, tensor_or_undefined(a[4]), wants_bias,
                                                      a[11].toBool(), factor(a[12], query));
  const auto sum_if_grouped = [&](const Tensor& gradient, size_t i) {
    return gradient.sizes() == at::IntArrayRef(output_spec.outs[i].sizes) ? gradient
                                                                          : sum_head_groups(gradient, key.sym_size(1));
  };
  return {dq, sum_if_grouped(dk, 1), sum_if_grouped(dv, 2), dbias};
}

}  // namespace

AttentionResults attention_on_cpu(const Op& op, const OutputSpec& output_spec, const torch::jit::Stack& arguments) {
  static const OpPointer forward("aten::_scaled_dot_product_efficient_attention");
  static const OpPointer backward("aten::_scaled_dot_product_efficient_attention_backward");
  if (&op == forward && arguments[5].toDouble() == 0 &&
      arguments[0].toTensor().size(3) == arguments[2].toTensor().size(3)) {
    return forward_on_cpu(output_spec, arguments);
  }
  if (&op == backward && arguments[9].toDouble() == 0) {
    return backward_on_cpu(output_spec, arguments);
  }
  return std::nullopt;
}

void register_attention() {
  implementations("aten").impl("scaled_dot_product_attention", &attention);
  auto& differentiable = library("aten", c10::DispatchKey::AutogradXLA);
  differentiable.impl("scaled_dot_product_attention", &attention);
  differentiable.impl("_scaled_dot_product_efficient_attention_backward", &attention_backward);
}

}  // namespace torch_xla
