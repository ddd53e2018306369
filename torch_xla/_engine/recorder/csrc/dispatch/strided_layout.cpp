#include "dispatch/strided_layout.h"

#include <ATen/Functions.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>

#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "ir/op.h"

namespace torch_xla {
namespace {

// Returns whether all views have one dtype, so that locations can be counted in elements.
bool has_single_dtype(const ViewChain& chain) {
  const at::ScalarType dtype = base_shape(chain).dtype;
  return std::all_of(chain.ops.begin(), chain.ops.end(), [&](const ViewPtr& step) {
    return step->from->outs[step->from_out].dtype == dtype && step->output_spec->outs[step->out].dtype == dtype;
  });
}

bool is_lazy(const ViewChain& chain) {
  return std::any_of(chain.ops.begin(), chain.ops.end(), [](const ViewPtr& step) { return is_lazy(step); });
}

// Applies the conj and neg views of a chain: each element of the view is the conjugate or negative of one in memory.
NodePtr apply_lazy_views(const ViewChain& chain, NodePtr value) {
  for (const ViewPtr& step : chain.ops) {
    if (is_lazy(step)) {
      value = record_node(*step->op, {c10::IValue(make_tensor(std::move(value)))});
    }
  }
  return value;
}

// Returns how many elements a tensor with these strides spans.
int64_t extent(at::IntArrayRef sizes, at::IntArrayRef strides) {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) {
      return 0;
    }
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

constexpr const char* kOverlapError =
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation.";

}  // namespace

void write_strided(XlaTensor& x, NodePtr value, bool uniform) {
  static const OpPointer as_strided("aten::as_strided");
  static const OpPointer slice("aten::slice.Tensor");
  const ViewChain chain = x.view_chain();
  const Layout layout = layout_of(chain);
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1 && layout.strides[dim] == 0) {
      TORCH_CHECK(uniform, kOverlapError);
      value = record_node(*slice, {c10::IValue(make_tensor(std::move(value))), static_cast<int64_t>(dim), 0, 1, 1});
      sizes[dim] = 1;
    }
  }
  TORCH_CHECK(has_single_dtype(chain) && (uniform || !strides_overlap(sizes, layout.strides)), kOverlapError);
  value = apply_lazy_views(chain, std::move(value));  // each is its own inverse
  const at::Tensor base = x.base_tensor();
  NodePtr elements = record_node(*as_strided, {c10::IValue(base), c10::IValue(sizes),
                                               c10::IValue(at::IntArrayRef(layout.strides)), layout.offset});
  const at::Tensor written = maybe_xla(base)->make_view(std::move(elements), false);
  maybe_xla(written)->write(std::move(value));
}

void check_view_as(XlaTensor& x, at::ScalarType dtype) {
  const ViewChain chain = x.view_chain();
  if (chain.ops.empty()) {
    return;
  }
  const Layout layout = layout_of(chain);
  const PythonReentryScope reentry;
  const c10::impl::ExcludeDispatchKeyGuard below(keys_above_kernel());
  const auto options = at::TensorOptions().dtype(x.dtype()).device(at::kMeta);
  at::empty({layout.offset + extent(x.sizes(), layout.strides)}, options)
      .as_strided(x.sizes(), layout.strides, layout.offset)
      .view(dtype);
}

at::Tensor view_as_strided(XlaTensor& x, at::IntArrayRef sizes, at::IntArrayRef strides,
                           std::optional<int64_t> offset) {
  static const OpPointer as_strided("aten::as_strided");
  const ViewChain chain = x.view_chain();
  const at::Tensor base = x.base_tensor();
  TORCH_CHECK_NOT_IMPLEMENTED(chain.ops.empty() || has_single_dtype(chain), "aten::as_strided: a view of ",
                              at::toString(c10::typeMetaToScalarType(x.dtype())), " elements on memory of dtype ",
                              at::toString(base.scalar_type()), " is not supported on xla; use clone() first");
  const int64_t start = offset.value_or(chain.ops.empty() ? 0 : layout_of(chain).offset);
  const auto itemsize = static_cast<int64_t>(base.itemsize());
  const int64_t spanned = extent(sizes, strides);
  TORCH_CHECK(spanned == 0 || start + spanned <= base.numel(), "setStorage: sizes ", sizes, ", strides ", strides,
              ", storage offset ", start, ", and itemsize ", itemsize, " requiring a storage size of ",
              (start + spanned) * itemsize, " are out of bounds for storage of size ", base.numel() * itemsize);
  flush_if_over_limit();
  const NodePtr node =
      record_node(*as_strided, {c10::IValue(base), c10::IValue(sizes), c10::IValue(strides), c10::IValue(start)});
  at::Tensor view = maybe_xla(base)->make_view(node, strides_overlap(sizes, strides));
  for (const ViewPtr& step : chain.ops) {
    if (step->op->name == "aten::_conj" || step->op->name == "aten::_neg_view") {
      view = maybe_xla(view)->make_view(record_node(*step->op, {c10::IValue(view)}), false);
    }
  }
  count_pending(node->device);
  return view;
}

bool base_has_room(XlaTensor& x, at::IntArrayRef sizes) {
  const ViewChain chain = x.view_chain();
  if (chain.ops.empty() ? x.storage_id() == 0 : !has_single_dtype(chain)) {
    return false;
  }
  const int64_t start = chain.ops.empty() ? 0 : layout_of(chain).offset;
  return start + c10::multiply_integers(sizes) <= x.base_tensor().numel();
}

at::Tensor flat_base_from(XlaTensor& x) {
  const ViewChain chain = x.view_chain();
  if (chain.ops.empty()) {
    return make_tensor(x.value());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(has_single_dtype(chain), "aten::resize_: resizing a view of ",
                              at::toString(c10::typeMetaToScalarType(x.dtype())), x.sizes(), " on memory of dtype ",
                              at::toString(base_shape(chain).dtype),
                              " is not supported on xla; resize its clone() instead");
  return view_as_strided(x, {x.base_tensor().numel() - layout_of(chain).offset}, {1}, std::nullopt);
}

void check_no_partial_overlap(XlaTensor& written, XlaTensor& read, bool copies_lazy) {
  const bool none = &written == &read || written.numel() == 0 || read.numel() == 0;
  const uint64_t storage = none ? 0 : written.storage_id();
  if (storage == 0 || storage != read.storage_id()) {
    return;
  }
  const auto layout = [](XlaTensor& x, const ViewChain& chain) {
    return chain.ops.empty() ? Layout{c10::contiguous_strides(x.sizes()), 0} : layout_of(chain);
  };
  const ViewChain chain[2] = {written.view_chain(), read.view_chain()};
  const Layout a = layout(written, chain[0]);
  const Layout b = layout(read, chain[1]);
  const auto dense = [](const XlaTensor& x, const Layout& layout) {
    return extent(x.sizes(), layout.strides) == x.numel() && !strides_overlap(x.sizes(), layout.strides);
  };
  // torch does not check further either, if one of them has gaps.
  if ((copies_lazy && (is_lazy(chain[0]) || is_lazy(chain[1]))) || !dense(written, a) || !dense(read, b)) {
    return;
  }
  // In bytes: one of them may be a view with another dtype.
  const auto bytes = [](const XlaTensor& x, int64_t elements) {
    return elements * static_cast<int64_t>(x.dtype().itemsize());
  };
  const int64_t first_a = bytes(written, a.offset);
  const int64_t first_b = bytes(read, b.offset);
  const int64_t end_a = first_a + bytes(written, written.numel());
  const int64_t end_b = first_b + bytes(read, read.numel());
  const bool disjoint = end_a <= first_b || end_b <= first_a;
  const bool same = first_a == first_b && end_a == end_b && a.strides == b.strides;
  TORCH_CHECK(disjoint || same,
              "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
              "memory location. Please clone() the tensor before performing the operation.");
}

void check_no_partial_overlap(XlaTensor& written, c10::ArrayRef<c10::IValue> read) {
  for (const c10::IValue& argument : read) {
    XlaTensor* x = argument.isTensor() ? maybe_xla(argument.toTensor()) : nullptr;
    if (x != nullptr && x != &written) {
      check_no_partial_overlap(written, *x);
    }
  }
}

}  // namespace torch_xla
