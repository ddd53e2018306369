#include "inference/scaled_matmul.h"

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <array>

#include "inference/grouped_matmul.h"

namespace torch_xla {
namespace {

// torch.nn.functional.ScalingType
constexpr int64_t kTensorWise = 0;
constexpr int64_t kRowWise = 1;
constexpr std::array kRecipes{"TensorWise",    "RowWise",        "BlockWise1x16",
                              "BlockWise1x32", "BlockWise1x128", "BlockWise128x128"};

std::string describe(const at::Tensor& t) { return c10::str(t.scalar_type(), t.sizes()); }

std::string describe(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& t : tensors) {
    text += (text.empty() ? "" : ", ") + describe(t);
  }
  return text.empty() ? "none" : text;
}

std::string recipe_names(const std::vector<int64_t>& recipes) {
  std::string text;
  for (const int64_t recipe : recipes) {
    const bool known = recipe >= 0 && recipe < static_cast<int64_t>(kRecipes.size());
    text += (text.empty() ? "" : ", ") + (known ? std::string(kRecipes[recipe]) : std::to_string(recipe));
  }
  return text.empty() ? "none" : text;
}

void check_matrices(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_VALUE(a.dim() == 2, "mat_a must be a matrix, got ", describe(a));
  TORCH_CHECK_VALUE(b.dim() == 2, "mat_b must be a matrix, got ", describe(b));
  TORCH_CHECK_VALUE(a.size(1) == b.size(0), "mat_a and mat_b shapes cannot be multiplied (", a.size(0), "x", a.size(1),
                    " and ", b.size(0), "x", b.size(1), ")");
}

void check_contraction(const at::Tensor& a, const at::Tensor& b, const std::vector<int64_t>& dims) {
  TORCH_CHECK_VALUE(dims.empty() || dims.size() == 2, "contraction_dim must have exactly 2 elements");
  TORCH_CHECK_VALUE(dims.empty() || a.size(dims[0]) == b.size(dims[1]), "mat_a and mat_b shapes cannot be multiplied (",
                    a.size(0), "x", a.size(1), " and ", b.size(0), "x", b.size(1), ") with contraction dims ", dims);
}

void check_bias(const c10::IValue& bias, int64_t columns) {
  if (bias.isNone()) {
    return;
  }
  const at::Tensor given = bias.toTensor();
  const at::ScalarType dtype = given.scalar_type();
  TORCH_CHECK_VALUE(given.numel() == columns, "Bias must be size ", columns, " but got ", given.numel());
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                    "Bias must be Float32 or BFloat16 or Half, but got ", at::toString(dtype));
}

bool is_float8(const at::Tensor& a, const at::Tensor& b) {
  return at::isFloat8Type(a.scalar_type()) && at::isFloat8Type(b.scalar_type());
}

constexpr auto kFix =
    "Scale whole rows and columns, or multiply the blocks by their scales and call torch.matmul in bfloat16.";

bool has_swizzle(const std::vector<int64_t>& kinds) {
  return std::any_of(kinds.begin(), kinds.end(), [](int64_t kind) { return kind != 0; });
}

// A call of aten::_scaled_grouped_mm or _scaled_grouped_mm_v2.
struct GroupedCall {
  std::string name;
  at::Tensor a, b;
  std::vector<at::Tensor> of_rows, of_columns;
  c10::IValue offsets, bias, out_dtype;
  std::string recipes;  // as an error prints them
  bool by_row = true;   // whether they are one scale for each row and column
};

// The scales of a matrix with `count` rows or columns: a vector for a matrix that the offsets divide, repeated for each
// group if they divide both matrices, and a vector for each matrix of a batch.
at::DimVector scale_sizes(const GroupedCall& call, const at::Tensor& matrix, int64_t count) {
  const int64_t groups = group_count(call.a, call.b, call.offsets);
  if (matrix.dim() == 3) {
    return {groups, count};
  }
  return {call.a.dim() == call.b.dim() ? groups * count : count};
}

at::Tensor scaled_groups_on_meta(const GroupedCall& call) {
  const std::string error = find_grouping_error(call.a, call.b, call.offsets, call.bias);
  TORCH_CHECK_VALUE(error.empty(), error, " (", call.name, ")");
  const at::DimVector rows = scale_sizes(call, call.a, call.a.size(-2));
  const at::DimVector columns = scale_sizes(call, call.b, call.b.size(-1));
  const auto has_scales = [](const std::vector<at::Tensor>& scales, at::IntArrayRef sizes) {
    return scales.size() == 1 && scales[0].scalar_type() == at::kFloat && scales[0].sizes() == sizes;
  };
  TORCH_CHECK_VALUE(call.by_row && is_float8(call.a, call.b) && has_scales(call.of_rows, rows) &&
                        has_scales(call.of_columns, columns),
                    "Invalid scaling configuration.\n", call.name,
                    ": xla multiplies float8 matrices by groups with one float32 scale for each row of mat_a and each "
                    "column of mat_b (RowWise), in tensors of the shapes ",
                    at::IntArrayRef(rows), " and ", at::IntArrayRef(columns), "; got mat_a ", describe(call.a),
                    ", mat_b ", describe(call.b), call.recipes, ", scales ", describe(call.of_rows), " and ",
                    describe(call.of_columns),
                    ". Scale whole rows and columns, or multiply the blocks by their scales and call "
                    "torch.nn.functional.grouped_mm in bfloat16.");
  const at::ScalarType dtype = call.out_dtype.isNone() ? at::kBFloat16 : call.out_dtype.toScalarType();
  TORCH_CHECK_VALUE(dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat, call.name,
                    ": the result must be BFloat16, Half or Float, got ", at::toString(dtype), " for mat_a ",
                    describe(call.a), " and mat_b ", describe(call.b), "; convert the result with .to(dtype)");
  return make_grouped_product(call.a, call.b, call.offsets, dtype);
}

}  // namespace

void check_scaled_mm(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor(), b = arguments[1].toTensor();
  const at::Tensor of_rows = arguments[2].toTensor(), of_columns = arguments[3].toTensor();
  check_matrices(a, b);
  const bool by_tensor = of_rows.numel() == 1 && of_columns.numel() == 1;
  const bool by_row =
      of_rows.sizes() == at::IntArrayRef({a.size(0), 1}) && of_columns.sizes() == at::IntArrayRef({1, b.size(1)});
  TORCH_CHECK_VALUE(is_float8(a, b) && (by_tensor || by_row) && of_rows.scalar_type() == at::kFloat &&
                        of_columns.scalar_type() == at::kFloat,
                    "Invalid scaling configuration.\naten::_scaled_mm: xla multiplies float8 matrices with one float32 "
                    "scale for each, or with scales of the shapes [",
                    a.size(0), ", 1] and [1, ", b.size(1), "]; got mat_a ", describe(a), ", mat_b ", describe(b),
                    ", scales ", describe(of_rows), " and ", describe(of_columns), ". ", kFix);
  check_bias(arguments[4], b.size(1));
}

at::Tensor scaled_mm_v2_on_meta(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor(), b = arguments[1].toTensor();
  const auto of_rows = arguments[2].toTensorVector(), of_columns = arguments[5].toTensorVector();
  const auto recipe_a = arguments[3].toIntVector(), recipe_b = arguments[6].toIntVector();
  const auto swizzle_a = arguments[4].toIntVector(), swizzle_b = arguments[7].toIntVector();
  check_matrices(a, b);
  check_contraction(a, b, arguments[10].toIntVector());
  const auto has_scales = [](const std::vector<at::Tensor>& scales, const std::vector<int64_t>& recipes,
                             int64_t count) {
    const bool is_one = scales.size() == 1 && recipes.size() == 1 && scales[0].scalar_type() == at::kFloat;
    return is_one && ((recipes[0] == kTensorWise && scales[0].numel() == 1) ||
                      (recipes[0] == kRowWise && scales[0].numel() == count));
  };
  TORCH_CHECK_VALUE(
      is_float8(a, b) && recipe_a == recipe_b && has_scales(of_rows, recipe_a, a.size(0)) &&
          has_scales(of_columns, recipe_b, b.size(1)) && !has_swizzle(swizzle_a) && !has_swizzle(swizzle_b),
      "Invalid scaling configuration.\naten::_scaled_mm_v2: xla multiplies float8 matrices with one float32 scale for "
      "each (ScalingType.TensorWise), or with one for each row of mat_a and column of mat_b (RowWise: ",
      a.size(0), " and ", b.size(1), " scales), without swizzles; got mat_a ", describe(a), ", mat_b ", describe(b),
      ", recipes ", recipe_names(recipe_a), " and ", recipe_names(recipe_b), ", scales ", describe(of_rows), " and ",
      describe(of_columns), has_swizzle(swizzle_a) || has_swizzle(swizzle_b) ? ", with swizzles" : "", ". ", kFix);
  check_bias(arguments[8], b.size(1));
  const at::ScalarType dtype = arguments[9].isNone() ? a.scalar_type() : arguments[9].toScalarType();
  return at::empty({a.size(0), b.size(1)}, at::TensorOptions().dtype(dtype).device(at::kMeta));
}

at::Tensor scaled_grouped_mm_on_meta(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor(), b = arguments[1].toTensor();
  TORCH_CHECK_VALUE(arguments[6].isNone(), "Scale result not supported yet; multiply the product by it, got mat_a ",
                    describe(a), " and mat_b ", describe(b), " (aten::_scaled_grouped_mm)");
  const std::vector<at::Tensor> of_rows{arguments[2].toTensor()}, of_columns{arguments[3].toTensor()};
  return scaled_groups_on_meta({"aten::_scaled_grouped_mm", a, b, of_rows, of_columns, arguments[4], arguments[5],
                                arguments[7], /*recipes=*/""});
}

at::Tensor scaled_grouped_mm_v2_on_meta(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor(), b = arguments[1].toTensor();
  const auto recipe_a = arguments[3].toIntVector(), recipe_b = arguments[6].toIntVector();
  const bool swizzled = has_swizzle(arguments[4].toIntVector()) || has_swizzle(arguments[7].toIntVector());
  const std::vector<int64_t> by_row{kRowWise}, dims = arguments[11].toIntVector();
  TORCH_CHECK_VALUE(dims.empty() || dims.size() == 2, "contraction_dim must have exactly 2 elements");
  TORCH_CHECK_VALUE(dims.empty() || (at::maybe_wrap_dim(dims[0], a.dim()) == a.dim() - 1 &&
                                     at::maybe_wrap_dim(dims[1], b.dim()) == b.dim() - 2),
                    "aten::_scaled_grouped_mm_v2: xla contracts the last dimension of mat_a and the last but one of "
                    "mat_b, got the dimensions ",
                    at::IntArrayRef(dims), " of ", describe(a), " and ", describe(b), "; transpose the matrices");
  const std::string recipes = c10::str(", recipes ", recipe_names(recipe_a), " and ", recipe_names(recipe_b),
                                       swizzled ? ", with swizzles" : "");
  return scaled_groups_on_meta({"aten::_scaled_grouped_mm_v2", a, b, arguments[2].toTensorVector(),
                                arguments[5].toTensorVector(), arguments[8], arguments[9], arguments[10], recipes,
                                recipe_a == by_row && recipe_b == by_row && !swizzled});
}

}  // namespace torch_xla
