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

// Whether this call has to be answered by the CPU: a generator of the user's, or a result of unknown shape.
bool must_run_on_cpu(const Op& op, c10::ArrayRef<c10::IValue> arguments);

// Counts a recorded op; cuts the graph where too many are pending.
void count_pending(int8_t device);

// To be called before anything of an op is recorded: cuts the graph if the op before has made it too long. An error of
// that cut is raised while this op has changed nothing, so that it can be tried again; an in-place op too.
void begin_op();

// Whether each op runs when it has been recorded (eager mode): the graph may have one op.
bool runs_at_once();

[[noreturn]] void raise_not_xla(const Op& op, size_t argument, const at::Tensor& t, int8_t device);

// Runs the op on the CPU, counted as aten::<op>.
void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// A node that converts `value` to `dtype`; `value` itself where it has that dtype.
NodePtr cast(NodePtr value, at::ScalarType dtype);

// Random state of a device: a cut, which makes the draws so far part of the seed that is the next graph's operand;
// setting it, and reading it.
void advance_seed(int8_t device);
void set_seed(int8_t device, uint64_t seed);
void set_all_seeds(uint64_t seed);  // each device its own stream, also those that no backend has yet
uint64_t get_seed(int8_t device);

// The ops by name, made at registration; null for an op that is not recorded.
const Op* find_op(const std::string& name);
Op* add_op(const std::string& name, const std::unordered_set<std::string>& baked, bool random);
const Op* add_form(const std::string& name, const Op* functional);
std::vector<const Op*> all_ops();

}  // namespace torch_xla
