// Graph size limit. Each thread counts what it records in the device's state; the thread that reaches the limit flushes
// the graph before it records its next op.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_xla {

// The number of pending ops at which the graph is flushed.
std::atomic<int64_t>& pending_limit();

// Counts recorded ops; in eager mode, flushes the graph.
void count_pending(int8_t device, int64_t ops = 1);

// Flushes the graph if the previous op reached the limit. Call it before recording any part of an op: an error of the
// flush is then raised before this op, possibly in place, has changed anything, and the op can be retried.
void flush_if_over_limit();

// Returns whether each op runs right after it is recorded (eager mode): the size limit is 1.
bool is_eager();

}  // namespace torch_xla
