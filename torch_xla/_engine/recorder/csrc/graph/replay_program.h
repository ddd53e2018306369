// A recorded step that is launched without recording it again.
//
// Owned by its Python object (execution/replay_program.py), immutable except for the count that it adds to CPU tensors.
// It owns references to the tensors that the step reads and writes: their values are looked up at each launch, so a
// checkpoint that was loaded in between is read. Gradients are looked up from their parameters, arguments are passed.
//
//  check()   -> null: the program applies; otherwise what has changed. Nothing is changed.
//  launch()  -> the results, with all tensors assigned; or, as text, why the launch is not possible: nothing is changed
//
// As in graph/launch.h, no Python bytecode runs between the start of the program and the last assignment.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "graph/launch.h"

namespace torch_xla {

class ReplayProgram {
 public:
  // `sources` and `targets`: one place per leaf, and a list of places per root, as StateSnapshot::describe returns
  // them; a source ("constant", array) is passed as it is. `watched`: (tensor, whether it has a gradient).
  ReplayProgram(const Graph& graph, pybind11::object executable, const pybind11::list& sources,
                const pybind11::list& targets, std::vector<at::Tensor> cleared, const pybind11::list& watched,
                std::vector<at::Tensor> arguments, std::vector<size_t> seeds, uint32_t draws);

  // Sets the CPU scalars that the step counts up, and by how much.
  void set_counts(std::vector<at::Tensor> tensors, std::vector<double> steps, std::vector<uint32_t> groups);
  // Returns the common value of each group of CPU scalars; nullopt if they differ.
  std::optional<std::vector<double>> group_values() const;

  std::optional<std::string> check(const std::vector<at::Tensor>& arguments) const;
  pybind11::object launch(const std::vector<at::Tensor>& arguments,
                          const std::vector<std::pair<size_t, double>>& numbers);

 private:
  enum class Kind { kArgument, kGradient, kNewGradient, kTensor, kResult, kConstant };
  struct Place {
    Kind kind;
    size_t index = 0;
    at::Tensor tensor;  // of kTensor, and the parameter of a gradient
  };
  struct Source {
    Place place;
    pybind11::object array;  // of kConstant
    uint64_t layout = 0;
    bool donated = false;
    bool dies = false;  // a gradient that the step drops: nothing else may hold it if it is donated
  };
  struct Watched {
    at::Tensor tensor;
    bool requires_grad;
    bool has_gradient;
    bool has_hooks;
  };
  struct ArgumentSpec {
    at::ScalarType dtype;
    std::vector<int64_t> sizes;
    uint64_t layout;
    bool is_bound;
  };
  struct Count {
    at::Tensor tensor;
    double step;
    uint32_t group;
  };

  static Place parse_place(const pybind11::handle& described);
  std::optional<std::string> gather(const std::vector<at::Tensor>& arguments, std::vector<NodePtr>& values) const;
  std::optional<std::string> check_targets(const std::vector<at::Tensor>& arguments) const;
  void assign(const std::vector<at::Tensor>& arguments, const pybind11::sequence& arrays,
              std::vector<at::Tensor>& results, uint32_t provenance);
  void assign_place(const Place& place, const NodePtr& value, const std::vector<at::Tensor>& arguments,
                    std::vector<at::Tensor>& results);
  void add_counts();

  int8_t device_;
  pybind11::object executable_;
  std::vector<Source> sources_;
  std::vector<std::vector<Place>> targets_;
  std::vector<OutputSpecPtr> root_specs_;
  std::vector<at::Tensor> cleared_;
  std::vector<Watched> watched_;
  std::vector<ArgumentSpec> arguments_;
  std::vector<Count> counts_;
  std::vector<double> floats_;
  std::vector<int64_t> ints_;
  std::vector<size_t> seeds_;
  uint32_t draws_;
  size_t results_ = 0;
  std::unordered_set<const c10::TensorImpl*> bound_;
};

void bind_replay(pybind11::module_& m);

}  // namespace torch_xla
