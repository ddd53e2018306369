// Random numbers: the state of each device (runtime/device.h), and what an op that draws takes of it.
#pragma once

#include "ir/node.h"
#include "runtime/generator.h"

namespace torch_xla {

// What makes an op's numbers: an operand of the graph, and the draws before it, which are a constant in it.
struct RngOperand {
  NodePtr seed;
  uint32_t offset;
};

RngOperand next_rng_operand(int8_t device);
RngOperand next_rng_operand(XlaGenerator& generator);

// Random state of a device: a cut, which makes the draws so far part of the seed that is the next graph's operand;
// setting it, and reading it.
void advance_seed(int8_t device);
void set_seed(int8_t device, uint64_t seed);
void set_all_seeds(uint64_t seed);  // each device its own stream, also those that no backend has yet
uint64_t get_seed(int8_t device);

}  // namespace torch_xla
