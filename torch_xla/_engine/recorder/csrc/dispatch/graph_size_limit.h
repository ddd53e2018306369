// How long a graph may get. Each thread counts what it records in the device's state; the one that reaches the limit
// owes a cut, and pays it before it records its next op.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_xla {

// The most ops that may be pending before the graph is cut.
std::atomic<int64_t>& pending_limit();

// Counts recorded ops; cuts the graph where each op runs at once.
void count_pending(int8_t device, int64_t ops = 1);

// To be called before anything of an op is recorded: cuts the graph if the op before has made it too long. An error of
// that cut is raised while this op has changed nothing, so that it can be tried again; an in-place op too.
void flush_if_over_limit();

// Whether each op runs when it has been recorded (eager mode): the graph may have one op.
bool is_eager();

}  // namespace torch_xla
