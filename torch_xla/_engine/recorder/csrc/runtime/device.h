// The xla device as torch sees it (device guard), and what the recorder keeps per device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "ir/node.h"
#include "support/spinlock.h"

namespace torch_xla {

class XlaTensor;

constexpr int kMaxDevices = 64;

// Everything recorded for one device. Lives for the whole process. `mutex` guards the list of live tensors and the
// random state; it is a leaf lock: nothing that could block or take the GIL happens under it.
struct DeviceState {
  SpinLock mutex;
  XlaTensor* first = nullptr;  // live tensors, oldest first
  XlaTensor* last = nullptr;
  uint64_t linked = 0;          // tensors that ever came into the list
  uint64_t unlinked = 0;        // and those that left it
  uint64_t linked_counted = 0;  // as far as the counters know
  uint64_t unlinked_counted = 0;
  int64_t live() const { return static_cast<int64_t>(linked - unlinked); }
  std::atomic<int64_t> pending{0};  // ops recorded since the last cut
  int64_t pending_after_read = -1;  // `pending` when the last read ended; under the execution lock
  std::atomic<int64_t> failed{0};   // nodes with a Failure

  // Random numbers: the key of draw n since the last cut is seed + n * an odd constant. The seed is an operand of the
  // graph, n a constant in it. A cut adds the draws to the seed, so that every step has the same graph, and the numbers
  // do not depend on where the cuts are.
  uint64_t seed = 0;
  uint64_t torch_seed = 0;  // torch's CPU seed when `seed` was derived
  bool seeded = false;
  uint32_t offset = 0;
  NodePtr seed_node;
};

inline DeviceState& device_state(int8_t index) {
  static auto* states = new DeviceState[kMaxDevices];
  return states[index];
}

// What the recorder asks the executor to do. Set once at start-up; each takes the GIL itself.
struct Hooks {
  std::function<int()> device_count;                           // starts the backend if need be
  std::function<BufferPtr(const at::Tensor&, int8_t)> upload;  // CPU tensor -> device buffer
  // device buffer -> CPU tensor; of the sizes given, as a buffer may have rows that only fill it up (spmd.py)
  std::function<at::Tensor(const BufferPtr&, at::ScalarType, at::IntArrayRef)> download;
  std::function<BufferPtr(const BufferPtr&, int8_t)> transfer;           // buffer -> buffer of other device
  std::function<void(const std::vector<NodePtr>&, int8_t)> materialize;  // run what these values need
  std::function<void(int8_t)> flush;                                     // run all that is pending
  std::function<void(const std::string&)> fallback;                      // an op is about to run on the CPU
  std::function<void()> fallback_done;                                   // it has, without an error
  std::function<void()> enter;                                           // torch's Python may run until leave
  std::function<void()> leave;
  std::function<void()> block_forever;  // the process is ending: wait for that
};
Hooks& hooks();

// While it lives, this thread may run Python that torch calls (meta functions, custom ops): the interpreter waits for
// it.
struct PythonReentryScope {
  PythonReentryScope() { hooks().enter(); }
  ~PythonReentryScope() { hooks().leave(); }
  PythonReentryScope(const PythonReentryScope&) = delete;
  PythonReentryScope& operator=(const PythonReentryScope&) = delete;
};

// The interpreter is ending, and only the thread that ends it may go on recording.
inline std::atomic<bool> closing{false};
inline void block_if_shutting_down() {
  if (C10_UNLIKELY(closing.load(std::memory_order_relaxed))) {
    hooks().block_forever();
  }
}

// How many devices torch is told of. Autograd makes its threads for them at the first backward of the process, which
// may be before a backend has started, so this is an upper bound; a device that does not exist is refused on use.
std::atomic<int>& advertised_devices();

// The index of a device that comes from outside; every such device and ordinal goes through one of these two, and only
// what they return is an index into our tables. They raise the error a user sees for torch.device("xla:9"). A device
// without an index is the thread's current one.
int8_t validated_index(c10::Device device);
// The same for a bare ordinal. 0 exists wherever there is a backend, and does not start one.
int8_t validated_ordinal(int64_t ordinal);
int8_t current_device();
void set_current_device(int8_t index);

}  // namespace torch_xla
