#include "dispatch/data_dependent.h"

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "inference/index_checks.h"

namespace torch_xla {
namespace {

// x[mask]: the mask's values determine the result's size.
bool reads_by_mask(c10::ArrayRef<c10::IValue> arguments) {
  for (const auto& index : arguments[1].toListRef()) {
    if (is_mask(index)) {
      return true;
    }
  }
  return false;
}

// x[mask] = y is a select and stays on the device; a mask combined with another index is an index list of unknown
// length.
bool writes_by_mask_and_index(c10::ArrayRef<c10::IValue> arguments) {
  size_t count = 0;
  for (const auto& index : arguments[1].toListRef()) {
    count += index.isTensor() && index.toTensor().defined();
  }
  return count > 1 && reads_by_mask(arguments);
}

// Whether residuals are returned depends on the rank, which is a value.
bool has_residuals_by_values(c10::ArrayRef<c10::IValue> arguments) {
  const at::Tensor a = arguments[0].toTensor();
  return !arguments[3].isNone() && (arguments[3].toStringRef() == "gelss" || arguments[3].toStringRef() == "gelsd") &&
         a.dim() >= 2 && a.size(-2) > a.size(-1);
}

// torch rejects writing a complex number to a real tensor unless its imaginary part is 0, and a float to an integer
// tensor unless it is integral: that depends on the value.
bool converts_by_value(const c10::IValue& self, const c10::IValue& value) {
  const at::Tensor x = value.toTensor();
  return x.dim() == 0 && x.device().is_xla() && !c10::canCast(x.scalar_type(), self.toTensor().scalar_type());
}

bool fills_mask_by_value(c10::ArrayRef<c10::IValue> arguments) { return converts_by_value(arguments[0], arguments[2]); }

bool fills_index_by_value(c10::ArrayRef<c10::IValue> arguments) {
  return converts_by_value(arguments[0], arguments[3]);
}

bool puts_by_value(c10::ArrayRef<c10::IValue> arguments) {
  return writes_by_mask_and_index(arguments) ||
         (reads_by_mask(arguments) && converts_by_value(arguments[0], arguments[2]));
}

}  // namespace

DependsOnValues depends_on_values(const std::string& name) {
  static const std::unordered_map<std::string, DependsOnValues> table{
      {"aten::_index_put_impl", puts_by_value},
      {"aten::_unsafe_index.Tensor", reads_by_mask},
      {"aten::_unsafe_index_put", writes_by_mask_and_index},
      {"aten::index.Tensor", reads_by_mask},
      {"aten::index_fill.int_Tensor", fills_index_by_value},
      {"aten::index_put", puts_by_value},
      {"aten::linalg_lstsq", has_residuals_by_values},
      {"aten::masked_fill.Tensor", fills_mask_by_value},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace torch_xla
