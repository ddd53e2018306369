#include "inference/grouped_matmul.h"

#include <ATen/Functions.h>

namespace torch_xla {

int64_t group_count(const at::Tensor& a, const at::Tensor& b, const c10::IValue& offsets) {
  return offsets.isNone() ? a.size(0) : offsets.toTensor().size(0);
}

std::string find_grouping_error(const at::Tensor& a, const at::Tensor& b, const c10::IValue& offsets,
                                const c10::IValue& bias) {
  const bool rows = a.dim() == 2, columns = b.dim() == 2;
  const std::string got =
      c10::str(", got mat_a ", a.scalar_type(), a.sizes(), " and mat_b ", b.scalar_type(), b.sizes());
  if ((!rows && a.dim() != 3) || (!columns && b.dim() != 3)) {
    return (!rows && a.dim() != 3 ? "mat_a" : "mat_b") + (" has to be 2 or 3d" + got);
  }
  if (a.size(-1) != b.size(-2)) {
    return "contraction dimension of mat_a and mat_b must match" + got;
  }
  if (offsets.isNone() == (rows || columns)) {
    return "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d" + got +
           (offsets.isNone() ? " without offsets" : " with offsets");
  }
  if (!offsets.isNone()) {
    const at::Tensor ends = offsets.toTensor();
    const std::string found = c10::str(", got ", ends.scalar_type(), ends.sizes());
    if (ends.dim() != 1) {
      return "offs has to be 1D" + found;
    }
    if (ends.scalar_type() != at::kInt) {
      return "Offsets have to be int32" + found;
    }
  }
  const int64_t groups = group_count(a, b, offsets);
  if ((!rows && a.size(0) != groups) || (!columns && b.size(0) != groups)) {
    return c10::str("matrix batch sizes have to match", got, " for ", groups, " groups");
  }
  return bias.isNone() ? "" : "Bias not supported yet; add it to the product" + got;
}

at::Tensor make_grouped_product(const at::Tensor& a, const at::Tensor& b, const c10::IValue& offsets,
                                at::ScalarType dtype) {
  at::DimVector sizes;
  if (a.dim() == b.dim()) {
    sizes.push_back(group_count(a, b, offsets));
  }
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-1));
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(at::kMeta));
}

at::Tensor grouped_mm_on_meta(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor(), b = arguments[1].toTensor();
  const std::string error = find_grouping_error(a, b, arguments[2], arguments[3]);
  TORCH_CHECK(error.empty(), error, " (aten::_grouped_mm)");
  const at::ScalarType dtype = a.scalar_type();
  TORCH_CHECK(
      dtype == b.scalar_type() && (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16),
      "Expected mat_a to be Float32, BFloat16 or Float16 matrix, and mat_b to be one of the same dtype, got mat_a ",
      dtype, a.sizes(), " and mat_b ", b.scalar_type(), b.sizes(), " (aten::_grouped_mm)");
  return make_grouped_product(a, b, arguments[2], arguments[4].isNone() ? dtype : arguments[4].toScalarType());
}

}  // namespace torch_xla
