#include "graph/concat_forwarding.h"

#include "dispatch/slice_starts.h"
#include "ir/attribute_hash.h"
#include "ir/op.h"

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

// `part` as the same operator on one operand, in which the range begins at `begin`.
NodePtr rebased(const Node& part, const NodePtr& operand, Range range) {
  auto node = c10::make_intrusive<Node>();
  node->op = part.op;
  node->device = part.device;
  node->signature = part.signature;
  node->inputs.push_back(operand);
  node->attrs = part.attrs;
  node->attrs[2] = range.begin;
  if (part.op == ops().slice) {
    node->attrs[3] = range.end;
  }
  node->origin = part.origin;
  node->key = part.op->key;
  node->key.mix(operand->shape().hash);
  for (size_t i = 1; i < node->attrs.size(); ++i) {
    if (i == part.op->start && range.can_move()) {
      mix_part(*node, range);
    } else if (i <= part.op->start || i > part.op->start + 1u || !node->has_start) {
      mix_attribute(node->key, node->attrs[i]);
    }
  }
  mix_default_dtype(*node, part.default_dtype);
  return node;
}

// The same value, read past the concatenation; null where it is not within one operand.
NodePtr past_concatenation(const Node& part) {
  if ((part.op != ops().slice && part.op != ops().select) || part.is_scatter) {
    return {};
  }
  const Node& whole = *part.inputs[0];
  if (whole.op == nullptr || whole.op != ops().cat) {
    return {};
  }
  const Shape& shape = whole.shape();
  const int64_t rank = static_cast<int64_t>(shape.sizes.size());
  const int64_t dim = from_start(part.attrs[1].toInt(), rank);
  if (dim != from_start(whole.attrs[1].toInt(), rank)) {
    return {};
  }
  const std::optional<Range> found = range_of(*part.op, part.attrs, shape.sizes);
  if (!found) {
    return {};
  }
  const Range range = *found;
  int64_t first = 0;
  for (const auto& operand : whole.inputs) {
    // One of another dtype is converted; an empty one may have any number of dimensions.
    if (operand->shape().dtype != shape.dtype || static_cast<int64_t>(operand->shape().sizes.size()) != rank) {
      return {};
    }
    const int64_t size = operand->shape().sizes[dim];
    if (range.begin < range.end && range.begin >= first && range.end <= first + size) {
      return rebased(part, operand, {range.begin - first, range.end - first, size});
    }
    first += size;
  }
  return {};
}

}  // namespace

void forward_through_concat(Node& node) {
  if (node.op->is_view) {
    return;  // a tensor may take the node itself for how it is a view of another
  }
  for (NodePtr& input : node.inputs) {
    for (NodePtr nearer; input->pending() && (nearer = past_concatenation(*input));) {
      input = std::move(nearer);
    }
  }
}

}  // namespace torch_xla
