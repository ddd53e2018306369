#include "graph/concat_forwarding.h"

#include "ir/attribute_hash.h"
#include "ir/op.h"
#include "ir/slice_range.h"

namespace torch_xla {
namespace {

struct Ops {
  const Op* cat = find_op("aten::cat");
  const Op* slice = find_op("aten::slice.Tensor");
  const Op* select = find_op("aten::select.int");
};

const Ops& ops() {
  static const Ops found;
  return found;
}

// Returns `slice` of another operand, in which the range is `range`.
NodePtr rebased(const Node& slice, const NodePtr& operand, Range range) {
  auto node = c10::make_intrusive<Node>();
  node->op = slice.op;
  node->device = slice.device;
  node->output_spec = slice.output_spec;
  node->inputs.push_back(operand);
  node->attrs = slice.attrs;
  node->attrs[2] = range.begin;
  if (slice.op == ops().slice) {
    node->attrs[3] = range.end;
  }
  node->origin = slice.origin;
  node->key = slice.op->key;
  node->key.mix(operand->shape().hash);
  for (size_t i = 1; i < node->attrs.size(); ++i) {
    if (i == slice.op->start && range.can_move()) {
      mix_movable_range(*node, range);
    } else if (i <= slice.op->start || i > slice.op->start + 1u || !node->has_start) {
      mix_attribute(node->key, node->attrs[i]);
    }
  }
  mix_default_dtype(*node, slice.default_dtype);
  return node;
}

// Returns `slice` read directly from one operand of the concatenation; null if it spans several operands.
NodePtr read_past_concat(const Node& slice) {
  if ((slice.op != ops().slice && slice.op != ops().select) || slice.is_scatter) {
    return {};
  }
  const Node& concat = *slice.inputs[0];
  if (concat.op == nullptr || concat.op != ops().cat) {
    return {};
  }
  const Shape& shape = concat.shape();
  const int64_t rank = static_cast<int64_t>(shape.sizes.size());
  const int64_t dim = from_start(slice.attrs[1].toInt(), rank);
  if (dim != from_start(concat.attrs[1].toInt(), rank)) {
    return {};
  }
  const std::optional<Range> found = range_of(*slice.op, slice.attrs, shape.sizes);
  if (!found) {
    return {};
  }
  const Range range = *found;
  int64_t first = 0;
  for (const auto& operand : concat.inputs) {
    // An operand of another dtype is converted; an empty one may have any rank.
    if (operand->shape().dtype != shape.dtype || static_cast<int64_t>(operand->shape().sizes.size()) != rank) {
      return {};
    }
    const int64_t size = operand->shape().sizes[dim];
    if (range.begin < range.end && range.begin >= first && range.end <= first + size) {
      return rebased(slice, operand, {range.begin - first, range.end - first, size});
    }
    first += size;
  }
  return {};
}

}  // namespace

void forward_through_concat(Node& node) {
  if (node.op->is_view) {
    return;  // tensors derive their view op from this node
  }
  for (NodePtr& input : node.inputs) {
    for (NodePtr forwarded; input->pending() && (forwarded = read_past_concat(*input));) {
      input = std::move(forwarded);
    }
  }
}

}  // namespace torch_xla
