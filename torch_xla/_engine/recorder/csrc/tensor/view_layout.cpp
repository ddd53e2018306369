#include "tensor/view_layout.h"

#include <ATen/Functions.h>
#include <ATen/TensorGeometry.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <memory>

#include "ir/op.h"

namespace torch_xla {
namespace {

// A per-thread cache: torch's meta kernels take microseconds.
struct LayoutCache {
  static constexpr size_t kSize = 512;
  struct Entry {
    Key key;
    bool valid = false;
    Layout layout;
  };
  std::array<Entry, kSize> entries;
};

Key chain_key(const ViewChain& chain) {
  Key key;
  for (const auto& step : chain.ops) {
    key.mix(step->key.a);
    key.mix(step->key.b);
    key.mix(static_cast<uint64_t>(step->out));
    if (step->has_start) {
      key.mix(static_cast<uint64_t>(step->attrs[step->op->start].toInt()));
    }
  }
  return key;
}

Layout compute_on_meta(const ViewChain& chain) {
  const PythonReentryScope reentry;
  const c10::impl::ExcludeDispatchKeyGuard below(keys_above_kernel());
  const Shape& base = base_shape(chain);
  at::Tensor view = at::empty(base.sizes, at::TensorOptions().dtype(base.dtype).device(at::kMeta));
  for (const ViewPtr& step : chain.ops) {
    if (is_lazy(step)) {
      continue;  // strides do not change, and torch rejects some views of lazily conjugated meta tensors
    }
    torch::jit::Stack stack(step->attrs.begin(), step->attrs.end());
    stack[0] = view;
    step->op->handle.callBoxed(&stack);
    view = stack[0].isTensorList() ? stack[0].toTensorVector()[step->out] : stack[0].toTensor();
  }
  return {at::DimVector(view.strides().begin(), view.strides().end()), view.storage_offset()};
}

}  // namespace

const Shape& base_shape(const ViewChain& chain) { return chain.ops.front()->from->outs[chain.ops.front()->from_out]; }

c10::DispatchKeySet keys_above_kernel() {
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset | c10::python_ks |
         c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::ADInplaceOrView,
                              c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                              c10::DispatchKey::FuncTorchDynamicLayerBackMode});
}

bool is_lazy(const ViewPtr& step) { return step->op->name == "aten::_conj" || step->op->name == "aten::_neg_view"; }

Layout layout_of(const ViewChain& chain) {
  static thread_local auto valid = std::make_unique<LayoutCache>();
  const Key key = chain_key(chain);
  LayoutCache::Entry& entry = valid->entries[key.a % LayoutCache::kSize];
  if (!entry.valid || !(entry.key == key)) {
    entry.layout = compute_on_meta(chain);
    entry.key = key;
    entry.valid = true;
  }
  return entry.layout;
}

bool is_contiguous_on_cpu(XlaTensor& x) {
  const ViewChain chain = x.view_chain();
  return chain.ops.empty() || at::geometry_is_contiguous(x.sizes(), layout_of(chain).strides);
}

bool strides_overlap(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) {
      dims.emplace_back(strides[i], sizes[i]);
    }
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) {
      return true;
    }
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace torch_xla
