// A Graph: what one execution computes. Collected from live tensors, run by the executor, then materialized.
//
// The executor holds the device's turn (executor.Turn) from collect() until materialize() or the Graph's end; without
// materialize() nothing has changed, so a failed compilation or execution loses no value.
#pragma once

#include <vector>

#include "node.h"

namespace torch_xla {

struct Graph {
  int8_t device = 0;
  Key key;                        // 128 bits over ops, attributes, shapes, wiring, results and donation
  std::vector<Node*> leaves;      // in order of first use; program inputs
  std::vector<Node*> nodes;       // operands before users
  std::vector<NodePtr> roots;     // the results, in order
  std::vector<uint32_t> donated;  // positions in leaves whose buffers nothing can read afterwards
  std::vector<double> floats;     // the numbers that are operands, in order of use
  std::vector<int64_t> ints;

  // Gives every root its value. GIL held (buffers are made).
  void materialize(std::vector<BufferPtr> values);
};

// The graph of all pending live tensors of a device; the leaves it is the last to read are donated.
Graph collect_all(int8_t device);

// The graph that `wanted` need. Live tensors on the way become results as well: their values are there anyhow, and
// need not be computed again by the next graph.
Graph collect_values(int8_t device, const std::vector<NodePtr>& wanted);

// The graph that `wanted` need and nothing else, to be looked at: its roots are `wanted` in order, leaves included.
Graph collect_only(int8_t device, const std::vector<NodePtr>& wanted);

// The values of the live tensors of a device, oldest first.
std::vector<NodePtr> live_values(int8_t device);

}  // namespace torch_xla
