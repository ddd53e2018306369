// A step's transaction: a program is started, and the nodes that it computes have their values, in one call.
//
//   execution lock taken -> collect() -> launch() ... -> execution lock released      one thread at a time, per device
//                              |             |
//                        nothing changes     from the start of the program, which takes over the memory of what it
//                                            replaces, to the last node's value no bytecode runs: no signal handler, no
//                                            profiler and no interrupt of Python's can come in between
//
// launch() either raises with all tensors as they were, or returns with all values in place (they may still be
// computing). What comes before or after it may be interrupted anywhere.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

#include "graph/graph.h"

namespace torch_xla {

// How a program is started. Made once per program, never changed; see compilation/native_executable.py.
struct Executable {
  // Both null: `call` is called with all arguments instead, on a thread of its own, where no signal handler runs.
  pybind11::object execute;   // list of arrays -> results, none of it Python
  pybind11::object handlers;  // what makes an array of each result
  pybind11::object call;      // list of arguments -> sequence of arrays
  bool tokens = false;        // `execute` can tell when the program has ended

  pybind11::object put;            // (aval, sharding, list of host arrays, devices) -> array
  pybind11::list options;          // of jax, as `put` needs them: (new value -> old one, old value -> None, value)
  pybind11::object guard;          // -> this thread's levels of jax's transfer guard; null without
  pybind11::object allow;          // the level of it that allows
  pybind11::object number_avals;   // (floats', ints')
  pybind11::object number_arrays;  // (floats, ints): arrays to take where a program has no such numbers, or None
  pybind11::object number_sharding;
  pybind11::object number_devices;  // list

  std::vector<int64_t> sizes;       // bytes of each result
  int64_t extra = 0;                // bytes that the program needs on top of its inputs while it runs
  std::vector<uint32_t> shardings;  // how each result lies; empty: each is on one device

  // The numbers of the last launch and their arrays, which serve the next one if that has the same. GIL held.
  mutable std::vector<double> last_floats = {};
  mutable std::vector<int64_t> last_ints = {};
  mutable std::array<pybind11::object, 2> last_arrays = {};
};

// Starts the program of a graph with the leaves' arrays, or those in `leaves`, which are the same values placed as the
// program takes them. Returns the results' arrays, and what can be waited for until the program has ended (a token that
// holds no memory), or None. The execution lock of the graph's device is held.
pybind11::tuple launch(Graph& graph, const Executable& executable, const pybind11::object& leaves);

// The same for graphs of several devices that are one program: `arguments` are those of all, and result i of the
// graph that is d-th in the order of the program's devices is the part of result i that is on that device. Returns
// these arrays, for each graph.
pybind11::list launch_together(const std::vector<Graph*>& graphs, const Executable& executable,
                               const pybind11::list& arguments);

// Gives the nodes values that were computed in another way. None of the leaves' buffers has been taken over.
void set_results(Graph& graph, const pybind11::sequence& results);

void bind_launch(pybind11::module_& m, pybind11::class_<Graph>& graph);

}  // namespace torch_xla
