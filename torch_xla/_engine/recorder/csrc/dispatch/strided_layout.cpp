#include "dispatch/strided_layout.h"

#include <ATen/Functions.h>
#include <ATen/TensorGeometry.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <array>
#include <memory>

#include "dispatch/graph_size_limit.h"
#include "dispatch/record.h"
#include "ir/op.h"

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

Key key_of(const ViewChain& steps) {
  Key key;
  for (const auto& step : steps.ops) {
    key.mix(step->key.a);
    key.mix(step->key.b);
    key.mix(static_cast<uint64_t>(step->out));
    if (step->has_start) {
      key.mix(static_cast<uint64_t>(step->attrs[step->op->start].toInt()));
    }
  }
  return key;
}

const Shape& memory_of(const ViewChain& steps) { return steps.ops.front()->from->outs[steps.ops.front()->from_out]; }

// Everything that is not the kernel itself.
c10::DispatchKeySet below_modes() {
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset | c10::python_ks |
         c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::ADInplaceOrView,
                              c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                              c10::DispatchKey::FuncTorchDynamicLayerBackMode});
}

bool is_lazy(const ViewPtr& step) { return step->op->name == "aten::_conj" || step->op->name == "aten::_neg_view"; }

Layout ask_torch(const ViewChain& steps) {
  const PythonReentryScope here;
  const c10::impl::ExcludeDispatchKeyGuard below(below_modes());
  const Shape& memory = memory_of(steps);
  at::Tensor shown = at::empty(memory.sizes, at::TensorOptions().dtype(memory.dtype).device(at::kMeta));
  for (const ViewPtr& step : steps.ops) {
    if (is_lazy(step)) {
      continue;  // nothing lies otherwise; and a tensor of torch's that is lazy is not viewed as one of real numbers
    }
    torch::jit::Stack stack(step->attrs.begin(), step->attrs.end());
    stack[0] = shown;
    step->op->handle.callBoxed(&stack);
    shown = stack[0].isTensorList() ? stack[0].toTensorVector()[step->out] : stack[0].toTensor();
  }
  return {at::DimVector(shown.strides().begin(), shown.strides().end()), shown.storage_offset()};
}

// Whether all steps are between tensors of one dtype, so that places can be counted in elements.
bool one_dtype(const ViewChain& steps) {
  const at::ScalarType dtype = memory_of(steps).dtype;
  return std::all_of(steps.ops.begin(), steps.ops.end(), [&](const ViewPtr& step) {
    return step->from->outs[step->from_out].dtype == dtype && step->signature->outs[step->out].dtype == dtype;
  });
}

bool is_lazy(const ViewChain& steps) {
  return std::any_of(steps.ops.begin(), steps.ops.end(), [](const ViewPtr& step) { return is_lazy(step); });
}

// What a view shows of each element that lies in the memory: the element, its conjugate, its negative.
NodePtr through_lazy_steps(const ViewChain& steps, NodePtr value) {
  for (const ViewPtr& step : steps.ops) {
    if (is_lazy(step)) {
      value = record_node(*step->op, {c10::IValue(make_tensor(std::move(value)))});
    }
  }
  return value;
}

// How many elements a tensor of these strides spans.
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

constexpr const char* kShared =
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation.";

}  // namespace

Layout layout_of(const ViewChain& steps) {
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

bool is_contiguous_on_cpu(XlaTensor& x) {
  const ViewChain steps = x.steps();
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

void write_strided(XlaTensor& x, NodePtr value, bool uniform) {
  static const Op* as_strided = find_op("aten::as_strided");
  static const Op* slice = find_op("aten::slice.Tensor");
  const ViewChain steps = x.steps();
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
  value = through_lazy_steps(steps, std::move(value));  // each is its own inverse
  const at::Tensor memory = x.base_tensor();
  NodePtr places = record_node(*as_strided, {c10::IValue(memory), c10::IValue(sizes),
                                             c10::IValue(at::IntArrayRef(layout.strides)), layout.offset});
  const at::Tensor written = maybe_xla(memory)->make_view(std::move(places), false);
  maybe_xla(written)->write(std::move(value));
}

void check_view_as(XlaTensor& x, at::ScalarType dtype) {
  const ViewChain steps = x.steps();
  if (steps.ops.empty()) {
    return;
  }
  const Layout layout = layout_of(steps);
  const PythonReentryScope here;
  const c10::impl::ExcludeDispatchKeyGuard below(below_modes());
  const auto options = at::TensorOptions().dtype(x.dtype()).device(at::kMeta);
  at::empty({layout.offset + extent(x.sizes(), layout.strides)}, options)
      .as_strided(x.sizes(), layout.strides, layout.offset)
      .view(dtype);
}

at::Tensor view_of_memory(XlaTensor& x, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset) {
  static const Op* as_strided = find_op("aten::as_strided");
  const ViewChain steps = x.steps();
  const at::Tensor memory = x.base_tensor();
  TORCH_CHECK_NOT_IMPLEMENTED(steps.ops.empty() || one_dtype(steps), "aten::as_strided: of ",
                              at::toString(c10::typeMetaToScalarType(x.dtype())), " elements of a memory of ",
                              at::toString(memory.scalar_type()), " is not there on xla; take it of a clone()");
  const int64_t start = offset.value_or(steps.ops.empty() ? 0 : layout_of(steps).offset);
  const auto itemsize = static_cast<int64_t>(memory.itemsize());
  const int64_t spanned = extent(sizes, strides);
  TORCH_CHECK(spanned == 0 || start + spanned <= memory.numel(), "setStorage: sizes ", sizes, ", strides ", strides,
              ", storage offset ", start, ", and itemsize ", itemsize, " requiring a storage size of ",
              (start + spanned) * itemsize, " are out of bounds for storage of size ", memory.numel() * itemsize);
  flush_if_over_limit();
  const NodePtr node =
      record_node(*as_strided, {c10::IValue(memory), c10::IValue(sizes), c10::IValue(strides), c10::IValue(start)});
  at::Tensor view = maybe_xla(memory)->make_view(node, strides_overlap(sizes, strides));
  for (const ViewPtr& step : steps.ops) {
    if (step->op->name == "aten::_conj" || step->op->name == "aten::_neg_view") {
      view = maybe_xla(view)->make_view(record_node(*step->op, {c10::IValue(view)}), false);
    }
  }
  count_pending(node->device);
  return view;
}

bool base_has_room(XlaTensor& x, at::IntArrayRef sizes) {
  const ViewChain steps = x.steps();
  if (steps.ops.empty() ? x.memory_id() == 0 : !one_dtype(steps)) {
    return false;
  }
  const int64_t start = steps.ops.empty() ? 0 : layout_of(steps).offset;
  return start + c10::multiply_integers(sizes) <= x.base_tensor().numel();
}

at::Tensor flat_base_from(XlaTensor& x) {
  const ViewChain steps = x.steps();
  if (steps.ops.empty()) {
    return make_tensor(x.value());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(one_dtype(steps), "aten::resize_: of a view of ",
                              at::toString(c10::typeMetaToScalarType(x.dtype())), x.sizes(), " of a memory of ",
                              at::toString(memory_of(steps).dtype), " is not there on xla; resize its clone()");
  return view_of_memory(x, {x.base_tensor().numel() - layout_of(steps).offset}, {1}, std::nullopt);
}

void check_no_partial_overlap(XlaTensor& written, XlaTensor& read, bool copies_lazy) {
  const bool none = &written == &read || written.numel() == 0 || read.numel() == 0;
  const uint64_t memory = none ? 0 : written.memory_id();
  if (memory == 0 || memory != read.memory_id()) {
    return;
  }
  const auto place = [](XlaTensor& x, const ViewChain& steps) {
    return steps.ops.empty() ? Layout{c10::contiguous_strides(x.sizes()), 0} : layout_of(steps);
  };
  const ViewChain steps[2] = {written.steps(), read.steps()};
  const Layout a = place(written, steps[0]);
  const Layout b = place(read, steps[1]);
  const auto dense = [](const XlaTensor& x, const Layout& layout) {
    return extent(x.sizes(), layout.strides) == x.numel() && !strides_overlap(x.sizes(), layout.strides);
  };
  // torch, too, looks no further where one of them has gaps.
  if ((copies_lazy && (is_lazy(steps[0]) || is_lazy(steps[1]))) || !dense(written, a) || !dense(read, b)) {
    return;
  }
  // In bytes: one of them may be a view as another dtype.
  const auto bytes = [](const XlaTensor& x, int64_t elements) {
    return elements * static_cast<int64_t>(x.dtype().itemsize());
  };
  const int64_t first_a = bytes(written, a.offset);
  const int64_t first_b = bytes(read, b.offset);
  const int64_t end_a = first_a + bytes(written, written.numel());
  const int64_t end_b = first_b + bytes(read, read.numel());
  const bool apart = end_a <= first_b || end_b <= first_a;
  const bool same = first_a == first_b && end_a == end_b && a.strides == b.strides;
  TORCH_CHECK(apart || same,
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
