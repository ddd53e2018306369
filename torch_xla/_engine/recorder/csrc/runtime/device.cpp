#include "runtime/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "support/counters.h"
#include "support/fork_safe_lock.h"

namespace torch_xla {
namespace {

thread_local int8_t current_index = 0;

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr auto kType = c10::DeviceType::XLA;
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current_index}; }
  void setDevice(c10::Device d) const override { current_index = validated_index(d); }
  // A device without an index means the current one.
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    current_index = d.has_index() ? d.index() : current_index;
  }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before = getDevice();
    current_index = validated_index(d);
    return before;
  }
  // Each device has one in-order queue, so there is only the default stream.
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(c10::Device d) const override { return getStream(d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return getStream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return getStream(s.device()); }
  // torch.Stream and torch.Event of C++: the recorder launches programs from Python, where torch.xla has both.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override { no_event(); }
  void block(void*, const c10::Stream&) const override { no_event(); }
  bool queryEvent(void*) const override { no_event(); }
  void synchronizeEvent(void*) const override { no_event(); }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { no_event(); }
  bool queryStream(const c10::Stream&) const override { no_stream(); }
  void synchronizeStream(const c10::Stream&) const override { no_stream(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { no_stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(advertised_devices()); }

 private:
  [[noreturn]] static void no_event() {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "torch.Event cannot be recorded on xla: use torch.xla.Event");
  }
  [[noreturn]] static void no_stream() {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "torch.Stream cannot be queried or synchronized on xla: use torch.xla.Stream, "
                                "torch.accelerator.current_stream() or torch.accelerator.synchronize()");
  }
};

const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::XLA, new DeviceGuard);

int8_t check_index(int64_t index) {
  static std::atomic<int> known{0};  // devices never disappear: call the hook only for an index not validated before
  if (index < 0 || index >= known.load(std::memory_order_relaxed)) {
    const int count = std::min(hooks().device_count(), kMaxDevices);
    known.store(count);
    TORCH_CHECK(index >= 0 && index < count, "xla:", index, " does not exist: this process has ", count, " xla device",
                count == 1 ? "" : "s", " (xla:0", count == 1 ? "" : " to xla:" + std::to_string(count - 1), "). ",
                missing_device_advice());
  }
  return static_cast<int8_t>(index);
}

const bool states_fork_safe = [] {
  for (int device = 0; device < kMaxDevices; ++device) {
    ForkSafeLock(device_state(static_cast<int8_t>(device)).mutex);
  }
  return true;
}();

// Counts created and destroyed tensors with the list of live tensors, whose lock is held at that point anyway.
void count_tensors() {
  static const CounterPointer created("CreateXlaTensor");
  static const CounterPointer destroyed("DestroyXlaTensor");
  for (int device = 0; device < kMaxDevices; ++device) {
    DeviceState& state = device_state(static_cast<int8_t>(device));
    uint64_t linked;
    uint64_t unlinked;
    {
      std::lock_guard<SpinLock> lock(state.mutex);
      linked = state.linked - std::exchange(state.linked_counted, state.linked);
      unlinked = state.unlinked - std::exchange(state.unlinked_counted, state.unlinked);
    }
    created->add(static_cast<int64_t>(linked));
    destroyed->add(static_cast<int64_t>(unlinked));
  }
}

const bool tensors_counted = [] {
  add_counter_source(&count_tensors);
  return true;
}();

}  // namespace

Hooks& hooks() {
  static auto* h = new Hooks;
  return *h;
}

std::atomic<int>& advertised_devices() {
  static std::atomic<int> count{8};
  return count;
}

std::string& missing_device_advice() {
  static auto* advice = new std::string;
  return *advice;
}

int8_t validated_index(c10::Device device) {
  TORCH_CHECK(device.type() == c10::DeviceType::XLA, "expected an xla device, got ", device);
  return check_index(device.has_index() ? device.index() : current_index);
}

int8_t validated_ordinal(int64_t ordinal) { return ordinal == 0 ? 0 : check_index(ordinal); }

int8_t current_device() { return current_index; }
void set_current_device(int8_t index) { current_index = index; }

}  // namespace torch_xla
