// The strides that a view would have on a device with strided memory. xla tensors have none, but strides decide whether
// reshape() and contiguous() copy and which elements overlap, and the result must match the CPU's.
#pragma once

#include <ATen/core/DimVector.h>

#include "tensor/xla_tensor.h"

namespace torch_xla {

struct Layout {
  at::DimVector strides;
  int64_t offset = 0;  // of the first element
};

// Returns the layout of a nonempty view chain, computed by torch's meta kernels once per thread and chain. Call it
// without holding a lock.
Layout layout_of(const ViewChain& chain);

bool is_contiguous_on_cpu(XlaTensor& x);

// Returns whether the strides map two elements to one location, judging each dim separately.
bool strides_overlap(at::IntArrayRef sizes, at::IntArrayRef strides);

// Returns whether a view op computes conjugates or negatives, which other devices do lazily.
bool is_lazy(const ViewPtr& view);

// Returns the shape and dtype of a chain's base tensor.
const Shape& base_shape(const ViewChain& chain);

// Returns all dispatch keys above the kernel.
c10::DispatchKeySet keys_above_kernel();

}  // namespace torch_xla
