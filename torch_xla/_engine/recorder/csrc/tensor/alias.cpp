// Tensors that share memory: creating views and aliases, and taking over another tensor's memory.
#include <utility>

#include "tensor/xla_tensor.h"

namespace torch_xla {

void XlaTensor::ensure_alias() {
  if (!alias_) {
    alias_ = c10::make_intrusive<Alias>();
    alias_->value = node_;
    alias_->id = id_;
    alias_->storage = storage_;
    version_ = 0;
  }
}

void XlaTensor::share_inference_mode(XlaTensor& view, bool detached) {
  if (C10_UNLIKELY(view.is_inference() != is_inference())) {
    view.key_set_ = key_set_;
    // A tensor detached from an inference tensor outside of inference mode tracks its version, and may be written to.
    view.version_counter_ =
        is_inference() && !detached ? c10::VariableVersion(c10::VariableVersion::DISABLED) : c10::VariableVersion(0);
  }
}

at::Tensor XlaTensor::make_view(NodePtr node, bool overlaps) {
  auto view = c10::make_intrusive<XlaTensor>(*this, std::move(node), overlaps);
  share_inference_mode(*view);
  if (C10_UNLIKELY(static_cast<bool>(storage_)) && !overlaps) {
    view->storage_ = storage_;
  }
  return at::Tensor(std::move(view));
}

at::Tensor XlaTensor::base_tensor() {
  AliasPtr alias;
  NodePtr value;
  uint64_t version;
  {
    std::lock_guard<SpinLock> lock(device_state(index_).mutex);
    ensure_alias();
    alias = alias_;
    value = alias_->value;
    version = alias_->version;
  }
  auto all = c10::make_intrusive<XlaTensor>(std::move(alias), ViewPtr(), std::move(value), version);
  share_inference_mode(*all);
  return at::Tensor(std::move(all));
}

c10::intrusive_ptr<XlaTensor> XlaTensor::make_alias_impl() const {
  auto* self = const_cast<XlaTensor*>(this);
  NodePtr before;
  NodePtr value;
  AliasPtr alias;
  ViewPtr view;
  uint64_t version;
  {
    std::lock_guard<SpinLock> lock(device_state(index_).mutex);
    value = self->current_value(before);
    self->ensure_alias();
    self->ensure_view();
    alias = alias_;
    view = view_;
    version = version_;
  }
  auto alias_tensor = c10::make_intrusive<XlaTensor>(std::move(alias), std::move(view), std::move(value), version);
  self->share_inference_mode(*alias_tensor, /*detached=*/true);
  return alias_tensor;
}

c10::intrusive_ptr<c10::TensorImpl> XlaTensor::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                       bool allow_metadata_change) const {
  auto impl = make_alias_impl();
  copy_tensor_metadata(this, impl.get(), version, allow_metadata_change);
  return impl;
}

c10::intrusive_ptr<c10::TensorImpl> XlaTensor::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                       bool allow_metadata_change) const {
  auto impl = make_alias_impl();
  copy_tensor_metadata(this, impl.get(), std::move(version), allow_metadata_change);
  return impl;
}

void XlaTensor::take_over(XlaTensor& other) {
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
  other.ensure_alias();
  other.ensure_view();
  ensure_view();
  set_shape_from(value->shape());
  before = std::exchange(node_, std::move(value));
  before_alias = std::exchange(alias_, other.alias_);
  before_view = std::exchange(view_, other.view_);
  version_ = other.version_;
  if (view_) {
    set_custom_sizes_strides(SizesStridesPolicy::CustomStrides);
  }
}

void XlaTensor::reset_value(NodePtr value) {
  NodePtr before;
  AliasPtr before_alias;
  ViewPtr before_view;
  c10::Storage before_storage = std::exchange(storage_, c10::Storage());
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  ensure_view();
  set_shape_from(value->shape());
  before = std::exchange(node_, std::move(value));
  before_alias = std::exchange(alias_, nullptr);
  before_view = std::exchange(view_, nullptr);
  id_ = 0;
}

void XlaTensor::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) {
  auto* source = dynamic_cast<XlaTensor*>(other.get());
  TORCH_CHECK(source != nullptr, "an xla tensor can take over the value of an xla tensor only");
  copy_tensor_metadata(source, this, version_counter(), allow_tensor_metadata_change());
  take_over(*source);
}

}  // namespace torch_xla
