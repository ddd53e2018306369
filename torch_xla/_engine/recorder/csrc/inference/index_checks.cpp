#include "inference/index_checks.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace torch_xla {
namespace {

// Checks that there are not more indices than dims, and that a mask has the sizes of the dims that it selects from.
void check_indices(const at::Tensor& x, c10::ArrayRef<c10::IValue> indices) {
  int64_t dim = 0;
  for (const c10::IValue& index : indices) {
    if (!is_mask(index)) {
      ++dim;
      continue;
    }
    const at::Tensor mask = index.toTensor();
    for (int64_t i = 0; i < mask.dim(); ++i) {
      TORCH_CHECK_INDEX(dim + i < x.dim() && mask.size(i) == x.size(dim + i), "The shape of the mask ", mask.sizes(),
                        " at index ", i, " does not match the shape of the indexed tensor ", x.sizes(), " at index ",
                        dim + i);
    }
    dim += mask.dim();
  }
  TORCH_CHECK_INDEX(dim <= x.dim(), "too many indices for tensor of dimension ", x.dim(), " (got ", dim, ")");
}

bool is_empty(const c10::IValue& value) { return value.isTensor() && value.toTensor().numel() == 0; }

template <typename T>
void check_values(const at::Tensor& index, int64_t dim, int64_t size) {
  const at::Tensor values = index.contiguous();
  const T* begin = values.const_data_ptr<T>();
  const T* end = begin + values.numel();
  const T* found = std::find_if(begin, end, [size](T value) { return value < -size || value >= size; });
  TORCH_CHECK_INDEX(found == end, "index ", *found, " is out of bounds for dimension ", dim, " with size ", size);
}

}  // namespace

void check_cpu_indices(const at::Tensor& x, c10::ArrayRef<c10::IValue> indices) {
  int64_t dim = 0;
  int64_t number = 0;  // of the index among the given ones: torch calls it the dimension
  for (const c10::IValue& value : indices) {
    const bool exists = value.isTensor() && value.toTensor().defined();
    if (exists && !is_mask(value) && value.toTensor().device().is_cpu() && dim < x.dim()) {
      const at::Tensor index = value.toTensor();
      if (index.scalar_type() == at::kLong) {
        check_values<int64_t>(index, number, x.size(dim));
      } else if (index.scalar_type() == at::kInt) {
        check_values<int32_t>(index, number, x.size(dim));
      }
    }
    const int64_t dims = exists && is_mask(value) ? value.toTensor().dim() : 1;
    dim += dims;
    number += exists ? dims : 0;
  }
}

bool is_mask(const c10::IValue& index) {
  return index.isTensor() && index.toTensor().defined() &&
         (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
}

bool is_invalid_index_write(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  if (name == "aten::index_put" || name == "aten::_index_put_impl" || name == "aten::index_copy") {
    const size_t source = name == "aten::index_copy" ? 3 : 2;
    const auto indices = name == "aten::index_copy" ? c10::ArrayRef<c10::IValue>() : arguments[1].toListRef();
    check_indices(arguments[0].toTensor(), indices);
    return arguments[0].toTensor().scalar_type() != arguments[source].toTensor().scalar_type() ||
           std::any_of(indices.begin(), indices.end(), is_empty) ||
           (!indices.empty() && arguments[source].toTensor().numel() != 1 &&
            std::none_of(indices.begin(), indices.end(), is_mask));
  }
  return (name == "aten::index.Tensor" || name == "aten::gather" || name == "aten::take") && is_empty(arguments[0]);
}

}  // namespace torch_xla
