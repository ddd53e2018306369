// The scalars on the CPU that a replayed step counts up, such as the step counts of Adam. Those of one group were equal
// in both recordings and are read as one number.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace torch_xla {

class HostCounts {
 public:
  void set(std::vector<at::Tensor> tensors, std::vector<double> steps, std::vector<uint32_t> groups);
  // Returns the common value of each group; nullopt if they differ.
  std::optional<std::vector<double>> group_values() const;
  void add_steps();

 private:
  struct Count {
    at::Tensor tensor;
    double step;
    uint32_t group;
  };
  std::vector<Count> counts_;
};

}  // namespace torch_xla
