// Recording: a dispatcher call becomes a Node. The hot path: no Python, no GIL, no meta call once a signature is known.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "device.h"
#include "op.h"

namespace torch_xla {

// Pops the op's arguments, pushes its results. Raises, in torch's own words, what the op's meta function raises.
void record(const Op& op, torch::jit::Stack* stack);

// The same for an op one of whose arguments says where the result is made, which may be elsewhere than its tensors.
void record_factory(const Op& op, torch::jit::Stack* stack);

// The same for an op on lists, whose elements may be on several devices.
void record_foreach(const Op& op, torch::jit::Stack* stack);

// The same without results: the op's Node.
NodePtr record_node(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Counts a recorded op; cuts the graph where too many are pending.
void count_pending(int8_t device);

// To be called before anything of an op is recorded: cuts the graph if the op before has made it too long. An error of
// that cut is raised while this op has changed nothing, so that it can be tried again; an in-place op too.
void begin_op();

// Whether each op runs when it has been recorded (eager mode): the graph may have one op.
bool runs_at_once();

[[noreturn]] void raise_not_xla(const Op& op, size_t argument, const at::Tensor& t, int8_t device);

// A node that converts `value` to `dtype`; `value` itself where it has that dtype.
NodePtr cast(NodePtr value, at::ScalarType dtype);

}  // namespace torch_xla
