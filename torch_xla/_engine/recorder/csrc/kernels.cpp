#include "kernels.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <unordered_set>

#include "compat.h"
#include "copies.h"
#include "cpu_fallback.h"
#include "layout.h"
#include "record.h"
#include "refusals.h"
#include "signature.h"
#include "tensor.h"

namespace torch_xla {
namespace {

using at::Tensor;

XlaTensor& expect_xla(const Op& op, const Tensor& t, size_t argument = 0) {
  XlaTensor* x = maybe_xla(t);
  if (x == nullptr) {
    raise_not_xla(op, argument, t, -1);
  }
  return *x;
}

int64_t numel(const Shape& shape) { return c10::multiply_integers(shape.sizes); }

bool overlaps(const Op& op, const XlaTensor& base, const Shape& view, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.may_overlap || view.sizes.empty()) {
    return false;
  }
  if (op.name == "aten::as_strided") {
    return strides_overlap(view.sizes, arguments[2].toIntVector());
  }
  if (op.name == "aten::unfold") {
    const int64_t dim = at::maybe_wrap_dim(arguments[1].toInt(), base.dim());
    return arguments[2].toInt() > arguments[3].toInt() && base.dim() > 0 && view.sizes[dim] > 1;
  }
  return numel(view) > base.numel();
}

}  // namespace

namespace {

// Whether as_strided's arguments make sense to torch; if not, its meta function says so.
bool is_within_torch(c10::ArrayRef<c10::IValue> arguments) {
  const auto none_below_zero = [](const std::vector<int64_t>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](int64_t n) { return n >= 0; });
  };
  const std::vector<int64_t> sizes = arguments[1].toIntVector();
  const std::vector<int64_t> strides = arguments[2].toIntVector();
  return sizes.size() == strides.size() && none_below_zero(sizes) && none_below_zero(strides) &&
         (arguments[3].isNone() || arguments[3].toInt() >= 0);
}

}  // namespace

at::Tensor record_one_view(const Op& op, XlaTensor& base, c10::ArrayRef<c10::IValue> arguments) {
  begin_op();
  const NodePtr node = record_node(op, arguments);
  const int8_t device = node->device;
  Tensor view = base.make_view(node, overlaps(op, base, node->shape(), arguments));
  count_pending(device);
  return view;
}

void record_view(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.kinds.size();
  const Tensor self = torch::jit::peek(*stack, 0, n).toTensor();
  XlaTensor& base = expect_xla(op, self);
  if (op.name == "aten::as_strided" && is_within_torch(torch::jit::last(*stack, n))) {
    // Strides and offset count in the memory, not in the view.
    Tensor view =
        view_of_memory(base, torch::jit::peek(*stack, 1, n).toIntVector(), torch::jit::peek(*stack, 2, n).toIntVector(),
                       torch::jit::peek(*stack, 3, n).toOptional<int64_t>());
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(view));
    return;
  }
  if (op.name == "aten::view.dtype") {
    check_view_as(base, torch::jit::peek(*stack, 1, n).toScalarType());
  }
  if (!op.returns_list) {
    Tensor view = record_one_view(op, base, torch::jit::last(*stack, n));
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(view));
    return;
  }
  begin_op();
  const NodePtr node = record_node(op, torch::jit::last(*stack, n));
  torch::jit::drop(*stack, n);
  c10::List<Tensor> list;
  list.reserve(node->signature->outs.size());
  for (uint32_t i = 0; i < node->signature->outs.size(); ++i) {
    list.push_back(base.make_view(getitem(node, i), false));
  }
  stack->emplace_back(std::move(list));
  count_pending(node->device);
}

void record_inplace(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.kinds.size();
  const Tensor self = torch::jit::peek(*stack, 0, n).toTensor();
  XlaTensor& target = expect_xla(op, self);
  if (must_run_on_cpu(op, torch::jit::last(*stack, n))) {
    run_on_cpu(op.handle, stack);
    return;
  }
  check_no_partial_overlap(target, torch::jit::last(*stack, n).slice(1));
  begin_op();
  NodePtr node = record_node(op, torch::jit::last(*stack, n));
  torch::jit::drop(*stack, n);
  const int8_t device = node->device;
  const NodePtr before = C10_UNLIKELY(runs_at_once()) ? target.value() : NodePtr();
  target.write(std::move(node), op.uniform);
  stack->emplace_back(self);
  try {
    count_pending(device);
  } catch (...) {
    if (before) {  // it was to run at once, and could not: as if it had not been called
      target.write(before);
    }
    throw;
  }
}

// t_(), squeeze_(), transpose_(): the tensor becomes the view.
void record_inplace_view(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.kinds.size();
  const Tensor self = torch::jit::peek(*stack, 0, n).toTensor();
  XlaTensor& target = expect_xla(op, self);
  record_view(*op.functional, stack);
  target.adopt(expect_xla(op, torch::jit::pop(*stack).toTensor()));
  stack->emplace_back(self);
}

namespace {

// Reductions without a dtype of their own add up, and give, what `out` holds.
void take_dtype_of_out(const Op& functional, const Tensor& out, torch::jit::Stack* stack) {
  static const std::unordered_set<std::string> reductions{
      "aten::sum",          "aten::sum.dim_IntList", "aten::mean",   "aten::mean.dim", "aten::prod",
      "aten::prod.dim_int", "aten::nansum",          "aten::cumsum", "aten::cumprod"};
  if (reductions.count(functional.name) == 0) {
    return;
  }
  for (size_t i = 0; i < functional.kinds.size(); ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, functional.kinds.size());
    if (functional.kinds[i] == ArgKind::kDtype && value.isNone()) {
      value = c10::IValue(static_cast<int64_t>(out.scalar_type()));
    }
  }
}

// Of each target, whether the call reads it: such a one is not resized.
std::vector<bool> are_read(const std::vector<Tensor>& targets, c10::ArrayRef<c10::IValue> arguments) {
  std::vector<bool> found;
  for (const Tensor& target : targets) {
    found.push_back(std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& argument) {
      return argument.isTensor() && argument.toTensor().is_same(target);
    }));
  }
  return found;
}

}  // namespace

void record_out(const Op& op, torch::jit::Stack* stack) {
  const size_t outs = op.handle.schema().returns().size();
  std::vector<Tensor> targets;
  for (const auto& target : torch::jit::last(*stack, outs)) {
    targets.push_back(target.toTensor());
    expect_xla(op, targets.back(), op.kinds.size() - outs + targets.size() - 1);
  }
  const auto arguments = torch::jit::last(*stack, op.kinds.size());
  for (const Tensor& target : targets) {
    check_no_partial_overlap(expect_xla(op, target), arguments.slice(0, arguments.size() - outs));
  }
  // Kept where a dtype may be unlike the result's: some kernels refuse to convert, as only they know.
  const bool alike =
      outs == 1 && arguments[0].isTensor() && arguments[0].toTensor().scalar_type() == targets[0].scalar_type();
  const std::vector<c10::IValue> all(alike ? arguments.end() : arguments.begin(), arguments.end());
  torch::jit::drop(*stack, outs);
  for (size_t i = op.kinds.size() - outs; i < op.functional->kinds.size(); ++i) {  // a factory's dtype, device, ...
    const ArgKind kind = op.functional->kinds[i];
    stack->push_back(kind == ArgKind::kDtype    ? c10::IValue(static_cast<int64_t>(targets[0].scalar_type()))
                     : kind == ArgKind::kDevice ? c10::IValue(targets[0].device())
                                                : c10::IValue());
  }
  take_dtype_of_out(*op.functional, targets[0], stack);
  const std::vector<bool> read = are_read(targets, torch::jit::last(*stack, op.functional->kinds.size()));
  record(*op.functional, stack);
  if (C10_UNLIKELY(!all.empty())) {
    check_out_dtypes(op, all, torch::jit::last(*stack, outs));
  }
  for (size_t i = 0; i < outs; ++i) {
    const Tensor result = torch::jit::peek(*stack, i, outs).toTensor();
    TORCH_CHECK(result.device() == targets[i].device(), op.name, ": expected all tensors on one device, but found ",
                result.device(), " and ", targets[i].device(), " (argument '", op.arg_names[op.kinds.size() - outs + i],
                "')");
    if (C10_UNLIKELY(op.functional->random)) {
      check_random_out(*op.functional, targets[i].scalar_type());
    } else {
      TORCH_CHECK(c10::canCast(result.scalar_type(), targets[i].scalar_type()), "result type ",
                  at::toString(result.scalar_type()), " can't be cast to the desired output type ",
                  at::toString(targets[i].scalar_type()));
    }
    if (targets[i].sizes() != result.sizes()) {
      TORCH_CHECK(!read[i], "output with shape ", targets[i].sizes(), " doesn't match the broadcast shape ",
                  result.sizes());
      compat::resize_output(targets[i], result.sizes());
    }
    XlaTensor& target = expect_xla(op, targets[i]);
    target.write(cast(expect_xla(op, result).value(), targets[i].scalar_type()));
  }
  torch::jit::drop(*stack, outs);
  for (auto& target : targets) {
    stack->emplace_back(std::move(target));
  }
}

void record_side_writes(const Op& op, torch::jit::Stack* stack) {
  const auto& schema = op.handle.schema();
  const size_t returns = schema.returns().size();
  std::vector<Tensor> targets;  // in the order of their new values: the one that is returned, then the others
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const auto& argument = torch::jit::peek(*stack, i, schema.arguments().size());
    if (alias != nullptr && alias->isWrite()) {
      targets.push_back(argument.isTensor() ? argument.toTensor() : Tensor());
    }
  }
  record(*op.functional, stack);
  const size_t results = op.functional->handle.schema().returns().size();
  const size_t first = results - targets.size();
  for (size_t i = 0; i < targets.size(); ++i) {
    const Tensor result = torch::jit::peek(*stack, first + i, results).toTensor();
    if (targets[i].defined() && result.defined()) {
      expect_xla(op, targets[i]).write(cast(expect_xla(op, result).value(), targets[i].scalar_type()));
    }
  }
  torch::jit::drop(*stack, results - returns);
  if (schema.returns()[0].alias_info() != nullptr) {
    torch::jit::peek(*stack, 0, returns) = targets[0];
  }
}

namespace {

bool on_one_device(c10::ArrayRef<c10::IValue> arguments) {
  int8_t first = -1;
  for (const c10::IValue& argument : arguments) {
    for (const c10::IValue& element : argument.isTensorList() ? argument.toListRef() : c10::ArrayRef<c10::IValue>()) {
      const XlaTensor* x = maybe_xla(element.toTensor());
      if (x == nullptr || (first >= 0 && x->device_index() != first)) {
        return false;
      }
      first = x->device_index();
    }
  }
  return true;
}

}  // namespace

void record_fused(const Op& op, torch::jit::Stack* stack) {
  const auto& schema = op.handle.schema().arguments();
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, schema.size());
  if (!on_one_device(arguments)) {
    run_on_cpu(op.handle, stack);
    return;
  }
  begin_op();
  const bool scaled = !arguments[schema.size() - 2].isNone();
  if (!arguments[0].toListRef().empty()) {
    const NodePtr node = record_node(*op.functional, arguments);
    uint32_t result = 0;
    // The counts of steps, which one of the schemas marks as well, are the caller's to change.
    for (size_t i = 0; schema[i].alias_info() != nullptr && schema[i].name() != "state_steps"; ++i) {
      const bool changes = i != 1 || scaled;  // gradients change only where a scale is taken from them
      for (const c10::IValue& element : arguments[i].toListRef()) {
        if (changes) {
          expect_xla(op, element.toTensor()).write(getitem(node, result));
        }
        ++result;
      }
    }
    count_pending(node->device);
  }
  torch::jit::drop(*stack, schema.size());
}

Tensor full(c10::SymIntArrayRef size, const c10::Scalar& value, std::optional<at::ScalarType> dtype,
            std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory) {
  static const Op* op = find_op("aten::full");
  const bool is_truth = value.isBoolean() && dtype.value_or(at::kBool) == at::kBool;
  const int64_t above = 2;  // 0 and 1 are constants
  torch::jit::Stack stack{C10_AS_INTARRAYREF_SLOW(size),
                          is_truth ? c10::Scalar(value.toBool() ? above + 1 : above) : value,
                          is_truth ? std::optional<at::ScalarType>(at::kInt) : dtype,
                          layout,
                          device,
                          pin_memory};
  record_factory(*op, &stack);
  Tensor filled = stack.back().toTensor();
  return is_truth ? filled.gt(above) : filled;
}

const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  static const Op* op = find_op("aten::resize");
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  XlaTensor& target = expect_xla(*op, self);
  if (self.sizes() == sizes) {
    return self;
  }
  if (shared_memory_holds(target, sizes)) {
    // What comes next in the memory, which others see too. On the CPU a memory that is too small grows, and is shared
    // even then; here the tensor gets one of its own.
    const Tensor shown = view_of_memory(target, sizes, c10::contiguous_strides(sizes), std::nullopt);
    target.adopt(expect_xla(*op, shown));
  } else {
    target.replace(record_node(*op, {c10::IValue(rest_of_memory(target)), c10::IValue(sizes), c10::IValue()}));
  }
  return self;
}

Tensor& set_source_tensor(Tensor& self, const Tensor& source) {
  static const Op* op = find_op("aten::resize");
  XlaTensor& target = expect_xla(*op, self);
  XlaTensor& other = expect_xla(*op, source);
  TORCH_CHECK(target.device_index() == other.device_index(), "aten::set_: a tensor on ", self.device(),
              " cannot take over the memory of one on ", source.device());
  target.adopt(other);
  return self;
}

// What torch.load() does with a storage; what it shows is copied to the device.
Tensor& set_source_storage(Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                           c10::SymIntArrayRef stride) {
  static const Op* op = find_op("aten::resize");
  XlaTensor& target = expect_xla(*op, self);
  TORCH_CHECK(source.device().is_cpu(),
              "aten::set_: xla tensors have no storage that could be read or taken over (this one has ",
              source.nbytes(), " bytes on ", source.device(), "); use set_(tensor), or .cpu() first");
  const Tensor shown =
      at::empty({0}, self.scalar_type()).set__symint(std::move(source), std::move(offset), size, stride);
  target.replace(upload("aten::set_", shown, self.scalar_type(), target.device_index()));
  return self;
}

Tensor& set_whole_storage(Tensor& self, c10::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_source_storage(self, std::move(source), 0, {c10::SymInt(count)}, {c10::SymInt(1)});
}

bool is_set_to(const Tensor& self, const Tensor& other) {
  static const Op* op = find_op("aten::resize");
  return expect_xla(*op, self).id() == expect_xla(*op, other, 0).id();
}

namespace {

// torch's kernel updates the running statistics behind the schema's back; the form that returns them says so.
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

  // How many results there are: nothing is saved outside training, as on the CPU.
  size_t count() const { return training_ ? 3 : 1; }
  Tensor result(size_t i) const { return results_[i].toTensor(); }

  void update_statistics() const {
    if (tracks_) {
      expect_xla(*op_, *running_mean_).write(expect_xla(*op_, result(3)).value());
      expect_xla(*op_, *running_var_).write(expect_xla(*op_, result(4)).value());
    }
  }

  // Raises what the CPU does for a dtype that is not the result's.
  void check_out(size_t i, const Tensor& out) const {
    const XlaTensor& target = expect_xla(*op_, out);
    TORCH_CHECK(target.device_index() == expect_xla(*op_, result(i)).device_index(), op_->name,
                ": expected all tensors on one device, but found ", result(i).device(), " and ", out.device());
    TORCH_CHECK(out.scalar_type() == result(i).scalar_type(), "expected scalar type ", result(i).scalar_type(),
                " but found ", out.scalar_type());
  }

  void write(size_t i, const Tensor& out) const {
    compat::resize_output(out, result(i).sizes());
    expect_xla(*op_, out).write(expect_xla(*op_, result(i)).value());
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

void amp_unscale_(at::TensorList gradients, Tensor& found_inf, const Tensor& inv_scale) {
  static const Op* op = find_op("aten::_amp_foreach_non_finite_check_and_unscale");
  if (gradients.empty()) {
    return;
  }
  for (const Tensor& gradient : gradients) {
    expect_xla(*op, gradient);
  }
  XlaTensor& found = expect_xla(*op, found_inf);
  const NodePtr node = record_node(*op, {c10::IValue(gradients), c10::IValue(found_inf), c10::IValue(inv_scale)});
  for (size_t i = 0; i < gradients.size(); ++i) {
    expect_xla(*op, gradients[i]).write(getitem(node, static_cast<uint32_t>(i)));
  }
  found.write(getitem(node, static_cast<uint32_t>(gradients.size())));
  count_pending(node->device);
}

Tensor& amp_update_scale_(Tensor& scale, Tensor& growth_tracker, const Tensor& found_inf, double growth_factor,
                          double backoff_factor, int64_t growth_interval) {
  static const Op* op = find_op("aten::_amp_update_scale");
  XlaTensor& target = expect_xla(*op, scale);
  XlaTensor& tracker = expect_xla(*op, growth_tracker);
  const NodePtr node = record_node(*op, {c10::IValue(scale), c10::IValue(growth_tracker), c10::IValue(found_inf),
                                         growth_factor, backoff_factor, growth_interval});
  target.write(getitem(node, 0));
  tracker.write(getitem(node, 1));
  count_pending(node->device);
  return scale;
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

// torch's functionalization calls it after in-place ops, for a recorder that tracks tensors by id.
void propagate_xla_data(const Tensor&, const Tensor&) {}

}  // namespace torch_xla
