// A recorded step that is launched without recording it again.
//
// Owned by its Python object (replay/replayed_step.py), immutable except for the count that it adds to CPU tensors.
// It owns references to the tensors that the step reads and writes: their values are looked up at each launch, so a
// checkpoint that was loaded in between is read. Gradients are looked up from their parameters, arguments are passed.
//
//  check()   -> null: the program applies; otherwise what has changed. Nothing is changed.
//  launch()  -> the results, with all tensors assigned; or, as text, why the launch is not possible: nothing is changed
//
// As in graph/launch.h, no Python bytecode runs between the start of the program and the last assignment.
//
// A tensor that the program reads and overwrites retains its Node and Buffer, which get the new array: for several
// hundred small parameters, allocating others takes as long as starting the program. With a BucketedProgram, most have
// slots of a bucket, which gets one new array.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "graph/bucketed_program.h"
#include "graph/host_counts.h"
#include "graph/launch.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

class ReplayProgram {
 public:
  // `sources` and `targets`: one place per leaf, and a list of places per root, as StateSnapshot::describe returns
  // them; a source ("constant", array) is passed as it is. `watched`: (tensor, whether it has a gradient). `place`:
  // list of arrays -> list of arrays, placed as the program requires; None if it takes them as they are.
  ReplayProgram(const Graph& graph, pybind11::object executable, pybind11::object place, const pybind11::list& sources,
                const pybind11::list& targets, std::vector<at::Tensor> cleared, const pybind11::list& watched,
                std::vector<at::Tensor> arguments, std::vector<size_t> seeds, uint32_t draws);

  HostCounts& counts() { return counts_; }
  // Returns (the source that it overwrites, target) of each value that only the step and its tensor have between calls.
  std::vector<std::pair<std::optional<size_t>, size_t>> bucket_candidates() const;
  // Launches this program instead, as long as it is profitable; see BucketedProgram.
  void use_buckets(pybind11::object executable, const pybind11::list& groups);
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
  struct Target {
    std::vector<Place> places;
    OutputSpecPtr spec;
    std::optional<size_t> overwrites;  // the donated source that is the only place, too
  };
  struct ArgumentSpec {
    at::ScalarType dtype;
    std::vector<int64_t> sizes;
    uint64_t layout;
    bool is_bound;
  };
  // The state of one launch.
  struct Launch;

  static Place parse_place(const pybind11::handle& described);
  static const at::Tensor& tensor_at(const Place& place, const std::vector<at::Tensor>& arguments);
  void add_sources(const Graph& graph, const pybind11::list& sources);
  void add_targets(const Graph& graph, const pybind11::list& targets);
  void mark_overwritten();
  std::optional<std::string> check_argument(const std::vector<at::Tensor>& arguments, size_t i) const;
  std::optional<std::string> gather(Launch& launch) const;
  std::optional<std::string> gather_source(Launch& launch, size_t i, uint64_t epoch) const;
  std::optional<std::string> check_targets(const Launch& launch) const;
  std::optional<std::string> prepare(Launch& launch) const;
  bool convert_inputs(Launch& launch) const;
  void add_arrays(const Launch& launch, pybind11::list& inputs) const;
  void assign(Launch& launch, const pybind11::list& arrays) const;
  void donate_sources(Launch& launch) const;
  void assign_bucket(const BucketedProgram::Group& group, pybind11::object array, Launch& launch) const;
  void note_renewed(size_t target, Launch& launch) const;
  void assign_place(const Place& place, const NodePtr& value, Launch& launch) const;

  int8_t device_;
  pybind11::object executable_;
  std::optional<BucketedProgram> bucketed_;
  pybind11::object place_;
  std::vector<Source> sources_;
  std::vector<Target> targets_;
  std::vector<at::Tensor> cleared_;
  std::vector<Watched> watched_;
  std::vector<ArgumentSpec> arguments_;
  HostCounts counts_;
  std::vector<double> floats_;
  std::vector<int64_t> ints_;
  std::vector<size_t> seeds_;
  uint32_t draws_;
  size_t results_ = 0;
  std::unordered_set<const c10::TensorImpl*> bound_;
};

void bind_replay(pybind11::module_& m);

}  // namespace torch_xla
