// A Graph: what one execution computes. Collected from live tensors, run by the executor, then materialized.
//
// The device's execution lock (runtime/execution_lock.h) is held from collect() until materialize() or the Graph's end; without
// materialize() nothing has changed, so a failed compilation or execution loses no value.
//
//   live value                                              collect_all      collect_values, if it is wanted
//   a buffer                                                -                -
//   pending, nothing that it needs has failed               root             root
//   pending, needs a value with a Failure, has none         blocked          root
//   pending, has a Failure                                  left out         root
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/node.h"

namespace torch_xla {

struct Graph {
  int8_t device = 0;
  bool is_part = false;           // of what is pending: what some values need
  Key key;                        // 128 bits over ops, attributes, shapes, wiring, results and donation
  std::vector<Node*> leaves;      // in order of first use; program inputs
  std::vector<Node*> nodes;       // operands before users
  std::vector<NodePtr> roots;     // the results, in order
  std::vector<uint32_t> donated;  // positions in leaves whose buffers nothing can read afterwards
  std::vector<NodePtr> blocked;   // live values that need one which could not be computed; not in the graph
  FailurePtr failure;             // a failure among what the blocked values need
  std::vector<double> floats;     // the numbers that are operands, in order of use
  std::vector<int64_t> ints;
  std::vector<int64_t> starts;   // of the nodes that have one (dispatch/slice_starts.h), in order
  std::vector<uint8_t> varying;  // of each start, whether it is an operand; these follow the other ints, in order

  // Gives every root its value. GIL held (buffers are made).
  void materialize(std::vector<BufferPtr> values);
  // Notes that the roots could not be computed; with `culprit`, the number of a node, only those that need it.
  void fail(const FailurePtr& why, std::optional<size_t> culprit);
  // Notes that the blocked values cannot be computed.
  void fail_blocked();
};

// How many operations of a graph differ in the operator, its attributes or the shapes of its operands: the time of a
// compilation goes with them.
size_t distinct_ops(const Graph& graph);

// Whether any node of a graph is one of the operators with these names.
bool has_any_op(const Graph& graph, const std::vector<std::string>& names);

// How many nodes of a graph no read has computed before, and how many two earlier reads or more have computed already.
size_t new_nodes(const Graph& graph);
size_t recomputed_nodes(const Graph& graph);

// The graph of all pending live tensors of a device; the leaves it is the last to read are donated.
Graph collect_all(int8_t device);

// The graph that `wanted` need. Live tensors on the way become results as well: their values are there anyhow, and
// need not be computed again by the next graph. So do small values that pending nodes outside of the graph need.
Graph collect_values(int8_t device, const std::vector<NodePtr>& wanted);

// The graph that `wanted` need and nothing else, to be looked at: its roots are `wanted` in order, leaves included.
Graph collect_only(int8_t device, const std::vector<NodePtr>& wanted);

}  // namespace torch_xla
