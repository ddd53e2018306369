// Most of torch's composite kernels for these ops sync in the middle of a step: they look for zeros in the gradient of
// a product, for nan in that of a maximum, and read the lengths of a CTC loss. The others access a storage, which xla
// tensors do not have.
#include "aten/composites.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "compat/torch_internal.h"
#include "dispatch/library.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;
using OptDtype = std::optional<at::ScalarType>;

bool is_differentiated(const Tensor& t) {
  return (at::GradMode::is_enabled() && t.requires_grad()) || compat::isFwGradDefined(t);
}

Tensor maximum_of_all(const Tensor& self) {
  if (is_differentiated(self) && self.sym_numel() > 0) {
    return at::amax(self);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::max(self);
}

Tensor minimum_of_all(const Tensor& self) {
  if (is_differentiated(self) && self.sym_numel() > 0) {
    return at::amin(self);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::min(self);
}

bool is_narrow(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// Returns the size of a dim as a number: torch.compile specializes a dynamic size to it.
int64_t known_size(const Tensor& x, int64_t dim) { return x.sym_size(dim).guard_int(__FILE__, __LINE__); }

// Returns the product along `dim`, with keepdim, by pairwise halving: its gradient needs no division, so zeros need no
// special case.
Tensor product_by_halves(Tensor x, int64_t dim) {
  int64_t n = known_size(x, dim);
  if (n == 0) {
    return x.sum(dim, true) + 1;
  }
  for (; n > 1; n -= n / 2) {
    const int64_t half = n / 2;
    const Tensor pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half);
    x = n % 2 == 0 ? pairs : at::cat({pairs, x.narrow(dim, n - 1, 1)}, dim);
  }
  return x;
}

// Returns all prefix products along `dim`, by doubling.
Tensor products_by_doubling(Tensor x, int64_t dim) {
  const int64_t n = known_size(x, dim);
  for (int64_t step = 1; step < n; step *= 2) {
    x = at::cat({x.narrow(dim, 0, step), x.narrow(dim, step, n - step) * x.narrow(dim, 0, n - step)}, dim);
  }
  return x;
}

// Applies `function` in float32 for 16-bit dtypes, as torch does; returns the requested dtype.
template <typename Function>
Tensor compute_in_opmath(const Tensor& self, OptDtype dtype, Function function) {
  const Tensor x = dtype.has_value() ? self.to(*dtype) : self;
  const Tensor result = function(is_narrow(x.scalar_type()) ? x.to(at::kFloat) : x);
  return result.to(x.scalar_type());
}

Tensor product_of_all(const Tensor& self, OptDtype dtype) {
  if (is_differentiated(self)) {
    return compute_in_opmath(self, dtype,
                             [](const Tensor& x) { return product_by_halves(x.reshape({-1}), 0).squeeze(0); });
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::prod(self, dtype);
}

Tensor product_along(const Tensor& self, int64_t dim, bool keepdim, OptDtype dtype) {
  if (is_differentiated(self) && self.dim() > 0) {
    const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
    return compute_in_opmath(self, dtype, [&](const Tensor& x) {
      const Tensor result = product_by_halves(x, axis);
      return keepdim ? result : result.squeeze(axis);
    });
  }
  if (is_differentiated(self)) {
    at::maybe_wrap_dim(dim, int64_t{0});
    return product_of_all(self, dtype);
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::prod(self, dim, keepdim, dtype);
}

Tensor cumulative_product(const Tensor& self, int64_t dim, OptDtype dtype) {
  if (is_differentiated(self)) {
    const int64_t axis = at::maybe_wrap_dim(dim, self.dim());
    return compute_in_opmath(self, dtype,
                             [&](const Tensor& x) { return x.dim() == 0 ? x.clone() : products_by_doubling(x, axis); });
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::cumprod(self, dim, dtype);
}

// Reads one bool, not both tensors.
bool is_equal(const Tensor& self, const Tensor& other) {
  return self.sym_sizes() == other.sym_sizes() && (self.sym_numel() == 0 || at::eq(self, other).all().item<bool>());
}

// Converts concatenated targets to padded rows: the only format for which the lengths must be known.
Tensor pad_targets(const Tensor& targets, const Tensor& lengths) {
  const Tensor counts = lengths.to(at::kCPU, at::kLong).contiguous();
  const int64_t* count = counts.const_data_ptr<int64_t>();
  const int64_t rows = counts.numel();
  const int64_t width = rows == 0 ? 1 : std::max<int64_t>(1, *std::max_element(count, count + rows));
  if (targets.numel() == 0) {
    return targets.new_zeros({rows, width});
  }
  Tensor indices = at::zeros({rows, width}, at::kLong);
  int64_t* index = indices.mutable_data_ptr<int64_t>();
  for (int64_t row = 0, first = 0; row < rows; first += count[row++]) {
    for (int64_t i = 0; i < width; ++i) {
      *index++ = std::min(first + std::min(i, std::max<int64_t>(count[row] - 1, 0)), targets.numel() - 1);
    }
  }
  return targets.index_select(0, indices.reshape({-1}).to(targets.device())).reshape({rows, width});
}

Tensor ctc_loss_of_tensors(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                           const Tensor& target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  const bool batched = log_probs.dim() == 3;
  if (!log_probs.device().is_xla() || (!batched && log_probs.dim() != 2)) {
    return compat::ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity);
  }
  const at::Device device = log_probs.device();
  const Tensor steps = batched ? log_probs : log_probs.unsqueeze(1);
  const Tensor labels = targets.to(device);
  const Tensor rows = labels.dim() == 1 ? pad_targets(labels, target_lengths.reshape({-1})) : labels;
  const Tensor counts = target_lengths.reshape({-1}).to(device, at::kLong);
  const Tensor loss = std::get<0>(
      at::_ctc_loss(steps, rows, input_lengths.reshape({-1}).to(device, at::kLong), counts, blank, zero_infinity));
  const Tensor finite_loss =
      zero_infinity ? loss.masked_fill(loss == std::numeric_limits<double>::infinity(), 0) : loss;
  if (reduction == at::Reduction::Mean) {
    return (finite_loss / counts.clamp_min(1).to(finite_loss.scalar_type())).mean();
  }
  return reduction == at::Reduction::Sum ? finite_loss.sum() : batched ? finite_loss : finite_loss.squeeze(0);
}

Tensor ctc_loss_of_numbers(const Tensor& log_probs, const Tensor& targets, at::IntArrayRef input_lengths,
                           at::IntArrayRef target_lengths, int64_t blank, int64_t reduction, bool zero_infinity) {
  if (maybe_xla(log_probs) == nullptr) {  // traced: tensors made from the numbers would be constants of the trace
    return compat::ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity);
  }
  return ctc_loss_of_tensors(log_probs, targets, at::tensor(input_lengths, at::kLong),
                             at::tensor(target_lengths, at::kLong), blank, reduction, zero_infinity);
}

// out= variants that torch decomposes into writes through tensors that are not views on xla: computes, then copies.
Tensor& write_out(const char* name, const Tensor& result, Tensor& out) {
  TORCH_CHECK(!at::GradMode::is_enabled() || !(result.requires_grad() || out.requires_grad()), name,
              "(): functions with out=... arguments don't support automatic differentiation, but one of the arguments "
              "requires grad.");
  TORCH_CHECK(result.scalar_type() == out.scalar_type(), "Expected out tensor to have dtype ",
              toString(result.scalar_type()), ", but got ", toString(out.scalar_type()), " instead");
  if (out.sym_sizes() != result.sym_sizes()) {
    compat::resize_output_symint(out, result.sym_sizes());
  }
  return out.copy_(result);
}

Tensor& matmul_out(const Tensor& a, const Tensor& b, Tensor& out) { return write_out("matmul", at::matmul(a, b), out); }

Tensor& kron_out(const Tensor& a, const Tensor& b, Tensor& out) { return write_out("kron", at::kron(a, b), out); }

// Forward-mode autograd compares a tensor and its tangent by storage size; comparing sizes, which it also does,
// suffices on xla.
bool has_same_storage_numel(const Tensor&, const Tensor&) { return true; }

Tensor zeros_with_same_meta(const Tensor& self, const Tensor& other, int64_t self_batch_dims) {
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().begin() + self_batch_dims);
  sizes.insert(sizes.end(), other.sizes().begin(), other.sizes().end());
  return at::zeros(sizes, other.options());
}

}  // namespace

void register_composites() {
  for (const auto key : {c10::DispatchKey::XLA, c10::DispatchKey::AutogradXLA}) {
    auto& both = library("aten", key);
    both.impl("ctc_loss.IntList", &ctc_loss_of_numbers);
    both.impl("ctc_loss.Tensor", &ctc_loss_of_tensors);
    both.impl("kron.out", &kron_out);
    both.impl("matmul.out", &matmul_out);
  }
  auto& plain = implementations("aten");
  plain.impl("_has_same_storage_numel", &has_same_storage_numel);
  plain.impl("_new_zeros_with_same_feature_meta", &zeros_with_same_meta);
  plain.impl("equal", &is_equal);
  auto& differentiable = library("aten", c10::DispatchKey::AutogradXLA);
  differentiable.impl("cumprod", &cumulative_product);
  differentiable.impl("max", &maximum_of_all);
  differentiable.impl("min", &minimum_of_all);
  differentiable.impl("prod", &product_of_all);
  differentiable.impl("prod.dim_int", &product_along);
}

}  // namespace torch_xla
