#include "tensor/live_tensors.h"

#include <utility>

#include "runtime/device.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

NodePtr XlaTensor::latest_float_value(int8_t device) {
  auto& state = device_state(device);
  std::lock_guard<SpinLock> lock(state.mutex);
  for (XlaTensor* t = state.last; t != nullptr; t = t->previous) {
    if (t->node_ && at::isFloatingType(t->node_->shape().dtype) && t->numel() > 0) {
      return t->node_;
    }
  }
  return NodePtr();
}

void XlaTensor::release_recomputable(uint64_t epoch, uint64_t walk, std::vector<NodePtr>& held,
                                     DeferredRelease& released) {
  ensure_view();
  if (view_ && alias_.use_count() == 1) {
    if (is_stale()) {
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
  const bool computed_now = node_ && walk != 0 && node_->epoch == walk && !is_stale();
  if (view_ && node_ && (node_->pending() || is_stale()) && !computed_now) {
    released.nodes.push_back(std::move(node_));
  }
  if (alias_->epoch != epoch) {
    alias_->epoch = epoch;
    held.push_back(alias_->value);
  }
  if (node_) {
    if (version_ != alias_->version) {  // the base tensor, written to through a view
      released.nodes.push_back(std::exchange(node_, alias_->value));
      version_ = alias_->version;
    }
    if (!(view_ && computed_now)) {
      held.push_back(node_);
    }
  }
}

std::vector<NodePtr> live_values(int8_t device, uint64_t walk) {
  auto& state = device_state(device);
  std::vector<NodePtr> nodes;
  DeferredRelease released;
  const uint64_t epoch = new_epoch();
  std::lock_guard<SpinLock> lock(state.mutex);
  nodes.reserve(state.live() + 16);
  for (XlaTensor* t = state.first; t != nullptr; t = t->next) {
    t->release_recomputable(epoch, walk, nodes, released);
  }
  return nodes;
}

std::vector<LiveTensor> list_live_tensors(int8_t device) {
  auto& state = device_state(device);
  std::vector<LiveTensor> out;
  std::lock_guard<SpinLock> lock(state.mutex);
  out.reserve(state.live());
  for (XlaTensor* t = state.first; t != nullptr; t = t->next) {
    out.push_back({t->serial(), t->memory_locked(), t->is_view(), t->is_view() ? NodePtr() : t->base_value_locked()});
  }
  return out;
}

}  // namespace torch_xla
