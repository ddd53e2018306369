// In-place writes: propagates a new value through the tensor's views to the base, or writes to the base directly.
#include "ir/sharding.h"
#include "ir/source_location.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

// Returns whether a write can scatter the new value back through the view chain. It cannot where a view maps several
// elements to one location and they may differ. If all elements are equal, it can, provided that each view up to the
// last overlapping one covers its operand.
//
//   a view overlaps   all elements equal   views up to the last that overlaps   scatter
//   none              -                    -                                    yes
//   yes               no                   -                                    no
//   yes               yes                  each covers what it views            yes
//   yes               yes                  one leaves elements out              no
bool XlaTensor::can_scatter_through_views(bool uniform) const {
  const ViewOp* last = nullptr;
  for (const ViewOp* view = view_.get(); view != nullptr; view = view->parent.get()) {
    last = view->overlaps ? view : last;
  }
  for (const ViewOp* view = view_.get(); last != nullptr; view = view->parent.get()) {
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
  ensure_view();
  if (C10_UNLIKELY(view_ && !can_scatter_through_views(uniform))) {
    lock.unlock();
    write_strided(*this, std::move(value), uniform);
    return;
  }
  set_value(std::move(value), origin, true, before);
}

void XlaTensor::reshard(NodePtr value) {
  const uint32_t origin = current_origin();
  NodePtr before[2];
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  ensure_view();
  TORCH_CHECK(can_scatter_through_views(false),
              "mark_sharding: several elements of this tensor share one memory location (expand, unfold, as_strided); "
              "mark its clone() instead");
  set_value(std::move(value), origin, false, before);
}

void XlaTensor::set_value(NodePtr value, uint32_t origin, bool keep_sharding, NodePtr (&before)[2]) {
  if (keep_sharding && !view_) {
    value = with_sharding_of(*node_, std::move(value));
  }
  if (alias_) {
    // From this view to the base: each step scatters the new value into the value of its operand.
    c10::SmallVector<const ViewOp*, 4> view_ops;
    for (const ViewOp* view = view_.get(); view != nullptr; view = view->parent.get()) {
      view_ops.push_back(view);
    }
    c10::SmallVector<NodePtr, 4> bases;
    bases.push_back(alias_->value);
    for (size_t i = view_ops.size(); i > 1; --i) {
      bases.push_back(view_ops[i - 1]->apply(bases.back()));
    }
    NodePtr base = value;
    for (const ViewOp* step : view_ops) {
      base = step->scatter(bases.back(), base, origin);
      bases.pop_back();
    }
    if (keep_sharding && view_) {
      base = with_sharding_of(*alias_->value, std::move(base));
    }
    before[0] = std::move(alias_->value);
    alias_->value = std::move(base);
    version_ = ++alias_->version;
  }
  before[1] = std::move(node_);
  node_ = std::move(value);
}

}  // namespace torch_xla
