#include "runtime/generator.h"

#include <ATen/Functions.h>

#include <cstring>

#include "compat/torch_internal.h"
#include "runtime/device.h"
#include "support/hash.h"

namespace torch_xla {
namespace {

constexpr int64_t kWords = 2;

// The interface through which torch calls a custom device type. Only generators: xla is no "accelerator" to torch.
struct XlaHooks final : compat::XLAHooks {
  // Before torch 2.12 the registry passes an empty argument.
  template <typename... Args>
  explicit XlaHooks(const Args&...) {}
  void init() const override {}
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<XlaGenerator>(validated_index(c10::Device(c10::DeviceType::XLA, index)));
  }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
};

// torch looks up this name.
using at::RegistererXLAHooksRegistry;
using at::XLAHooksRegistry;
C10_REGISTER_TYPED_CLASS(XLAHooksRegistry, "torch_xla::detail::XLAHooks", XlaHooks)

}  // namespace

XlaGenerator::XlaGenerator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(c10::DeviceType::XLA, device), c10::DispatchKeySet(c10::DispatchKey::XLA)) {}

uint64_t XlaGenerator::next_seed() {
  std::lock_guard<std::mutex> lock(mutex_);
  Key key;
  key.mix(seed_);
  key.mix(drawn_++);
  return key.a ^ key.b;
}

void XlaGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  drawn_ = 0;
}

uint64_t XlaGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void XlaGenerator::set_state(const c10::TensorImpl& state) {
  uint64_t words[kWords];
  TORCH_CHECK(
      state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.numel() == sizeof(words) && state.device().is_cpu(),
      "Generator.set_state: the state of an xla generator is a CPU tensor uint8[", sizeof(words), "], got ",
      state.dtype(), state.sizes(), " on ", state.device());
  std::memcpy(words, state.data(), sizeof(words));
  seed_ = words[0];
  drawn_ = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> XlaGenerator::get_state() const {
  const uint64_t words[kWords] = {seed_, drawn_};
  at::Tensor state = at::empty({static_cast<int64_t>(sizeof(words))}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), words, sizeof(words));
  return state.getIntrusivePtr();
}

XlaGenerator* XlaGenerator::clone_impl() const {
  auto* copy = new XlaGenerator(device().index());
  copy->seed_ = seed_;
  copy->drawn_ = drawn_;
  return copy;
}

XlaGenerator* maybe_xla(const at::Generator& generator) {
  return generator.defined() && generator.device().type() == c10::DeviceType::XLA ? generator.get<XlaGenerator>()
                                                                                  : nullptr;
}

}  // namespace torch_xla
