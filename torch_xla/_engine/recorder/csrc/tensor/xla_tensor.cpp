#include "tensor/xla_tensor.h"

#include <c10/util/safe_numerics.h>

#include <algorithm>

#include "tensor/view_layout.h"

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
  serial_ = state.linked++;
}

inline void XlaTensor::unlink() {
  auto& state = device_state(index_);
  std::lock_guard<SpinLock> lock(state.mutex);
  (previous ? previous->next : state.first) = next;
  (next ? next->previous : state.last) = previous;
  ++state.unlinked;
}

// Like set_sizes_contiguous, without recomputing the flags: a new TensorImpl has those of a contiguous tensor, except
// for channels_last, which exists for four and five dimensions.
inline void XlaTensor::init_sizes(at::IntArrayRef sizes) {
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
  init_sizes(node_->shape().sizes);
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
  view_op_pending_ = true;
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
  c10::SmallVector<const ViewOp*, 4> view_ops;
  for (const ViewOp* view = view_.get(); view != nullptr; view = view->parent.get()) {
    view_ops.push_back(view);
  }
  NodePtr value = alias_->value;
  for (auto step = view_ops.rbegin(); step != view_ops.rend(); ++step) {
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
  // Hold the mutex: another thread may write to this tensor, and free the Node that is read here.
  NodePtr before;
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  return current_value(before);
}

bool XlaTensor::shares_memory_with(const XlaTensor& other) const {
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  return this == &other || (alias_ && alias_ == other.alias_);
}

uint64_t XlaTensor::memory_locked() const {
  // An address is even, so that it differs from all serial numbers.
  return alias_ ? reinterpret_cast<uint64_t>(alias_.get()) : 2 * serial_ + 1;
}

uint64_t XlaTensor::memory() const {
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  return memory_locked();
}

bool XlaTensor::owns_alone_locked(const NodePtr& node) const {
  const size_t own = (node_ == node) + (alias_ && alias_->value == node);
  return !view_ && !view_op_pending_ && own > 0 && node.use_count() == own && node->buffer &&
         node->buffer.use_count() == 1;
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
  // Not in any list while it moves, so that neither device collects it.
  index_ = value->device;
  device_opt_ = c10::Device(c10::DeviceType::XLA, index_);
  view_op_pending_ = false;
  view_ = nullptr;
  alias_ = nullptr;
  node_ = value;
  id_ = 0;
  link();
}

}  // namespace torch_xla
