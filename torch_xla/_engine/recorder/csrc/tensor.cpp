#include "tensor.h"

#include <c10/util/safe_numerics.h>

#include <algorithm>

#include "counters.h"
#include "layout.h"
#include "op.h"
#include "origin.h"
#include "record.h"
#include "sharding.h"

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

NodePtr XlaTensor::newest(int8_t device) {
  auto& state = device_state(device);
  std::lock_guard<SpinLock> lock(state.mutex);
  for (XlaTensor* t = state.last; t != nullptr; t = t->previous) {
    if (t->node_ && at::isFloatingType(t->node_->shape().dtype) && t->numel() > 0) {
      return t->node_;
    }
  }
  return NodePtr();
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

XlaTensor::XlaTensor(NodePtr node, InNoList)
    : TensorImpl(kKeys, c10::scalarTypeToTypeMeta(node->shape().dtype),
                 c10::Device(c10::DeviceType::XLA, node->device)),
      index_(node->device),
      node_(std::move(node)) {
  set_storage_access_should_throw();
  is_non_overlapping_and_dense_ = true;
  set_first_sizes(node_->shape().sizes);
}

XlaTensor::XlaTensor(NodePtr node) : XlaTensor(std::move(node), InNoList()) { link(); }

XlaTensor::XlaTensor(AliasPtr alias, ViewPtr view, NodePtr node, uint64_t version)
    : XlaTensor(std::move(node), InNoList()) {
  alias_ = std::move(alias);
  view_ = std::move(view);
  version_ = version;
  if (view_) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomStrides);
  }
  link();
}

XlaTensor::XlaTensor(XlaTensor& base, NodePtr node, bool overlaps) : XlaTensor(std::move(node), InNoList()) {
  unkept_ = true;
  overlaps_ = overlaps;
  set_custom_sizes_strides(SizesStridesPolicy::CustomStrides);
  DeviceState& state = device_state(index_);
  std::lock_guard<SpinLock> lock(state.mutex);
  base.share();
  base.keep_step();
  alias_ = base.alias_;
  view_ = base.view_;
  version_ = base.version_;
  link_locked(state);
}

XlaTensor::~XlaTensor() { unlink(); }

NodePtr XlaTensor::replay() const {
  c10::SmallVector<const View*, 4> steps;
  for (const View* view = view_.get(); view != nullptr; view = view->parent.get()) {
    steps.push_back(view);
  }
  NodePtr value = alias_->value;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    value = (*step)->apply(value);
  }
  return value;
}

const NodePtr& XlaTensor::present(NodePtr& before) {
  if (alias_ && stale()) {
    keep_step();
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
  return present(before);
}

// Whether a write can go back through the views, step by step: not where elements that share their place are told
// apart. With equal values they are not, if each step up to the last that overlaps leaves nothing out.
//
//   a step overlaps   all elements equal   steps up to the last that overlaps   by steps
//   none              -                    -                                    yes
//   yes               no                   -                                    no
//   yes               yes                  each covers what it views            yes
//   yes               yes                  one leaves elements out              no
bool XlaTensor::writes_by_steps(bool uniform) const {
  const View* last = nullptr;
  for (const View* view = view_.get(); view != nullptr; view = view->parent.get()) {
    last = view->overlaps ? view : last;
  }
  for (const View* view = view_.get(); last != nullptr; view = view->parent.get()) {
    if (!uniform || !view->covers()) {
      return false;
    }
    last = view == last ? nullptr : last;
  }
  return true;
}

void XlaTensor::write(NodePtr value, bool uniform) {
  const uint32_t origin = current_origin();
  NodePtr before[2];
  std::unique_lock<SpinLock> lock(device_state(index_).mutex);
  keep_step();
  if (C10_UNLIKELY(view_ && !writes_by_steps(uniform))) {
    lock.unlock();
    write_in_memory(*this, std::move(value), uniform);
    return;
  }
  set_value(std::move(value), origin, true, before);
}

void XlaTensor::lay_out(NodePtr value) {
  const uint32_t origin = current_origin();
  NodePtr before[2];
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  keep_step();
  TORCH_CHECK(writes_by_steps(false),
              "mark_sharding: several elements of this tensor are one element of the memory that it shows (expand, "
              "unfold, as_strided); mark its clone()");
  set_value(std::move(value), origin, false, before);
}

void XlaTensor::set_value(NodePtr value, uint32_t origin, bool keep_sharding, NodePtr (&before)[2]) {
  if (keep_sharding && !view_) {
    value = laid_out_as(*node_, std::move(value));
  }
  if (alias_) {
    // From this view outwards: every step puts the new value into the value of what it views.
    c10::SmallVector<const View*, 4> steps;
    for (const View* view = view_.get(); view != nullptr; view = view->parent.get()) {
      steps.push_back(view);
    }
    c10::SmallVector<NodePtr, 4> bases;
    bases.push_back(alias_->value);
    for (size_t i = steps.size(); i > 1; --i) {
      bases.push_back(steps[i - 1]->apply(bases.back()));
    }
    NodePtr base = value;
    for (const View* step : steps) {
      base = step->scatter(bases.back(), base, origin);
      bases.pop_back();
    }
    if (keep_sharding && view_) {
      base = laid_out_as(*alias_->value, std::move(base));
    }
    before[0] = std::move(alias_->value);
    alias_->value = std::move(base);
    version_ = ++alias_->version;
  }
  before[1] = std::move(node_);
  node_ = std::move(value);
}

c10::SymBool XlaTensor::sym_is_contiguous_custom(at::MemoryFormat format) const {
  if (format == at::MemoryFormat::Contiguous && is_view()) {
    return is_contiguous_elsewhere(const_cast<XlaTensor&>(*this));
  }
  return sym_is_contiguous_default(format);
}

void XlaTensor::share() {
  if (!alias_) {
    alias_ = c10::make_intrusive<Alias>();
    alias_->value = node_;
    alias_->id = id_;
    alias_->storage = storage_;
    version_ = 0;
  }
}

void XlaTensor::share_mode_with(XlaTensor& view, bool detached) {
  if (C10_UNLIKELY(view.is_inference() != is_inference())) {
    view.key_set_ = key_set_;
    // What is detached outside of inference mode from a tensor of that mode counts its writes, and may be written to.
    view.version_counter_ =
        is_inference() && !detached ? c10::VariableVersion(c10::VariableVersion::DISABLED) : c10::VariableVersion(0);
  }
}

at::Tensor XlaTensor::make_view(NodePtr node, bool overlaps) {
  auto view = c10::make_intrusive<XlaTensor>(*this, std::move(node), overlaps);
  share_mode_with(*view);
  if (C10_UNLIKELY(static_cast<bool>(storage_)) && !overlaps) {
    view->storage_ = storage_;
  }
  return at::Tensor(std::move(view));
}

at::Tensor XlaTensor::memory() {
  AliasPtr alias;
  NodePtr value;
  uint64_t version;
  {
    std::lock_guard<SpinLock> lock(device_state(index_).mutex);
    share();
    alias = alias_;
    value = alias_->value;
    version = alias_->version;
  }
  auto all = c10::make_intrusive<XlaTensor>(std::move(alias), ViewPtr(), std::move(value), version);
  share_mode_with(*all);
  return at::Tensor(std::move(all));
}

void XlaTensor::take_shape(const Shape& shape) {
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

void XlaTensor::adopt(XlaTensor& other) {
  if (&other == this) {
    return;
  }
  NodePtr value = other.value();
  if (other.index_ != index_) {
    move_to(value);
  }
  NodePtr before;
  AliasPtr before_alias;
  ViewPtr before_view;
  c10::Storage before_storage = std::exchange(storage_, other.storage_);
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  other.share();
  other.keep_step();
  keep_step();
  take_shape(value->shape());
  before = std::exchange(node_, std::move(value));
  before_alias = std::exchange(alias_, other.alias_);
  before_view = std::exchange(view_, other.view_);
  version_ = other.version_;
  if (view_) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomStrides);
  }
}

void XlaTensor::replace(NodePtr value) {
  NodePtr before;
  AliasPtr before_alias;
  ViewPtr before_view;
  c10::Storage before_storage = std::exchange(storage_, c10::Storage());
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  keep_step();
  take_shape(value->shape());
  before = std::exchange(node_, std::move(value));
  before_alias = std::exchange(alias_, nullptr);
  before_view = std::exchange(view_, nullptr);
  id_ = 0;
}

Steps XlaTensor::steps() {
  Steps steps;
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  keep_step();
  for (ViewPtr view = view_; view; view = view->parent) {
    steps.ops.push_back(view);
  }
  std::reverse(steps.ops.begin(), steps.ops.end());
  return steps;
}

void XlaTensor::settle(uint64_t epoch, uint64_t walk, std::vector<NodePtr>& held, Released& released) {
  keep_step();
  if (view_ && alias_.use_count() == 1) {
    if (stale()) {
      released.nodes.push_back(std::exchange(node_, replay()));
    }
    id_ = view_->id;
    released.views.push_back(std::move(view_));
    released.aliases.push_back(std::move(alias_));
  }
  if (!alias_) {
    held.push_back(node_);
    return;
  }
  const bool computed_now = node_ && walk != 0 && node_->epoch == walk && !stale();
  if (view_ && node_ && (node_->pending() || stale()) && !computed_now) {
    released.nodes.push_back(std::move(node_));
  }
  if (alias_->epoch != epoch) {
    alias_->epoch = epoch;
    held.push_back(alias_->value);
  }
  if (node_) {
    if (version_ != alias_->version) {  // the memory's first tensor, written to through a view
      released.nodes.push_back(std::exchange(node_, alias_->value));
      version_ = alias_->version;
    }
    if (!(view_ && computed_now)) {
      held.push_back(node_);
    }
  }
}

c10::intrusive_ptr<XlaTensor> XlaTensor::sibling() const {
  auto* self = const_cast<XlaTensor*>(this);
  NodePtr before;
  NodePtr value;
  AliasPtr alias;
  ViewPtr view;
  uint64_t version;
  {
    std::lock_guard<SpinLock> lock(device_state(index_).mutex);
    value = self->present(before);
    self->share();
    self->keep_step();
    alias = alias_;
    view = view_;
    version = version_;
  }
  auto twin = c10::make_intrusive<XlaTensor>(std::move(alias), std::move(view), std::move(value), version);
  self->share_mode_with(*twin, /*detached=*/true);
  return twin;
}

c10::intrusive_ptr<c10::TensorImpl> XlaTensor::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                       bool allow_metadata_change) const {
  auto impl = sibling();
  copy_tensor_metadata(this, impl.get(), version, allow_metadata_change);
  return impl;
}

c10::intrusive_ptr<c10::TensorImpl> XlaTensor::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                       bool allow_metadata_change) const {
  auto impl = sibling();
  copy_tensor_metadata(this, impl.get(), std::move(version), allow_metadata_change);
  return impl;
}

void XlaTensor::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) {
  auto* source = dynamic_cast<XlaTensor*>(other.get());
  TORCH_CHECK(source != nullptr, "an xla tensor can take over the value of an xla tensor only");
  copy_tensor_metadata(source, this, version_counter(), allow_tensor_metadata_change());
  adopt(*source);
}

}  // namespace torch_xla
