// What one step reads and writes: the tensors of a device before it, compared with its graph and the tensors after it.
//
// A StateSnapshot is made between two steps, when nothing is pending. It refers to tensors by serial number and to
// values weakly, so that it changes neither what a graph collects nor what it donates; the buffers of values that die
// in the step are released with the snapshot. It owns the known tensors. describe() belongs between collect() and launch() of the step's graph.
//
// describe() returns a dict. A place is ("argument", i), ("gradient", parameter), ("tensor", tensor), ("result", i),
// ("new gradient", parameter), ("unknown", sizes) for an earlier tensor that the caller does not know, or ("new", sizes)
// for a tensor that the step has made.
//
//  key          contents
//  leaves       for each leaf of the graph, the places that held it before the step; none: it was made in the step
//  targets      for each root of the graph, the places that hold it after the step
//  cleared      parameters that had a gradient before the step and have none after it
//  assigned     places that hold after the step another value that the graph does not compute
//  watched      (tensor, whether it had a gradient) for each known tensor
//  floats, ints, origins (of each float's node), seeds (positions in ints), donated, key
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <unordered_map>

#include "graph/graph.h"
#include "tensor/xla_tensor.h"

namespace torch_xla {

class StateSnapshot {
 public:
  // `known`: the tensors on the device that the step is known to reach, other than its arguments.
  StateSnapshot(int8_t device, std::vector<at::Tensor> known);
  pybind11::dict describe(const Graph& graph, const std::vector<at::Tensor>& arguments,
                          const std::vector<at::Tensor>& results) const;

 private:
  struct Entry {
    c10::weak_intrusive_ptr<Node> value;
    bool is_view;
  };
  class Reader;

  int8_t device_;
  std::vector<at::Tensor> known_;
  std::vector<std::optional<uint64_t>> gradients_;  // of each known tensor, the serial number of its gradient
  std::unordered_map<uint64_t, Entry> entries_;     // by serial number of the tensor
};

void bind_state_snapshot(pybind11::module_& m);

}  // namespace torch_xla
