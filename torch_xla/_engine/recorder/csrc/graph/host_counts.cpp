#include "graph/host_counts.h"

namespace torch_xla {
namespace {

double read_scalar(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return *t.const_data_ptr<float>();
    case at::kDouble:
      return *t.const_data_ptr<double>();
    default:
      return static_cast<double>(*t.const_data_ptr<int64_t>());
  }
}

void write_scalar(const at::Tensor& t, double value) {
  switch (t.scalar_type()) {
    case at::kFloat:
      *t.mutable_data_ptr<float>() = static_cast<float>(value);
      break;
    case at::kDouble:
      *t.mutable_data_ptr<double>() = value;
      break;
    default:
      *t.mutable_data_ptr<int64_t>() = static_cast<int64_t>(value);
  }
  t.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

void HostCounts::set(std::vector<at::Tensor> tensors, std::vector<double> steps, std::vector<uint32_t> groups) {
  counts_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    counts_.push_back({std::move(tensors[i]), steps[i], groups[i]});
  }
}

std::optional<std::vector<double>> HostCounts::group_values() const {
  std::vector<double> values;
  std::vector<bool> known;
  for (const Count& count : counts_) {
    const double value = read_scalar(count.tensor);
    if (count.group >= values.size()) {
      values.resize(count.group + 1);
      known.resize(count.group + 1);
    }
    if (known[count.group] && values[count.group] != value) {
      return std::nullopt;
    }
    values[count.group] = value;
    known[count.group] = true;
  }
  return values;
}

void HostCounts::add_steps() {
  for (const Count& count : counts_) {
    write_scalar(count.tensor, read_scalar(count.tensor) + count.step);
  }
}

}  // namespace torch_xla
