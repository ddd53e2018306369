#include "ir/rng_state.h"

#include <mutex>

#include "compat/torch_internal.h"
#include "ir/op.h"
#include "runtime/device.h"
#include "support/hash.h"

namespace torch_xla {
namespace {

uint64_t mix_seed(uint64_t x) {
  Key key;
  key.mix(x);
  return key.a ^ key.b;
}

uint64_t torch_seed() { return compat::getDefaultCPUGenerator().current_seed(); }

NodePtr make_seed(uint64_t seed, int8_t device) {
  static const OutputSpecPtr output_spec = make_output_spec(at::kLong, {});
  auto node = c10::make_intrusive<Node>();
  node->op = seed_op();
  node->key = seed_op()->key;
  node->output_spec = output_spec;
  node->device = device;
  node->attrs.emplace_back(static_cast<int64_t>(seed));
  return node;
}

// Returns the device's state after the draws since the last flush. A Weyl sequence: a random number depends on the seed
// and the number of earlier draws, not on where the graph was flushed. The streams of two seeds that differ by less
// than 2^32 overlap after 2^32 draws at the earliest. lowering/recorder_ops.py computes the same on the device.
uint64_t current_state(const DeviceState& state) {
  constexpr uint64_t kStride = 0x9E3779B900000001ull;
  return state.seed + state.offset * kStride;
}

// Folds the draws into the seed. Requires the device mutex; returns the old Node, to be released without the mutex.
NodePtr rebase_seed(DeviceState& state) {
  state.seed = current_state(state);
  state.offset = 0;
  return std::move(state.seed_node);
}

// Requires the device mutex.
void ensure_seeded(DeviceState& state, int8_t device) {
  if (!state.seed_node) {
    // torch.manual_seed calls us; this also detects a generator that was seeded directly.
    const uint64_t torch_seed_now = torch_seed();
    if (!state.seeded || torch_seed_now != state.torch_seed) {
      state.seed = mix_seed(torch_seed_now + static_cast<uint64_t>(device));
      state.torch_seed = torch_seed_now;
      state.seeded = true;
    }
    state.seed_node = make_seed(state.seed, device);
    state.offset = 0;
  }
}

}  // namespace

RngOperand next_rng_operand(int8_t device) {
  auto& state = device_state(device);
  NodePtr before;
  std::lock_guard<SpinLock> lock(state.mutex);
  ensure_seeded(state, device);
  if (C10_UNLIKELY(static_cast<uint32_t>(state.seed) + uint64_t{state.offset} > UINT32_MAX)) {
    before = rebase_seed(state);  // the device adds the halves of the state without a carry
    ensure_seeded(state, device);
  }
  return {state.seed_node, state.offset++};
}

RngOperand next_rng_operand(XlaGenerator& generator) {
  return {make_seed(generator.next_seed(), generator.device().index()), 0};
}

void advance_seed(int8_t device) {
  auto& state = device_state(device);
  NodePtr before;
  std::lock_guard<SpinLock> lock(state.mutex);
  if (state.seed_node && state.offset > 0) {
    before = rebase_seed(state);
  }
}

uint32_t draws_since_flush(int8_t device) {
  auto& state = device_state(device);
  std::lock_guard<SpinLock> lock(state.mutex);
  return state.seed_node ? state.offset : 0;
}

void skip_draws(int8_t device, uint32_t count) {
  auto& state = device_state(device);
  NodePtr before;
  std::lock_guard<SpinLock> lock(state.mutex);
  ensure_seeded(state, device);
  state.offset += count;
  before = rebase_seed(state);
}

bool have_one_seed(int8_t device, uint32_t count) {
  auto& state = device_state(device);
  std::lock_guard<SpinLock> lock(state.mutex);
  ensure_seeded(state, device);
  return state.offset == 0 && static_cast<uint32_t>(state.seed) + uint64_t{count} <= UINT32_MAX;
}

void set_seed(int8_t device, uint64_t seed) {
  auto& state = device_state(device);
  NodePtr before;
  std::lock_guard<SpinLock> lock(state.mutex);
  before = std::move(state.seed_node);
  state.seed = seed;
  state.torch_seed = torch_seed();
  state.seeded = true;
  state.offset = 0;
}

void set_all_seeds(uint64_t seed) {
  // Each device gets a distinct stream, unlike torch.cuda.manual_seed_all: replicas that need equal numbers set equal
  // states with xm.set_rng_state.
  for (int device = 0; device < kMaxDevices; ++device) {
    set_seed(static_cast<int8_t>(device), seed + static_cast<uint64_t>(device));
  }
}

uint64_t get_seed(int8_t device) {
  auto& state = device_state(device);
  std::lock_guard<SpinLock> lock(state.mutex);
  ensure_seeded(state, device);
  return current_state(state);
}

}  // namespace torch_xla
