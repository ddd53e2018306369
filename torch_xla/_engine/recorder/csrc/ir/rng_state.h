// Random number state of each device (runtime/device.h), and the operands of ops that draw.
#pragma once

#include "ir/node.h"
#include "runtime/generator.h"

namespace torch_xla {

// What determines an op's random numbers: a seed, which is an operand of the graph, and the number of earlier draws,
// which is a constant in it.
struct RngOperand {
  NodePtr seed;
  uint32_t offset;
};

RngOperand next_rng_operand(int8_t device);
RngOperand next_rng_operand(XlaGenerator& generator);

// Folds the draws so far into the seed, which is an operand of the next graph. Call it when a graph is flushed.
void advance_seed(int8_t device);
// Returns the draws since the last flush, and skips `count` draws, as if they were drawn and flushed.
uint32_t draws_since_flush(int8_t device);
void skip_draws(int8_t device, uint32_t count);
// Returns whether `count` draws from now on have one seed: the device adds the halves of the state without a carry.
bool have_one_seed(int8_t device, uint32_t count);
void set_seed(int8_t device, uint64_t seed);
void set_all_seeds(uint64_t seed);  // a separate stream for each device, including those that no backend has yet
uint64_t get_seed(int8_t device);

}  // namespace torch_xla
