#include "graph/post_order.h"

#include "graph/concat_forwarding.h"
#include "ir/attribute_hash.h"
#include "ir/op.h"

namespace torch_xla {

inline void PostOrder::enter(Node* node) {
  node->epoch = epoch_;
  node->uses = 0;
  if (node->pending()) {
    forward_through_concat(*node);
    stack_.emplace_back(node, 0);
    return;
  }
  node->index = static_cast<uint32_t>(graph_.leaves.size());
  graph_.leaves.push_back(node);
  graph_.key.mix(layout_hash(*node));
}

inline void PostOrder::number(const c10::IValue& value) {
  if (is_constant_number(value)) {
    return;
  }
  if (value.isInt()) {
    graph_.ints.push_back(value.toInt());
  } else if (value.isDouble()) {
    graph_.floats.push_back(value.toDouble());
  } else {
    graph_.floats.push_back(value.toComplexDouble().real());
    graph_.floats.push_back(value.toComplexDouble().imag());
  }
}

inline void PostOrder::numbers(const Node& node) {
  if (node.op == seed_op()) {
    graph_.ints.push_back(node.attrs[0].toInt());
    return;
  }
  for (size_t i = 0; i < node.op->kinds.size() && node.op != getitem_op(); ++i) {
    const ArgKind kind = node.op->kinds[i];
    if (kind == ArgKind::kScalar || (node.numbers >> i & 1)) {
      number(node.attrs[i]);
    } else if (kind == ArgKind::kScalars) {
      const auto list = node.attrs[i].toListRef();
      for (const auto& element : is_uniform(list) ? list.slice(0, 1) : list) {
        number(element);
      }
    }
  }
}

inline void PostOrder::leave(Node* node) {
  node->index = static_cast<uint32_t>(graph_.nodes.size());
  graph_.nodes.push_back(node);
  graph_.key.mix(node->key);
  for (const auto& input : node->inputs) {
    graph_.key.mix((static_cast<uint64_t>(input->pending()) << 32) | input->index);
  }
  numbers(*node);
  if (C10_UNLIKELY(node->has_start)) {
    graph_.starts.push_back(node->attrs[node->op->start].toInt());
  }
}

void PostOrder::visit(Node* root) {
  if (seen(root)) {
    return;
  }
  enter(root);
  while (!stack_.empty()) {
    auto& [node, next] = stack_.back();
    if (next < node->inputs.size()) {
      Node* input = node->inputs[next++].get();
      if (!seen(input)) {
        enter(input);
      }
      ++input->uses;
    } else {
      leave(node);
      stack_.pop_back();
    }
  }
}

}  // namespace torch_xla
