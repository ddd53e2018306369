// The device type xla before torch_xla is loaded: the first use of the device, stream or generator loads torch_xla, whose
// recorder then replaces what is registered here. torch has no Python interface for either registration.
//
// Calls no function of Python: Python passes the loader (set_loader) through ctypes, which acquires the GIL.

#include <ATen/core/Generator.h>
#include <ATen/detail/XLAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace {

constexpr auto kType = c10::DeviceType::XLA;
using Interface = c10::impl::DeviceGuardImplInterface;

// Loads torch_xla; returns null, or why that fails.
using Loader = const char* (*)();
std::atomic<Loader> loader{nullptr};

void load() {
  const Loader function = loader.load();
  const char* error = function == nullptr ? "torch_xla_autoload is not active" : function();
  TORCH_CHECK(error == nullptr, error);
}

// Objects that torch created before (events, guards) refer to this one, so each call is forwarded.
struct LazyDeviceGuard final : Interface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return loaded().getDevice(); }
  c10::Device exchangeDevice(c10::Device device) const override { return loaded().exchangeDevice(device); }
  void setDevice(c10::Device device) const override { loaded().setDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (const Interface* found = registered(); found != this) {
      found->uncheckedSetDevice(device);
    }
  }
  c10::Stream getStream(c10::Device device) const override { return loaded().getStream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return loaded().getDefaultStream(device); }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return loaded().getNewStream(device, priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return loaded().exchangeStream(stream); }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    if (const Interface* found = registered(); found != this) {
      found->destroyEvent(event, index);
    }
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    loaded().record(event, stream, index, flag);
  }
  void block(void* event, const c10::Stream& stream) const override { loaded().block(event, stream); }
  bool queryEvent(void* event) const override { return loaded().queryEvent(event); }
  void synchronizeEvent(void* event) const override { loaded().synchronizeEvent(event); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex index) const override {
    return loaded().elapsedTime(first, second, index);
  }
  bool queryStream(const c10::Stream& stream) const override { return loaded().queryStream(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { loaded().synchronizeStream(stream); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { loaded().synchronizeDevice(index); }
  // Autograd asks at its first pass, also in scripts that only use the CPU, and would start threads.
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }

 private:
  static const Interface* registered() { return c10::impl::device_guard_impl_registry[static_cast<size_t>(kType)]; }

  const Interface& loaded() const {
    if (registered() == this) {
      load();
    }
    const Interface* found = registered();
    TORCH_CHECK(found != this, "torch_xla was imported, but has not registered its device");
    return *found;
  }
};

const c10::impl::DeviceGuardImplRegistrar registrar(kType, new LazyDeviceGuard);

constexpr const char* kHooks = "torch_xla::detail::XLAHooks";  // torch looks up this name
using at::RegistererXLAHooksRegistry;
using at::XLAHooksRegistry;

// torch creates its hooks once: those of the recorder, which have a higher priority, unless these were used earlier.
struct LazyHooks final : at::XLAHooksInterface {
  // Before torch 2.12 the registry passes an empty argument.
  template <typename... Args>
  explicit LazyHooks(const Args&... args) : create([args...] { return XLAHooksRegistry()->Create(kHooks, args...); }) {}

  void init() const override { loaded().init(); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return loaded().getNewGenerator(index); }
  c10::DeviceIndex getCurrentDevice() const override { return loaded().getCurrentDevice(); }

 private:
  const at::XLAHooksInterface& loaded() const {
    if (real == nullptr) {
      load();
      auto found = create();
      TORCH_CHECK(dynamic_cast<LazyHooks*>(found.get()) == nullptr, "torch_xla has not registered its hooks");
      real = std::move(found);
    }
    return *real;
  }

  std::function<std::unique_ptr<at::XLAHooksInterface>()> create;
  mutable std::unique_ptr<at::XLAHooksInterface> real;
};

const RegistererXLAHooksRegistry registerer(kHooks, c10::REGISTRY_FALLBACK, XLAHooksRegistry(),
                                            RegistererXLAHooksRegistry::DefaultCreator<LazyHooks>,
                                            "torch_xla_autoload");

}  // namespace

extern "C" __attribute__((visibility("default"))) void torch_xla_set_loader(Loader function) { loader.store(function); }
