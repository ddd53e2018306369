#include "ir/sharding.h"

#include "ir/op.h"

namespace torch_xla {
namespace {

const Op* reshard_op() {
  static const OpPointer op("torch_xla::reshard");
  return op;
}

}  // namespace

NodePtr reshard(const NodePtr& value, uint32_t sharding, uint32_t origin) {
  auto node = c10::make_intrusive<Node>();
  node->op = reshard_op();
  node->device = value->device;
  node->output_spec = make_output_spec(value->shape().dtype, value->shape().sizes);
  node->origin = origin;
  node->sharding.store(sharding, std::memory_order_relaxed);
  node->key = node->op->key;
  node->key.mix(value->shape().hash);
  node->key.mix(static_cast<uint64_t>(sharding));
  node->attrs.emplace_back(static_cast<int64_t>(0));
  node->attrs.emplace_back(static_cast<int64_t>(sharding));
  node->inputs.push_back(value);
  return node;
}

void prepare_reshard() { reshard_op(); }

}  // namespace torch_xla
