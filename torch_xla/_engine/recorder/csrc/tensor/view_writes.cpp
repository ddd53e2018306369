// Writing to a tensor in place: through its views to the memory, as far as there are steps back.
#include "dispatch/sharding.h"
#include "dispatch/strided_layout.h"
#include "ir/source_location.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

// Whether a write can go back through the views, step by step: not where elements that share their place are told
// apart. With equal values they are not, if each step up to the last that overlaps leaves nothing out.
//
//   a step overlaps   all elements equal   steps up to the last that overlaps   by steps
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
              "mark_sharding: several elements of this tensor are one element of the memory that it shows (expand, "
              "unfold, as_strided); mark its clone()");
  set_value(std::move(value), origin, false, before);
}

void XlaTensor::set_value(NodePtr value, uint32_t origin, bool keep_sharding, NodePtr (&before)[2]) {
  if (keep_sharding && !view_) {
    value = with_sharding_of(*node_, std::move(value));
  }
  if (alias_) {
    // From this view outwards: every step puts the new value into the value of what it views.
    c10::SmallVector<const ViewOp*, 4> steps;
    for (const ViewOp* view = view_.get(); view != nullptr; view = view->parent.get()) {
      steps.push_back(view);
    }
    c10::SmallVector<NodePtr, 4> bases;
    bases.push_back(alias_->value);
    for (size_t i = steps.size(); i > 1; --i) {
      bases.push_back(steps[i - 1]->apply(bases.back()));
    }
    NodePtr base = value;
    for (const ViewOp* step : steps) {
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
