// View chains: the operators that lead from a base tensor to a view, replayed or inverted.
#include <algorithm>

#include "ir/op.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {
namespace {

NodePtr make_view_node(const ViewOp& view, const NodePtr& base) {
  auto node = c10::make_intrusive<Node>();
  node->op = view.op;
  node->device = base->device;
  node->key = view.key;
  node->output_spec = view.output_spec;
  node->attrs = view.attrs;
  node->has_start = view.has_start;
  node->origin = view.origin;
  node->default_dtype = view.default_dtype;
  node->inputs.push_back(base);
  return node;
}

}  // namespace

NodePtr ViewOp::apply(const NodePtr& base) const {
  NodePtr node = make_view_node(*this, base);
  return output_spec->is_list ? getitem_node(node, out) : node;
}

bool ViewOp::covers() const {
  static const OpPointer expand("aten::expand");
  return overlaps ? op == expand : output_spec->outs[out].elements() == from->outs[from_out].elements();
}

NodePtr ViewOp::scatter(const NodePtr& base, const NodePtr& value, uint32_t written) const {
  NodePtr node = make_view_node(*this, base);
  node->is_scatter = true;
  node->origin = written;
  node->key.mix(0x5CA77E2ull);
  node->key.mix(static_cast<uint64_t>(out));
  node->inputs.push_back(value);
  node->attrs.emplace_back(static_cast<int64_t>(out));
  node->output_spec = from;
  if (from->outs.size() > 1 || from->is_list) {
    // The viewed tensor is itself one of several results: the scattered value is a separate value.
    node->output_spec = make_output_spec(from->outs[from_out].dtype, from->outs[from_out].sizes);
  }
  return node;
}

void XlaTensor::ensure_view() {
  if (!view_op_pending_) {
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
  view->from = base->output_spec;
  view->from_out = base->out;
  view->output_spec = step->output_spec;
  view->out = node_->out;
  view->overlaps = overlaps_;
  view_ = std::move(view);
  view_op_pending_ = false;
}

ViewChain XlaTensor::view_chain() {
  ViewChain chain;
  std::lock_guard<SpinLock> lock(device_state(index_).mutex);
  ensure_view();
  for (ViewPtr view = view_; view; view = view->parent) {
    chain.ops.push_back(view);
  }
  std::reverse(chain.ops.begin(), chain.ops.end());
  return chain;
}

at::Tensor replay(const ViewChain& chain, at::Tensor base) {
  for (const ViewPtr& step : chain.ops) {
    XlaTensor& viewed = *maybe_xla(base);
    NodePtr value = step->apply(viewed.value());
    base = viewed.make_view(std::move(value), step->overlaps);
  }
  return base;
}

}  // namespace torch_xla
