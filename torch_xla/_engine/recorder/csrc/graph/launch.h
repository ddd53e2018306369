// Launching a graph: starts its program and assigns the results to its nodes, as one transaction.
//
//   execution lock acquired -> collect() -> launch() ... -> execution lock released    one thread at a time, per device
//                                 |             |
//                           nothing changes     no Python bytecode runs between the start of the program, which takes
//                                               over donated memory, and the assignment of the last value: no signal
//                                               handler, profiler or interrupt can occur in between
//
// launch() either raises and leaves all tensors unchanged, or returns with all values assigned (possibly still being
// computed). Code before and after it may be interrupted anywhere.
#pragma once

#include <pybind11/pybind11.h>

#include <array>

#include "graph/graph.h"

namespace torch_xla {

// A program that can be started. Made once per program, immutable; see compilation/native_executable.py.
struct Executable {
  // If both are null, `call` is called with all arguments on a new thread, where no signal handler runs.
  pybind11::object execute;   // list of arrays -> results, without running Python
  pybind11::object handlers;  // make an array of each result
  pybind11::object call;      // list of arguments -> sequence of arrays
  bool tokens = false;        // `execute` returns a completion token

  pybind11::object put;            // (aval, sharding, list of host arrays, devices) -> array
  pybind11::list options;          // jax options during `put`: (new value -> old value, old value -> None, value)
  pybind11::object guard;          // -> this thread's levels of jax's transfer guard; null if there is none
  pybind11::object allow;          // the level that allows transfers
  pybind11::object number_avals;   // (floats', ints')
  pybind11::object number_arrays;  // (floats, ints): arrays to pass if a program has no such numbers, or None
  pybind11::object number_sharding;
  pybind11::object number_devices;  // list

  std::vector<int64_t> sizes;       // bytes of each result
  int64_t extra = 0;                // bytes that the program needs in addition to its inputs while it runs
  std::vector<uint32_t> shardings;  // sharding id of each result; empty: single-device results

  // The numbers of the last launch and their arrays, reused if the next launch has equal numbers. GIL held.
  mutable std::vector<double> last_floats = {};
  mutable std::vector<int64_t> last_ints = {};
  mutable std::array<pybind11::object, 2> last_arrays = {};
};

// Launches the program of a graph with the leaves' arrays, or with those in `leaves`: the same values, placed as the
// program requires. Returns the results' arrays, and a completion token (which retains no memory), or None. Requires
// the execution lock of the graph's device.
pybind11::tuple launch(Graph& graph, const Executable& executable, const pybind11::object& leaves);

// Launches one program for the graphs of several devices. `arguments` are those of all graphs; result i of the d-th
// graph, in the order of the program's devices, is the shard of result i on that device. Returns the arrays of each
// graph.
pybind11::list launch_joined(const std::vector<Graph*>& graphs, const Executable& executable,
                             const pybind11::list& arguments);

// Uploads number operands and appends their arrays to `arguments`; reuses those of the last launch if they are equal.
void append_number_arrays(pybind11::list& arguments, const Executable& executable, const std::vector<double>& floats,
                          const std::vector<int64_t>& ints);

// Starts a program. Returns (results' arrays, completion token or None).
pybind11::tuple start(const Executable& executable, const pybind11::list& arguments);

// Assigns values that were computed without a program. No leaf has been donated.
void set_results(Graph& graph, const pybind11::sequence& results);

void bind_launch(pybind11::module_& m, pybind11::class_<Graph>& graph);

}  // namespace torch_xla
