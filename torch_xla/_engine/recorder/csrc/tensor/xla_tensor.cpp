#include "tensor/xla_tensor.h"

#include <c10/util/safe_numerics.h>

#include <algorithm>

#include "dispatch/strided_layout.h"

namespace torch_xla {
namespace {

constexpr c10::DispatchKeySet kKeys({c10::DispatchKey::XLA, c10::DispatchKey::AutogradXLA});

}  // namespace

inline void XlaTensor::link() {
  DeviceState& state = device_state(index_);
  std::lock_guard<SpinLock> lock(state.mutex);
  link_locked(state);
}

inline void XlaTensor::link_locked(DeviceState& state) {
  next = nullptr;
  previous = state.last;
  (state.last ? state.last->next : state.first) = this;
  state.last = this;
  ++state.linked;
}

inline void XlaTensor::unlink() {
  auto& state = device_state(index_);
  std::lock_guard<SpinLock> lock(state.mutex);
  (previous ? previous->next : state.first) = next;
  (next ? next->previous : state.last) = previous;
  ++state.unlinked;
}

// What set_sizes_contiguous does, without computing the flags again: those of a new TensorImpl are those of a
// contiguous tensor, but for channels_last's, which tensors of four and five dimensions have.
inline void XlaTensor::set_first_sizes(at::IntArrayRef sizes) {
  const size_t dimensions = sizes.size();
  if (dimensions > 3) {
    set_sizes_contiguous(sizes);
    return;
  }
  sizes_and_strides_.set_sizes(sizes);
  int64_t stride = 1;
  bool overflows = false;
  for (size_t i = dimensions; i-- > 0;) {
    sizes_and_strides_.stride_at_unchecked(i) = stride;
    overflows |= c10::mul_overflows(stride, std::max<int64_t>(sizes[i], 1), &stride);
  }
  if (C10_UNLIKELY(overflows)) {
    set_sizes_contiguous(sizes);  // raises torch's error
    return;
  }
  numel_ = std::find(sizes.begin(), sizes.end(), 0) == sizes.end() ? stride : 0;
}

XlaTensor::XlaTensor(NodePtr node, Unlinked)
    : TensorImpl(kKeys, c10::scalarTypeToTypeMeta(node->shape().dtype),
                 c10::Device(c10::DeviceType::XLA, node->device)),
      index_(node->device),
      node_(std::move(node)) {
  set_storage_access_should_throw();
  is_non_overlapping_and_dense_ = true;
  set_first_sizes(node_->shape().sizes);
}

XlaTensor::XlaTensor(NodePtr node) : XlaTensor(std::move(node), Unlinked()) { link(); }

XlaTensor::XlaTensor(AliasPtr alias, ViewPtr view, NodePtr node, uint64_t version)
    : XlaTensor(std::move(node), Unlinked()) {
  alias_ = std::move(alias);
  view_ = std::move(view);
  version_ = version;
  if (view_) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomStrides);
  }
  link();
}

XlaTensor::XlaTensor(XlaTensor& base, NodePtr node, bool overlaps) : XlaTensor(std::move(node), Unlinked()) {
  unkept_ = true;
  overlaps_ = overlaps;
  set_custom_sizes_strides(SizesStridesPolicy::CustomStrides);
  DeviceState& state = device_state(index_);
  std::lock_guard<SpinLock> lock(state.mutex);
  base.ensure_alias();
  base.ensure_view();
  alias_ = base.alias_;
  view_ = base.view_;
  version_ = base.version_;
  link_locked(state);
}

XlaTensor::~XlaTensor() { unlink(); }

NodePtr XlaTensor::replay() const {
  c10::SmallVector<const ViewOp*, 4> steps;
  for (const ViewOp* view = view_.get(); view != nullptr; view = view->parent.get()) {
    steps.push_back(view);
  }
  NodePtr value = alias_->value;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    value = (*step)->apply(value);
  }
  return value;
}

const NodePtr& XlaTensor::current_value(NodePtr& before) {
  if (alias_ && is_stale()) {
    ensure_view();
    before = std::move(node_);
    node_ = replay();
    version_ = alias_->version;
  }
  return node_;
}

NodePtr XlaTensor::value() {
  // Always under the mutex: another thread may be writing to this tensor, and free the Node that is read here.
  NodePtr before;
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  return current_value(before);
}

c10::SymBool XlaTensor::sym_is_contiguous_custom(at::MemoryFormat format) const {
  if (format == at::MemoryFormat::Contiguous && is_view()) {
    return is_contiguous_on_cpu(const_cast<XlaTensor&>(*this));
  }
  return sym_is_contiguous_default(format);
}

void XlaTensor::set_shape_from(const Shape& shape) {
  set_custom_sizes_strides(SizesStridesPolicy::Default);
  if (sizes() != at::IntArrayRef(shape.sizes)) {
    set_sizes_contiguous(shape.sizes);
  }
  data_type_ = c10::scalarTypeToTypeMeta(shape.dtype);
}

void XlaTensor::move_to(const NodePtr& value) {
  unlink();
  // In no list, so that neither device collects it while it is between them.
  index_ = value->device;
  device_opt_ = c10::Device(c10::DeviceType::XLA, index_);
  unkept_ = false;
  view_ = nullptr;
  alias_ = nullptr;
  node_ = value;
  id_ = 0;
  link();
}

}  // namespace torch_xla
