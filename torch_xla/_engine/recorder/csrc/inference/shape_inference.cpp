#include "inference/shape_inference.h"

#include <ATen/Functions.h>

#include "compat/python_internal.h"
#include "inference/argument_checks.h"
#include "inference/grouped_matmul.h"
#include "inference/pointwise_inference.h"
#include "inference/redispatch.h"
#include "inference/scaled_matmul.h"

namespace torch_xla {
namespace {

// The dtypes of base/dtypes.py. Any other dtype of this or a later torch is rejected where a tensor is made: in a graph
// the user's line is unknown.
bool is_supported_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
    case at::kByte:
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2:
    case at::kFloat8_e5m2fnuz:
    case at::kComplexFloat:
    case at::kComplexDouble:
      return true;
    default:
      return false;
  }
}

void add_result(const Op& op, OutputSpec& output_spec, at::ScalarType dtype, at::IntArrayRef sizes) {
  TORCH_CHECK(dtype != at::kComplexHalf, op.name, ": XLA has no complex numbers of two 16-bit floats (", sizes,
              " of torch.complex32); use torch.complex64");
  TORCH_CHECK_TYPE(is_supported_dtype(dtype), op.name, ": the dtype ", at::toString(dtype), " does not exist on xla (",
                   sizes, "); use another dtype, or make the tensor on the CPU");
  output_spec.outs.emplace_back(dtype, sizes);
}

void add_result(const Op& op, OutputSpec& output_spec, const at::Tensor& t) {
  if (t.defined()) {
    add_result(op, output_spec, t.scalar_type(), t.sizes());
  } else {
    output_spec.outs.emplace_back();
  }
}

// Returns whether result shapes depend on values.
bool has_value_dependent_shape(const Op& op) {
  return op.random || op.handle.hasTag(at::Tag::dynamic_output_shape) ||
         op.handle.hasTag(at::Tag::data_dependent_output);
}

torch::jit::Stack results_on_meta(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name == "aten::_grouped_mm") {
    return {grouped_mm_on_meta(arguments)};
  }
  if (op.name == "aten::_scaled_mm_v2") {
    return {scaled_mm_v2_on_meta(arguments)};
  }
  if (op.name == "aten::_scaled_grouped_mm") {
    return {scaled_grouped_mm_on_meta(arguments)};
  }
  if (op.name == "aten::_scaled_grouped_mm_v2") {
    return {scaled_grouped_mm_v2_on_meta(arguments)};
  }
  // The kernels accept uint8 targets; the meta functions do not.
  const bool byte_targets = op.name.rfind("aten::nll_loss", 0) == 0;
  const auto on_meta = [&](const at::Tensor& t) {
    const at::ScalarType dtype = byte_targets && t.scalar_type() == at::kByte ? at::kLong : t.scalar_type();
    return at::empty(t.sizes(), at::TensorOptions().dtype(dtype).device(at::kMeta));
  };
  try {
    if (op.name == "aten::_scaled_mm") {
      check_scaled_mm(arguments);  // an error of small matrices is replaced by the CPU's below
    }
    return redispatch(op, arguments, DeviceSubstitution{at::kMeta, on_meta});
  } catch (const std::exception&) {
    compat::raise_interrupts();
    // Some meta functions reject what the kernels compute: bool << int, numbers that are complex by dtype only.
    auto results = raise_cpu_error_with_dtypes(op, arguments, op.pointwise ? 1 << 26 : 1 << 20);
    if (results && !has_value_dependent_shape(op)) {
      return std::move(*results);
    }
    throw;
  }
}

// Checks that the first operand expands to exactly the shape of the product of the other two.
void check_expands(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const bool vectors = op.name == "aten::addr";
  if (!vectors && op.name != "aten::addmm" && op.name != "aten::addmv" && op.name != "aten::addbmm" &&
      op.name != "aten::baddbmm") {
    return;
  }
  const at::IntArrayRef left = arguments[1].toTensor().sizes();
  const at::IntArrayRef right = arguments[2].toTensor().sizes();
  const bool sums_up = op.name == "aten::addbmm";
  at::DimVector product(vectors ? left : left.slice(sums_up ? 1 : 0, left.size() - (sums_up ? 2 : 1)));
  if (op.name != "aten::addmv") {
    product.push_back(right.back());
  }
  at::empty(arguments[0].toTensor().sizes(), at::kMeta).expand(product);
}

// Checks that the op's result can be cast to the dtype of the tensor that it is written to.
void check_result_fits(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const torch::jit::Stack stack = results_on_meta(*op.functional, arguments);
  if (stack.size() == 1 && stack[0].isTensor()) {
    const at::ScalarType result = stack[0].toTensor().scalar_type();
    const at::ScalarType self = arguments[0].toTensor().scalar_type();
    TORCH_CHECK(c10::canCast(result, self), "result type ", at::toString(result),
                " can't be cast to the desired output type ", at::toString(self));
  }
}

void add_results(const Op& op, OutputSpec& output_spec, const torch::jit::Stack& stack) {
  for (const auto& result : stack) {
    if (result.isTensorList()) {
      output_spec.is_list = true;
      for (const at::Tensor& t : result.toTensorVector()) {
        add_result(op, output_spec, t);
      }
    } else {
      add_result(op, output_spec, result.isNone() ? at::Tensor() : result.toTensor());
    }
  }
}

OutputSpecPtr make_checked_spec(const Op& op, at::IntArrayRef sizes, at::ScalarType dtype) {
  auto output_spec = c10::make_intrusive<OutputSpec>();
  add_result(op, *output_spec, dtype, sizes);
  return output_spec;
}

// Infers from one element and the operands' shapes, without torch's meta functions: most of these are in Python, and
// the first imports torch._dynamo, which takes a second. Returns null if the CPU has no single result dtype, or if
// shapes do not broadcast, for which each kernel has a specific error message.
OutputSpecPtr infer_pointwise(const Op& op, c10::ArrayRef<c10::IValue> arguments, bool in_place) {
  at::DimVector shape;
  try {
    shape = in_place ? at::DimVector(arguments[0].toTensor().sizes()) : broadcast_shape(arguments);
  } catch (const c10::Error&) {
    return OutputSpecPtr();
  }
  check_accepted_by_cpu(op, arguments, {});
  const std::optional<at::ScalarType> dtype = cpu_result_dtype(op, arguments);
  if (!dtype) {
    return OutputSpecPtr();
  }
  return make_checked_spec(op, shape, *dtype);
}

// Infers the output spec of a foreach op on lists of equal shapes, as optimizers use it.
OutputSpecPtr infer_foreach(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  const auto dtypes = cpu_result_dtypes_of_lists(op, arguments);
  if (!dtypes) {
    return OutputSpecPtr();
  }
  auto output_spec = c10::make_intrusive<OutputSpec>();
  output_spec->is_list = true;
  const auto list = first_list(arguments);
  for (size_t i = 0; i < dtypes->size(); ++i) {
    add_result(op, *output_spec, (*dtypes)[i], list[i].toTensor().sizes());
  }
  return output_spec;
}

// Infers casts and empty_like; null for calls with unusual layout, memory format or dtype.
OutputSpecPtr infer_like(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name == "prims::convert_element_type") {
    return make_checked_spec(op, arguments[0].toTensor().sizes(), arguments[1].toScalarType());
  }
  if (op.name != "aten::empty_like") {
    return OutputSpecPtr();
  }
  const at::Tensor self = arguments[0].toTensor();
  const at::ScalarType dtype = arguments[1].isNone() ? self.scalar_type() : arguments[1].toScalarType();
  const bool dense = arguments[2].isNone() || arguments[2].toLayout() == at::kStrided;
  const bool formatted = !arguments[5].isNone() && arguments[5].toMemoryFormat() != at::MemoryFormat::Preserve;
  return dense && !formatted && !at::isQIntType(dtype) ? make_checked_spec(op, self.sizes(), dtype) : OutputSpecPtr();
}

// Infers the gradients of attention, each of the shape of its operand. Up to torch 2.13 the meta function returns those of
// keys and values that several query heads share for each of these heads.
OutputSpecPtr infer_attention_backward(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name != "aten::_scaled_dot_product_efficient_attention_backward") {
    return OutputSpecPtr();
  }
  auto output_spec = c10::make_intrusive<OutputSpec>();
  for (const size_t operand : {1, 2, 3, 4}) {  // query, key, value, bias
    const bool is_wanted = operand < 4 || (arguments[10].toBoolList().get(3) && !arguments[operand].isNone());
    add_result(op, *output_spec, is_wanted ? arguments[operand].toTensor() : at::Tensor());
  }
  return output_spec;
}

}  // namespace

OutputSpecPtr infer_uncached(const Op& op, c10::ArrayRef<c10::IValue> arguments) {
  if (OutputSpecPtr found = infer_like(op, arguments)) {
    return found;
  }
  if (OutputSpecPtr found = infer_attention_backward(op, arguments)) {
    return found;
  }
  const bool in_place = op.functional != nullptr && !op.random;
  if (op.pointwise && in_place) {
    check_broadcasts_to_self(arguments);
  }
  if (op.pointwise && !op.random) {
    if (OutputSpecPtr found = infer_pointwise(op, arguments, in_place)) {
      return found;
    }
  }
  if (op.foreach && !op.random) {
    if (OutputSpecPtr found = infer_foreach(op, arguments)) {
      return found;
    }
  }
  const torch::jit::Stack stack = results_on_meta(op, arguments);
  check_accepted_by_cpu(op, arguments, stack);
  check_expands(op, arguments);
  if (in_place && !op.pointwise) {
    check_result_fits(op, arguments);
  }
  auto output_spec = c10::make_intrusive<OutputSpec>();
  add_results(op, *output_spec, stack);
  if (in_place && output_spec->outs.size() == 1) {
    check_same_sizes(arguments[0].toTensor().sizes(), output_spec->outs[0].sizes);
  }
  return output_spec;
}

}  // namespace torch_xla
