#include "layout.h"

#include <ATen/Functions.h>
#include <ATen/TensorGeometry.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <memory>

#include "op.h"
#include "record.h"

namespace torch_xla {
namespace {

// Per thread: asking torch's meta kernels takes microseconds.
struct Known {
  static constexpr size_t kSize = 512;
  struct Entry {
    Key key;
    bool known = false;
    Layout layout;
  };
  std::array<Entry, kSize> entries;
};

Key key_of(const Steps& steps) {
  Key key;
  for (const auto& step : steps.ops) {
    key.mix(step->key.a);
    key.mix(step->key.b);
    key.mix(static_cast<uint64_t>(step->out));
  }
  return key;
}

const Shape& memory_of(const Steps& steps) { return steps.ops.front()->from->outs[steps.ops.front()->from_out]; }

Layout ask_torch(const Steps& steps) {
  const MayRunPython here;
  c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset | c10::python_ks |
      c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::ADInplaceOrView,
                           c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode}));
  const Shape& memory = memory_of(steps);
  at::Tensor shown = at::empty(memory.sizes, at::TensorOptions().dtype(memory.dtype).device(at::kMeta));
  for (const ViewPtr& step : steps.ops) {
    torch::jit::Stack stack(step->attrs.begin(), step->attrs.end());
    stack[0] = shown;
    step->op->handle.callBoxed(&stack);
    shown = stack[0].isTensorList() ? stack[0].toTensorVector()[step->out] : stack[0].toTensor();
  }
  return {at::DimVector(shown.strides().begin(), shown.strides().end()), shown.storage_offset()};
}

// Whether all steps are between tensors of one dtype, so that places can be counted in elements.
bool one_dtype(const Steps& steps) {
  const at::ScalarType dtype = memory_of(steps).dtype;
  return std::all_of(steps.ops.begin(), steps.ops.end(), [&](const ViewPtr& step) {
    return step->from->outs[step->from_out].dtype == dtype && step->signature->outs[step->out].dtype == dtype;
  });
}

constexpr const char* kShared =
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation.";

}  // namespace

Layout layout_of(const Steps& steps) {
  static thread_local auto known = std::make_unique<Known>();
  const Key key = key_of(steps);
  Known::Entry& entry = known->entries[key.a % Known::kSize];
  if (!entry.known || !(entry.key == key)) {
    entry.layout = ask_torch(steps);
    entry.key = key;
    entry.known = true;
  }
  return entry.layout;
}

bool is_contiguous_elsewhere(XlaTensor& x) {
  const Steps steps = x.steps();
  return steps.ops.empty() || at::geometry_is_contiguous(x.sizes(), layout_of(steps).strides);
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

void write_in_memory(XlaTensor& x, NodePtr value, bool uniform) {
  static const Op* as_strided = find_op("aten::as_strided");
  static const Op* slice = find_op("aten::slice.Tensor");
  const Steps steps = x.steps();
  const Layout layout = layout_of(steps);
  std::vector<int64_t> sizes = x.sizes().vec();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] > 1 && layout.strides[dim] == 0) {
      TORCH_CHECK(uniform, kShared);
      value = record_node(*slice, {c10::IValue(make_tensor(std::move(value))), static_cast<int64_t>(dim), 0, 1, 1});
      sizes[dim] = 1;
    }
  }
  TORCH_CHECK(one_dtype(steps) && (uniform || !strides_overlap(sizes, layout.strides)), kShared);
  const at::Tensor memory = x.memory();
  NodePtr places = record_node(*as_strided, {c10::IValue(memory), c10::IValue(sizes),
                                             c10::IValue(at::IntArrayRef(layout.strides)), layout.offset});
  const at::Tensor written = maybe_xla(memory)->make_view(std::move(places), false);
  maybe_xla(written)->write(std::move(value));
}

}  // namespace torch_xla
