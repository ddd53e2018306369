// torch chooses a fused attention per device type by a table that has no place for xla, so its own way there is always
// the plain one: products in float32 even for 16-bit inputs, and the weights of every pair kept for the backward pass.
// The kernel here records aten::_scaled_dot_product_efficient_attention, which autograd knows how to differentiate.
#include "aten/attention.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>

#include "compat/torch_internal.h"
#include "ir/op.h"
#include "registration.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

bool is_given(const OptTensor& t) { return t.has_value() && t->defined(); }

// torch.nn.attention.sdpa_kernel(SDPBackend.MATH) asks for the plain way.
bool fused_allowed() {
  const auto& context = at::globalContext();
  return context.userEnabledFlashSDP() || context.userEnabledMemEfficientSDP();
}

// Sizes are symbolic here: torch.compile and torch.export trace this with sizes that are not known yet.
bool heads_fit(const Tensor& query, const Tensor& key, bool enable_gqa) {
  const c10::SymInt heads = query.sym_size(1), groups = key.sym_size(1);
  return heads == groups || (enable_gqa && groups > 0 && heads % groups == 0);
}

bool mask_fits(const Tensor& mask, const Tensor& query, const Tensor& key) {
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

// Whether the one op can do it: four dims, one 16- or 32-bit dtype, a mask that broadcasts, no forward-mode autograd.
bool fits(const Tensor& query, const Tensor& key, const Tensor& value, const OptTensor& mask, double dropout_p,
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
         query.sym_size(3) == key.sym_size(3) && heads_fit(query, key, enable_gqa) &&
         (!is_given(mask) || (mask_fits(*mask, query, key) && !compat::isFwGradDefined(mask)));
}

bool any_requires_grad(std::initializer_list<Tensor> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); });
}

// Each of `groups` heads as often as there are heads in a group, and the sum over those.
Tensor spread(const Tensor& t, const c10::SymInt& heads) {
  const c10::SymInt batch = t.sym_size(0), groups = t.sym_size(1), length = t.sym_size(2), width = t.sym_size(3);
  return groups == heads ? t
                         : t.unsqueeze(2)
                               .expand_symint({batch, groups, heads / groups, length, width})
                               .reshape_symint({batch, heads, length, width});
}

Tensor gather(const Tensor& t, const c10::SymInt& groups) {
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
  if (!fused_allowed() || !fits(query, key, value, mask, dropout_p, is_causal, enable_gqa)) {
    return compat::scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  }
  if (maybe_xla(query) == nullptr && query.sym_size(1) != key.sym_size(1)) {
    // Traced: until torch 2.14 the backward pass promises gradients of other shapes than a shared key has.
    const c10::SymInt heads = query.sym_size(1);
    return attention(query, spread(key, heads), spread(value, heads), mask, dropout_p, is_causal, scale, false);
  }
  const bool saves = any_requires_grad({query, key, value, is_given(mask) ? *mask : Tensor()});
  return std::get<0>(
      at::_scaled_dot_product_efficient_attention(query, key, value, mask, saves, dropout_p, is_causal, scale));
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// The gradients by ops that have gradients themselves: for double backward.
Gradients differentiable_gradients(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                                   const Tensor& bias, bool wants_bias, bool is_causal, double scale) {
  const c10::SymInt heads = query.sym_size(1), groups = key.sym_size(1);
  const Tensor keys = spread(key, heads), values = spread(value, heads);
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
  const Tensor pulled = at::matmul(grad, values.transpose(-2, -1));
  const Tensor inner = weights * (pulled - (pulled * weights).sum(-1, true));
  return {at::matmul(inner, keys) * scale, gather(at::matmul(inner.transpose(-2, -1), query) * scale, groups),
          gather(at::matmul(weights.transpose(-2, -1), grad), groups),
          wants_bias ? inner.sum_to_size_symint(bias.sym_sizes()) : Tensor()};
}

Gradients attention_backward(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                             const Tensor& bias, const Tensor& out, const Tensor& logsumexp, const Tensor& seed,
                             const Tensor& offset, double dropout_p, std::array<bool, 4> mask, bool is_causal,
                             std::optional<double> scale) {
  if (any_requires_grad({grad, query, key, value, bias})) {
    TORCH_CHECK(dropout_p == 0,
                "scaled_dot_product_attention: the gradient of the gradient does not exist with dropout (dropout_p=",
                dropout_p, "); run it under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)");
    const double factor =
        scale.value_or(1 / std::sqrt(static_cast<double>(query.sym_size(3).guard_int(__FILE__, __LINE__))));
    return differentiable_gradients(grad, query, key, value, bias, mask[3] && bias.defined(), is_causal, factor);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, query, key, value, bias, out, logsumexp, seed, offset, dropout_p, mask, is_causal, scale);
  // Until 2.14 torch promises a gradient per head also where several heads share a key; from 2.15 on, their sum.
  return {dq, gather(dk, key.sym_size(1)), gather(dv, key.sym_size(1)), dbias};
}

// A bias that torch's kernel for the CPU knows: of four dims and the dtype of the query, added to the scores.
OptTensor bias_on_cpu(const Tensor& bias, const Tensor& query, const Tensor& key) {
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

Tensor given(const c10::IValue& argument) { return argument.isNone() ? Tensor() : argument.toTensor(); }

c10::SmallVector<Tensor, 1> forward_on_cpu(const OutputSpec& promised, const torch::jit::Stack& a) {
  const Tensor query = a[0].toTensor(), key = spread(a[1].toTensor(), query.size(1)),
               value = spread(a[2].toTensor(), query.size(1));
  const OptTensor bias = bias_on_cpu(given(a[3]), query, key);
  const auto [out, sums] =
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, a[6].toBool(), bias, factor(a[7], query));
  const auto options = query.options();
  const auto& outs = promised.outs;
  Tensor saved = at::zeros(outs[1].sizes, options.dtype(outs[1].dtype));
  if (a[4].toBool()) {  // a row that sees nothing has no weights: exp(-inf - inf)
    saved.slice(2, 0, query.size(2)).copy_(sums.masked_fill(sums.isfinite().logical_not(), -kMinusInfinity));
  }
  return {out, saved, at::zeros(outs[2].sizes, options.dtype(outs[2].dtype)),
          at::zeros(outs[3].sizes, options.dtype(outs[3].dtype))};
}

c10::SmallVector<Tensor, 1> backward_on_cpu(const OutputSpec& promised, const torch::jit::Stack& a) {
  const Tensor grad = a[0].toTensor(), query = a[1].toTensor(), key = a[2].toTensor(), value = a[3].toTensor();
  const c10::SymInt heads = query.sym_size(1);
  const bool wants_bias = a[10].toBoolList().get(3) && !a[4].isNone();
  const Tensor keys = spread(key, heads), values = spread(value, heads);
  auto [dq, dk, dv, dbias] = differentiable_gradients(grad, query, keys, values, given(a[4]), wants_bias,
                                                      a[11].toBool(), factor(a[12], query));
  const auto as_promised = [&](const Tensor& gradient, size_t i) {
    return gradient.sizes() == at::IntArrayRef(promised.outs[i].sizes) ? gradient : gather(gradient, key.sym_size(1));
  };
  return {dq, as_promised(dk, 1), as_promised(dv, 2), dbias};
}

}  // namespace

AttentionResults attention_on_cpu(const Op& op, const OutputSpec& promised, const torch::jit::Stack& arguments) {
  static const Op* forward = find_op("aten::_scaled_dot_product_efficient_attention");
  static const Op* backward = find_op("aten::_scaled_dot_product_efficient_attention_backward");
  if (&op == forward && arguments[5].toDouble() == 0 &&
      arguments[0].toTensor().size(3) == arguments[2].toTensor().size(3)) {
    return forward_on_cpu(promised, arguments);
  }
  if (&op == backward && arguments[9].toDouble() == 0) {
    return backward_on_cpu(promised, arguments);
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
