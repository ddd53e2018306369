// Steps from a memory to a view of it, and back.
#include <algorithm>

#include "ir/op.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

NodePtr copy_of_step(const ViewOp& view, const NodePtr& base) {
  auto node = c10::make_intrusive<Node>();
  node->op = view.op;
  node->device = base->device;
  node->key = view.key;
  node->signature = view.signature;
  node->attrs = view.attrs;
  node->has_start = view.has_start;
  node->origin = view.origin;
  node->default_dtype = view.default_dtype;
  node->inputs.push_back(base);
  return node;
}

}  // namespace

NodePtr ViewOp::apply(const NodePtr& base) const {
  NodePtr node = copy_of_step(*this, base);
  return signature->is_list ? getitem_node(node, out) : node;
}

bool ViewOp::covers() const {
  static const Op* expand = find_op("aten::expand");
  return overlaps ? op == expand : signature->outs[out].elements() == from->outs[from_out].elements();
}

NodePtr ViewOp::scatter(const NodePtr& base, const NodePtr& value, uint32_t written) const {
  NodePtr node = copy_of_step(*this, base);
  node->is_scatter = true;
  node->origin = written;
  node->key.mix(0x5CA77E2ull);
  node->key.mix(static_cast<uint64_t>(out));
  node->inputs.push_back(value);
  node->attrs.emplace_back(static_cast<int64_t>(out));
  node->signature = from;
  if (from->outs.size() > 1 || from->is_list) {
    // What is viewed is itself one of several results: the scattered value is a value of its own.
    node->signature = make_signature(from->outs[from_out].dtype, from->outs[from_out].sizes);
  }
  return node;
}

void XlaTensor::ensure_view() {
  if (!unkept_) {
    return;
  }
  const Node* step = node_->op == getitem_op() ? node_->inputs[0].get() : node_.get();
  const NodePtr& base = step->inputs[0];
  auto view = c10::make_intrusive<ViewOp>();
  view->parent = std::move(view_);
  view->op = step->op;
  view->key = step->key;
  view->attrs = step->attrs;
  view->has_start = step->has_start;
  view->origin = step->origin;
  view->default_dtype = step->default_dtype;
  view->from = base->signature;
  view->from_out = base->out;
  view->signature = step->signature;
  view->out = node_->out;
  view->overlaps = overlaps_;
  view_ = std::move(view);
  unkept_ = false;
}

ViewChain XlaTensor::steps() {
  ViewChain steps;
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  ensure_view();
  for (ViewPtr view = view_; view; view = view->parent) {
    steps.ops.push_back(view);
  }
  std::reverse(steps.ops.begin(), steps.ops.end());
  return steps;
}

at::Tensor replay(const ViewChain& steps, at::Tensor memory) {
  for (const ViewPtr& step : steps.ops) {
    XlaTensor& viewed = *maybe_xla(memory);
    NodePtr value = step->apply(viewed.value());
    memory = viewed.make_view(std::move(value), step->overlaps);
  }
  return memory;
}

}  // namespace torch_xla
