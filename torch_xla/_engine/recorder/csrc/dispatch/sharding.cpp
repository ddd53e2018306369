#include "dispatch/sharding.h"

#include <atomic>
#include <utility>

#include "dispatch/record.h"
#include "ir/op.h"

namespace torch_xla {
namespace {

thread_local PendingSharding next;
std::atomic<bool> any{false};

const Op* lay_out_op() {
  static const Op* op = find_op("torch_xla::reshard");
  return op;
}

}  // namespace

NodePtr reshard(const NodePtr& value, uint32_t sharding, uint32_t origin) {
  auto node = c10::make_intrusive<Node>();
  node->op = lay_out_op();
  node->device = value->device;
  node->signature = make_signature(value->shape().dtype, value->shape().sizes);
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

void set_sharding(uint32_t sharding, int64_t bytes) {
  lay_out_op();  // looked up before anything is laid out, where a lock may be held
  next = {sharding, bytes};
  any.store(true, std::memory_order_relaxed);
}

PendingSharding take_sharding() { return std::exchange(next, PendingSharding()); }

bool any_sharded() { return any.load(std::memory_order_relaxed); }

}  // namespace torch_xla
