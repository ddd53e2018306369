#include "aten/batch_norm.h"

#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>

#include "compat/torch_internal.h"
#include "dispatch/record.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

// One call: records the functional op, and holds its results and the new statistics.
class BatchNorm {
 public:
  BatchNorm(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
            const std::optional<Tensor>& running_mean, const std::optional<Tensor>& running_var, bool training,
            double momentum, double eps)
      : running_mean_(running_mean), running_var_(running_var), training_(training) {
    tracks_ = training && running_mean.has_value() && running_mean->defined();
    op_ = find_op(tracks_    ? "aten::_native_batch_norm_legit_functional"
                  : training ? "aten::_native_batch_norm_legit.no_stats"
                             : "aten::_native_batch_norm_legit_no_training");
    TORCH_INTERNAL_ASSERT(op_ != nullptr);
    results_ = {input, weight, bias};
    if (tracks_ || !training) {
      results_.emplace_back(running_mean);
      results_.emplace_back(running_var);
    }
    if (training) {
      results_.emplace_back(training);
    }
    results_.emplace_back(momentum);
    results_.emplace_back(eps);
    record(*op_, &results_);
  }

  // Returns the number of results: nothing is saved in inference, as on the CPU.
  size_t count() const { return training_ ? 3 : 1; }
  Tensor result(size_t i) const { return results_[i].toTensor(); }

  void update_statistics() const {
    if (tracks_) {
      require_xla(*op_, *running_mean_).write(require_xla(*op_, result(3)).value());
      require_xla(*op_, *running_var_).write(require_xla(*op_, result(4)).value());
    }
  }

  // Raises the CPU's error for an out tensor of another dtype.
  void check_out(size_t i, const Tensor& out) const {
    const XlaTensor& target = require_xla(*op_, out);
    TORCH_CHECK(target.device_index() == require_xla(*op_, result(i)).device_index(), op_->name,
                ": expected all tensors on one device, but found ", result(i).device(), " and ", out.device());
    TORCH_CHECK(out.scalar_type() == result(i).scalar_type(), "expected scalar type ", result(i).scalar_type(),
                " but found ", out.scalar_type());
  }

  void write(size_t i, const Tensor& out) const {
    compat::resize_output(out, result(i).sizes());
    require_xla(*op_, out).write(require_xla(*op_, result(i)).value());
  }

 private:
  const std::optional<Tensor>& running_mean_;
  const std::optional<Tensor>& running_var_;
  bool training_;
  bool tracks_;
  const Op* op_;
  torch::jit::Stack results_;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> native_batch_norm(const Tensor& input, const std::optional<Tensor>& weight,
                                                     const std::optional<Tensor>& bias,
                                                     const std::optional<Tensor>& running_mean,
                                                     const std::optional<Tensor>& running_var, bool training,
                                                     double momentum, double eps) {
  const BatchNorm normal(input, weight, bias, running_mean, running_var, training, momentum, eps);
  normal.update_statistics();
  if (normal.count() == 1) {
    return {normal.result(0), at::empty({0}, input.options()), at::empty({0}, input.options())};
  }
  return {normal.result(0), normal.result(1), normal.result(2)};
}

std::tuple<Tensor&, Tensor&, Tensor&> native_batch_norm_out(const Tensor& input, const std::optional<Tensor>& weight,
                                                            const std::optional<Tensor>& bias,
                                                            const std::optional<Tensor>& running_mean,
                                                            const std::optional<Tensor>& running_var, bool training,
                                                            double momentum, double eps, Tensor& out, Tensor& save_mean,
                                                            Tensor& save_invstd) {
  const BatchNorm normal(input, weight, bias, running_mean, running_var, training, momentum, eps);
  const Tensor* targets[] = {&out, &save_mean, &save_invstd};
  for (size_t i = 0; i < normal.count(); ++i) {
    normal.check_out(i, *targets[i]);
  }
  normal.update_statistics();
  for (size_t i = 0; i < normal.count(); ++i) {
    normal.write(i, *targets[i]);
  }
  return {out, save_mean, save_invstd};
}

std::tuple<Tensor, Tensor, Tensor> native_batch_norm_legit(const Tensor& input, const std::optional<Tensor>& weight,
                                                           const std::optional<Tensor>& bias, Tensor& running_mean,
                                                           Tensor& running_var, bool training, double momentum,
                                                           double eps) {
  return torch_xla::native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

std::tuple<Tensor&, Tensor&, Tensor&> native_batch_norm_legit_out(const Tensor& input,
                                                                  const std::optional<Tensor>& weight,
                                                                  const std::optional<Tensor>& bias,
                                                                  Tensor& running_mean, Tensor& running_var,
                                                                  bool training, double momentum, double eps,
                                                                  Tensor& out, Tensor& save_mean, Tensor& save_invstd) {
  return native_batch_norm_out(input, weight, bias, running_mean, running_var, training, momentum, eps, out, save_mean,
                               save_invstd);
}

}  // namespace torch_xla
