// torch.Generator(device="xla"): a stream of random numbers of its own, whose numbers are made on the device.
#pragma once

#include <ATen/core/Generator.h>

namespace torch_xla {

// A seed and how many ops have drawn since. Each op gets a seed of its own out of both, as an operand of its graph, so
// that drawing again compiles nothing. Owned by torch.Generator; `mutex_` of the base guards it.
class XlaGenerator final : public c10::GeneratorImpl {
 public:
  explicit XlaGenerator(c10::DeviceIndex device);

  // The seed of the next op that draws.
  uint64_t next_seed();

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override { drawn_ = offset; }
  uint64_t get_offset() const override { return drawn_; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

 private:
  XlaGenerator* clone_impl() const override;

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t drawn_ = 0;
};

// The XlaGenerator of `generator`; null if it is that of another device.
XlaGenerator* maybe_xla(const at::Generator& generator);

}  // namespace torch_xla
