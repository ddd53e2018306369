// Graph collection: a Graph is what one execution computes. It is collected from live tensors, run by the executor,
// then materialized.
//
// The device's execution lock (runtime/execution_lock.h) is held from collect() until materialize() or the destruction
// of the Graph. Without materialize() nothing has changed, so a failed compilation or execution loses no value.
//
//  live value                                                collect_all    collect_values, if requested
//  a buffer                                                  -              -
//  pending, no operand has failed                            root           root
//  pending, an operand has a Failure, the value has none     blocked        root
//  pending, has a Failure                                    excluded       root
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/node.h"

namespace torch_xla {

struct Graph {
  int8_t device = 0;
  bool is_partial = false;  // computes only what some values need, not everything pending
  Key key;  // 128 bits over ops, attributes, shapes, edges, results and donation: see dispatch/record.cpp
  std::vector<Node*> leaves;      // the program's inputs, in order of first use
  std::vector<Node*> nodes;       // operands before users
  std::vector<NodePtr> roots;     // the results, in order
  std::vector<uint32_t> donated;  // indices of leaves whose buffers may be overwritten
  std::vector<NodePtr> blocked;   // live values that depend on a failed one; not in the graph
  FailurePtr failure;             // one failure that blocked values depend on
  std::vector<double> floats;     // number operands, in order of use
  std::vector<int64_t> ints;
  std::vector<int64_t> starts;   // slice starts of nodes that have one (ir/slice_range.h), in order
  std::vector<uint8_t> varying;  // of each start, whether it is an operand; these follow the other ints, in order

  // Sets the value of every root. Requires the GIL (makes buffers).
  void materialize(std::vector<BufferPtr> values);
  // Marks the roots as failed; with `culprit`, the index of a node, only those that depend on it.
  void fail(const FailurePtr& cause, std::optional<size_t> culprit);
  // Marks the blocked values as failed.
  void fail_blocked();
};

// Returns the number of distinct (operator, attributes, operand shapes): compile time grows with it.
size_t distinct_ops(const Graph& graph);

// Returns whether any node is one of the operators with these names.
bool has_any_op(const Graph& graph, const std::vector<std::string>& names);

// Return the number of nodes that no read has computed before, and that at least two earlier reads have computed.
size_t new_nodes(const Graph& graph);
size_t recomputed_nodes(const Graph& graph);

// Collects all pending live tensors of a device; leaves that nothing else can read afterwards are donated.
Graph collect_all(int8_t device);

// Collects the graph that `values` need. Live tensors on the path become results as well, because their values are
// computed anyway. So do small values that pending nodes outside of the graph need.
Graph collect_values(int8_t device, const std::vector<NodePtr>& values);

// Collects exactly the graph that `values` need, for inspection: its roots are `values` in order, including leaves.
Graph collect_only(int8_t device, const std::vector<NodePtr>& values);

}  // namespace torch_xla
