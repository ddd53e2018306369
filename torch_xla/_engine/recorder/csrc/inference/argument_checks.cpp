#include "inference/argument_checks.h"

#include <ATen/Functions.h>
#include <ATen/TensorUtils.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "inference/index_checks.h"
#include "inference/pointwise_inference.h"
#include "inference/random_checks.h"
#include "inference/redispatch.h"

namespace torch_xla {
namespace {

constexpr int64_t kMaxDims = 64;

// Returns whether the op's meta function accepts arguments that its kernels reject, such as dims of a 0-d tensor; for
// ops that are not pointwise. Those calls would fail at compile time, far from the user's line. Small calls are checked
// with the CPU kernel.
bool meta_checks_incomplete(const Op& op) {
  static const std::unordered_set<std::string> names{"aten::_fft_c2c",
                                                     "aten::_fft_c2r",
                                                     "aten::_fft_r2c",
                                                     "aten::_log_softmax",
                                                     "aten::_logcumsumexp",
                                                     "aten::_native_batch_norm_legit.no_stats",
                                                     "aten::_native_batch_norm_legit_functional",
                                                     "aten::_native_batch_norm_legit_no_training",
                                                     "aten::_softmax",
                                                     "aten::amax",
                                                     "aten::amin",
                                                     "aten::aminmax",
                                                     "aten::argmax",
                                                     "aten::argmin",
                                                     "aten::binary_cross_entropy",
                                                     "aten::bucketize.Scalar",
                                                     "aten::bucketize.Tensor",
                                                     "aten::convolution",
                                                     "aten::cummax",
                                                     "aten::cummin",
                                                     "aten::diagonal_scatter",
                                                     "aten::fill.Tensor",
                                                     "aten::glu",
                                                     "aten::hardswish",
                                                     "aten::index_copy",
                                                     "aten::index_fill.int_Scalar",
                                                     "aten::index_fill.int_Tensor",
                                                     "aten::index_select",
                                                     "aten::kthvalue",
                                                     "aten::linalg_cross",
                                                     "aten::linalg_lu_factor_ex",
                                                     "aten::log_sigmoid_forward",
                                                     "aten::masked_fill.Tensor",
                                                     "aten::max",
                                                     "aten::max.dim",
                                                     "aten::median.dim",
                                                     "aten::min",
                                                     "aten::min.dim",
                                                     "aten::mode",
                                                     "aten::nanmedian.dim",
                                                     "aten::nansum",
                                                     "aten::native_group_norm",
                                                     "aten::native_layer_norm",
                                                     "aten::polar",
                                                     "aten::put",
                                                     "aten::rsub.Tensor",
                                                     "aten::searchsorted.Scalar",
                                                     "aten::searchsorted.Tensor",
                                                     "aten::select_scatter",
                                                     "aten::slice_scatter",
                                                     "aten::sort",
                                                     "aten::sort.stable",
                                                     "aten::std.correction",
                                                     "aten::topk",
                                                     "aten::var.correction"};
  return names.count(op.functional ? op.functional->name : op.name) != 0;
}

bool is_floating(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && at::isFloatingType(value.toTensor().scalar_type());
}

void check_with_cpu_kernel(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  try {
    raise_cpu_error(op, arguments, 1 << 12);
  } catch (const c10::NotImplementedError& error) {
    if (!is_missing_kernel(op, error)) {
      throw;
    }
  }
}

// Returns whether an argument is, or contains, a non-floating-point tensor.
bool has_non_float_tensor(const c10::IValue& argument) {
  if (argument.isTensorList()) {
    const auto list = argument.toTensorVector();
    return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) { return !is_floating(t); });
  }
  return argument.isTensor() && argument.toTensor().defined() && !is_floating(argument);
}

// Checks integer, bool and complex dtypes that the CPU has no kernel for: XLA mostly lacks them too, and would report
// it only at compile time. Other errors that the CPU raises for zeros are ignored.
void check_dtype(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  // histc of integers: other devices support it, and mixture-of-experts libraries rely on it.
  if (op.name.rfind("aten::", 0) != 0 ||
      ((op.functional ? op.functional->name : op.name) == "aten::histc" && arguments[0].isTensor() &&
       at::isIntegralType(arguments[0].toTensor().scalar_type(), /*includeBool=*/false)) ||
      std::none_of(arguments.begin(), arguments.end(), has_non_float_tensor)) {
    return;
  }
  try {
    raise_cpu_error(op, arguments, 1 << 12);
  } catch (const c10::NotImplementedError& error) {
    const std::string message = error.what_without_backtrace();
    if (!is_missing_kernel(op, error) && (message.find("not implemented for") != std::string::npos ||
                                          message.find("not supported for") != std::string::npos)) {
      throw;
    }
  } catch (const c10::Error&) {
  }
}

bool exceeds_max_dims(const c10::IValue& value) {
  if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) { return t.defined() && t.dim() > kMaxDims; });
  }
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() > kMaxDims;
}

// Checks that the operands of a matrix multiplication have one dtype, which the kernels require and some meta functions
// do not.
void check_dtypes_agree(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  static const std::unordered_set<std::string> matmuls{
      "aten::addbmm", "aten::addmm", "aten::addmv", "aten::addr",        "aten::baddbmm", "aten::bmm",
      "aten::dot",    "aten::mm",    "aten::mv",    "aten::convolution", "aten::vdot"};
  if (matmuls.count(op.functional ? op.functional->name : op.name) == 0) {
    return;
  }
  at::ScalarType first = at::ScalarType::Undefined;
  for (const auto& value : arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      continue;
    }
    const at::ScalarType dtype = value.toTensor().scalar_type();
    if (first != at::ScalarType::Undefined && dtype != first) {
      raise_cpu_error_with_dtypes(op, arguments);
      TORCH_CHECK(false, op.name, ": expected operands of one dtype, but got ", at::toString(first), " and ",
                  at::toString(dtype));
    }
    first = dtype;
  }
}

bool any_below(const c10::IValue& numbers, int64_t least) {
  const auto list = numbers.toIntVector();
  return std::any_of(list.begin(), list.end(), [&](int64_t n) { return n < least; });
}

// Returns whether a reduction is requested in a non-floating dtype argument, for which the CPU may lack a kernel. Other
// checks do not look at dtype arguments.
bool sums_in_other_dtype(const Op& op, const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  if (name != "aten::cumsum" && name != "aten::cumprod" && name != "aten::nansum") {
    return false;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.kinds[i] == ArgKind::kDtype && !arguments[i].isNone()) {
      return !at::isFloatingType(arguments[i].toScalarType());
    }
  }
  return false;
}

// Checks the remaining known cases in which meta functions accept what kernels reject, by shapes, dtypes and numbers.
void check_known_cases(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  static const std::unordered_set<std::string> lenient{"aten::as_strided_copy",  "aten::as_strided_scatter",
                                                       "aten::bucketize.Tensor", "aten::complex",
                                                       "aten::index_add",        "aten::masked_scatter"};
  const std::string& name = op.functional ? op.functional->name : op.name;
  if (op.random) {
    check_random(op, arguments);
  } else if (name == "aten::nll_loss_forward") {
    const at::ScalarType target = arguments[1].toTensor().scalar_type();
    if (target != at::kLong && target != at::kByte) {
      raise_cpu_error(op, arguments);
      TORCH_CHECK(false, "expected target dtype to be Long or Byte, but got ", at::toString(target));
    }
  } else if (name == "aten::nll_loss2d_forward") {
    const at::ScalarType target = arguments[1].toTensor().scalar_type();
    TORCH_CHECK(target == at::kLong, "expected scalar type Long but found ", at::toString(target));
  } else if (name == "aten::embedding") {
    // torch 2.11's meta function accepts indices of any dtype. The message names the type of a tensor on the CPU.
    const at::Tensor indices = at::empty({0}, arguments[1].toTensor().scalar_type());
    at::checkScalarTypes("embedding", at::TensorArg(indices, "indices", 1), {at::kLong, at::kInt});
  } else if (name == "aten::linalg_lu_factor_ex" || name == "aten::linalg_lu") {
    const at::Tensor matrix = arguments[0].toTensor();
    TORCH_CHECK(arguments[1].toBool(),
                "linalg.lu_factor: LU without pivoting is not implemented on the CPU, nor on xla (", name, " of ",
                at::toString(matrix.scalar_type()), matrix.sizes(), "); use pivot=True");
  } else if (lenient.count(name) != 0 || is_invalid_index_write(name, arguments) ||
             sums_in_other_dtype(op, name, arguments) ||
             (name == "aten::convolution" &&
              (any_below(arguments[3], 1) || any_below(arguments[4], 0) || any_below(arguments[5], 1)))) {
    raise_cpu_error(op, arguments);
  }
}

}  // namespace

void check_accepted_by_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results) {
  // CPU kernels store sets of dims in 64 bits and iterate over no more dims: most reject such tensors, while meta
  // functions and XLA do not. Random ops are not tried: the CPU's generator must not advance.
  if (!op.random && (std::any_of(arguments.begin(), arguments.end(), exceeds_max_dims) ||
                     std::any_of(results.begin(), results.end(), exceeds_max_dims))) {
    check_with_cpu_kernel(op, arguments);
  }
  if (meta_checks_incomplete(op)) {
    check_with_cpu_kernel(op, arguments);
  }
  if (!op.random && !op.pointwise) {
    check_dtype(op, arguments);
  }
  check_dtypes_agree(op, arguments);
  check_known_cases(op, arguments);
}

}  // namespace torch_xla
