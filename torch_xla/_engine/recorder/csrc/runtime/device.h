// The xla device as torch sees it (device guard), and per-device state of the recorder.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/buffer.h"
#include "support/spinlock.h"

namespace torch_xla {

class XlaTensor;
struct Node;
using NodePtr = c10::intrusive_ptr<Node>;

constexpr int kMaxDevices = 64;

// Everything recorded for one device. Never destroyed. `mutex` guards the list of live tensors and the random state; it
// is a leaf lock: do not block or take the GIL while holding it.
struct DeviceState {
  SpinLock mutex;
  XlaTensor* first = nullptr;  // live tensors, oldest first
  XlaTensor* last = nullptr;
  uint64_t linked = 0;          // tensors ever added to the list
  uint64_t unlinked = 0;        // tensors ever removed from it
  uint64_t linked_counted = 0;  // already added to the counters
  uint64_t unlinked_counted = 0;
  int64_t live() const { return static_cast<int64_t>(linked - unlinked); }
  std::atomic<int64_t> pending{0};  // ops recorded since the last flush
  int64_t pending_after_read = -1;  // `pending` when the last partial graph ran; under the execution lock
  std::atomic<int64_t> failed{0};   // nodes with a Failure

  // Random numbers: the key of draw n since the last flush is seed + n * an odd constant. The seed is an operand of the
  // graph, n a constant in it. A flush adds the draws to the seed, so that every step has the same graph, and the
  // random numbers do not depend on where flushes happen.
  uint64_t seed = 0;
  uint64_t torch_seed = 0;  // torch's CPU seed when `seed` was derived
  bool seeded = false;
  uint32_t offset = 0;
  NodePtr seed_node;
};

// Returns the states of all devices. Defined in ir/node.cpp: only there Node is complete.
DeviceState* all_device_states();

inline DeviceState& device_state(int8_t index) {
  static DeviceState* const states = all_device_states();
  return states[index];
}

// Callbacks from the recorder into the executor. Set once at startup; each acquires the GIL itself.
struct Hooks {
  std::function<int()> device_count;                           // starts the backend if necessary
  std::function<BufferPtr(const at::Tensor&, int8_t)> upload;  // CPU tensor -> device buffer
  // Device buffer -> CPU tensor of these sizes, without the buffer's padding rows (spmd.py).
  std::function<at::Tensor(const BufferPtr&, at::ScalarType, at::IntArrayRef)> download;
  std::function<BufferPtr(const BufferPtr&, int8_t)> transfer;           // buffer -> buffer on another device
  std::function<void(const std::vector<NodePtr>&, int8_t)> materialize;  // runs the graph that these values need
  std::function<void(int8_t)> flush;                                     // runs everything pending
  std::function<void(const std::string&, bool)> fallback;  // an op is about to run on the CPU; for its CPU generator?
  std::function<void()> fallback_done;                     // the op finished without an error
  std::function<bool(const std::string&)> supports_operator;  // can the platform compile this op's rule?
  std::function<void()> enter;                                // torch's Python code may run until leave
  std::function<void()> leave;
  std::function<void()> block_forever;  // called during process exit; never returns
};
Hooks& hooks();

// While alive, this thread may run Python code that torch calls (meta functions, custom ops): interpreter shutdown
// waits for it.
struct PythonReentryScope {
  PythonReentryScope() { hooks().enter(); }
  ~PythonReentryScope() { hooks().leave(); }
  PythonReentryScope(const PythonReentryScope&) = delete;
  PythonReentryScope& operator=(const PythonReentryScope&) = delete;
};

// Set once the interpreter shuts down: only the thread that shuts it down may continue recording.
inline std::atomic<bool> closing{false};
inline void block_if_shutting_down() {
  if (C10_UNLIKELY(closing.load(std::memory_order_relaxed))) {
    hooks().block_forever();
  }
}

// The device count reported to torch. Autograd creates its device threads at the first backward, possibly before a
// backend has started, so this is an upper bound; using a device that does not exist raises.
std::atomic<int>& advertised_devices();

// What to write instead of a device that does not exist. Set when the backend starts, which counts the devices.
std::string& missing_device_advice();

// Validates a device that comes from outside the recorder. Every such device or ordinal goes through one of these two
// functions, and only their results index our tables. Raises the error that a user sees for torch.device("xla:9"). A
// device without an index is the thread's current one.
int8_t validated_index(c10::Device device);
// Validates an ordinal. 0 exists whenever a backend exists; validating it does not start one.
int8_t validated_ordinal(int64_t ordinal);
int8_t current_device();
void set_current_device(int8_t index);

}  // namespace torch_xla
