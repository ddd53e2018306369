// torch.Generator(device="xla"): an independent stream of random numbers, which are computed on the device.
#pragma once

#include <ATen/core/Generator.h>

namespace torch_xla {

// A seed and the number of ops that have drawn from it. Each op derives a separate seed from both, passed as an operand
// of the graph, so that drawing again does not recompile. Owned by torch.Generator; guarded by `mutex_` of the base
// class.
class XlaGenerator final : public c10::GeneratorImpl {
 public:
  explicit XlaGenerator(c10::DeviceIndex device);

  // Returns the seed for the next op that draws.
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

// Returns the XlaGenerator of `generator`; null for a generator of another device.
XlaGenerator* maybe_xla(const at::Generator& generator);

}  // namespace torch_xla
