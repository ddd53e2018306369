"""Lists every cache of the package, and why different values cannot share one of its keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch_xla

_ROOT = Path(torch_xla.__file__).parent
_MAKERS = {"LruCache", "WeakKeyDictionary", "WeakValueDictionary", "OrderedDict", "defaultdict", "lru_cache"}
_LOCAL = {"LruCache", "WeakKeyDictionary", "lru_cache"}  # counted inside functions as well
# Where C++ code can cache a value: static and thread_local variables, globals, tables, and mutable members.
_TABLE = r"(?:compat::FlatMap|std::(?:unordered_)?(?:multi)?(?:map|set))<[^;()]*>"
_NATIVE = (
    re.compile(r"\s*(?:inline )?(?:static thread_local|static|thread_local)\s[^;={(]*[\s*&>](?P<name>\w+)\s*[;={([]"),
    re.compile(r"(?!\s|using|return|typedef|extern|namespace|class|struct|enum|const|template)"
               r"[\w:<>,*& ]+[\s*&>](?P<name>\w+)\s*(?:=|\{|;)"),
    re.compile(rf"\s+(?:{_TABLE}|mutable\s[^;={{(]*[\s*&>]|[\w:<>,*& ]+\s(?=last_|recent_|cached_))"
               r"\s?(?P<name>\w+)\s*[;={]"),
)  # fmt: skip

# Objects whose value never changes: constants, literals, locks, operators and counters by name.
_NATIVE_FIXED = re.compile(
    r"constexpr"
    r"|static const std::(?:unordered_set|unordered_map|string|vector)\b[^()]*(?:\{\"|\{$|;| = \")"
    r"|static const (?:Op|Counter)Pointer \w+\(\""
    r"|\b(?:std::)?(?:shared_)?mutex \w+;"
)
_PARAMETERS = re.compile(r"\((?:\)|[^()\"]*\w[\s&*]+\w+[,)])")  # of a function; a variable has constructor arguments

#: Cache -> the tests of its pairs (``test: names``), or why its key is complete.
TABLE = """
_engine/aot/cost_model:_inner           the name of a computation of one parsed module, which owns the cache
_engine/aot/hlo_parser:instructions     names of one parsed computation, filled by its parser and never changed
_engine/aot/targets:get_target          the name; hardware specs are constants, and the compiler is located once
_engine/aot/program_collector:_by_key   device and graph, not the precision: runs count for the program compiled last
_engine/aot/program_collector:_by_text  the StableHLO for the target, or the nodes that cannot be lowered
_engine/aot/program_collector:_runs     the number of a program in this collector
_engine/aot/program_collector:step_runs the number of a program in this collector, replaced at each step
cli/plan/planner:results                the target and the values of the options; one planner has one script
_engine/compat/pjrt_execution:_aval     the shape and dtype that it describes
_engine/compat/pjrt_execution:_on_device the device that it names
_engine/compat/pjrt_execution:raw_device_put no arguments; a function of the installed jaxlib
_engine/compat/pjrt_execution:transfer_guard no arguments; names of the installed jax, whose state is read at each use
_engine/compat/pjrt_execution:wide_options no arguments; setters of the installed jax and a constant
_engine/compat/pjrt_execution:x64_setter no arguments; names of the installed jax, whose state is read at each use
_engine/compat/flex_attention:without_dynamo the function itself, which torch defines once
_engine/compat/flop_formulas:_formulas   the name of an op; the formulas of the installed torch
_engine/compat/dynamo:_find_trace_context no arguments; a name of the installed jax, called at each use
_engine/base/dtypes:_stored_as          dtypes; filled when the backend starts, from variables that warn if set later
_engine/base/import_hooks:_waiting      not a cache: actions by module name until it is imported
_engine/base/sharding_ids:_numbers      jax's sharding (mesh and spec by value) and the rank; ids are permanent
_engine/base/sharding_ids:padded_shape  shape and sharding, which determine the result; both compared by value
_engine/device/devices:devices          no arguments; the backend starts once, and a forked child gets an error
_engine/device/pjrt_plugins:_registered a registry by name; a later plugin of that name replaces the first
_engine/device/capabilities:_is_jaxlib_cpu the client; jax creates its own CPU client once
_engine/device/capabilities:shares_host_memory the device, whose client is fixed and behaves as when it started
_engine/device/capabilities:_shares_host_memory the client, whose behavior is fixed when it starts
_engine/device/capabilities:_donates_buffers the client, whose behavior is fixed when it starts
_engine/device/capabilities:can_decompose the client and the name of a decomposition; the installed jax has its rules
_engine/device/matmul_precision:_known  platform, set_precision's choice and torch's setting, all read at each call
_engine/device/matmul_precision:_objects the value itself: one object for equal ones
_engine/diagnostics/recompilation_explanation:details not a cache: text of one report
_engine/diagnostics/step_timings:spent       not a cache: sums by category
_engine/diagnostics/metrics:_metrics    a registry by name
_engine/diagnostics/profiler_spans:_tracks threads by device, replaced when one has ended
_engine/diagnostics/device_memory:_peaks not a cache: peaks by device, since the last reset
_engine/torch_patches/accelerator:_other_accelerator no arguments; the accelerator of the machine, which does not change
_engine/diagnostics/completion:_threads threads by device, until the process ends; a forked child has no devices
_engine/execution/graph_dump:_hlo       test: test_graph_dump
_engine/compilation/persistent_cache/graph_key:_is_portable_op the name; rules and decompositions are fixed when ops
    are registered
_engine/cpu_backend/malloc_tuning:retain_free_memory no arguments; returns nothing, configures malloc once
_engine/compilation/native_executable:_empty_scalars sharding (by value, with its devices) and dtype of an array
    without elements
_engine/execution/value_errors:_launched not a cache: results of checks that wait for a sync or read
_engine/execution/value_errors:_asserted not a cache: assertions whose value no program has computed yet
_engine/execution/op_by_op:_executables test: test_functions_with_other_callbacks_are_other_functions
_engine/execution/op_by_op:_sequences   test: test_functions_with_other_callbacks_are_other_functions
_engine/compilation/program_cache:cache test: test_functions_with_other_callbacks_are_other_functions
_engine/replay/observation:summary      not a cache: what one recording reads and writes
experimental/generation:_steps          model, held; processors and their values, way of choice, ends, other inputs of
    the model, sizes of its cache; the captured step has guards on the rest
_engine/replay/code_names:cells_in  the code objects, which are immutable
_engine/replay/code_names:names_in  the code objects, which are immutable
_engine/compat/call_state:_resolve_names no arguments; functions and tables of the installed torch
_engine/execution/compile_region:_named name, full_graph, max_graphs: contexts of one name count their graphs together
_engine/execution/compile_region:_of_functions the owner, held weakly; function, name, full_graph, max_graphs
_engine/compilation/hlo_metadata:_caller file, line and function name, which determine the compiled caller
_engine/graph/text_format:tags          not a cache: the tags of one line
_engine/graph/text_format:_schema_arguments name and overload; text of dumps only, and torch rejects a second definition
_engine/capture/array_sharing:_shared   id of an array, with a weak reference that is compared and removes it
_engine/capture/jax_function:_calls     test: test_constants_that_differ_are_traced_apart
_engine/capture/control_flow:_found     operation, keys of the recordings, shapes and dtypes, whose number determines
    the split
_engine/torch_patches/compiled_optimizers:_traced_rates the optimizer; not a cache: a record for one warning
_engine/capture/openxla_backend:_plans  test: test_jaxs_configuration_is_in_the_key_of_torch_functions
_engine/capture/autograd_function:_backwards which gradients are given; a member of one Derivative, which fixes all else
_engine/capture/autograd_function:_derivatives test: test_arrays_of_closures_are_copied_at_the_call
_engine/compilation/bucketed_program:compiled_fill no arguments; a program of one group of arrays
_engine/compilation/bucketed_program:compiled_split no arguments; a program of one group of arrays
_engine/compilation/compile_graph:bucketed the arrays in each bucket, of one program of one graph, which owns it
_engine/capture/object_keys:_removed_at the table itself, held weakly; a count of deaths
_engine/capture/scan:_by_recorded       the recording's key, the loop, the name and the policy, by identity
_engine/capture/scan:_by_signature      test: test_structures_that_differ_are_recorded_apart
    test_jaxs_configuration_is_in_the_key_of_torch_functions
_engine/capture/aot_partitioner:save_policy_for the policy by identity, held; it is called again for each graph
_engine/capture/aot_partitioner:_opaque_target the name, which determines the placeholder
_engine/capture/pure_function:_by_recorded operation, the recording's key and which tensors need gradients
_engine/capture/pure_function:_known    test: test_objects_without_a_value_are_refused_and_others_are_seen_to_change
    test_jaxs_configuration_is_in_the_key_of_torch_functions
_engine/capture/capture_function:_recorded the graph's key, numbers and constants by content, results, precision
_engine/capture/joint_graph:is_view     name and overload; torch rejects a second definition
_engine/job/key_value_exchange:_counts  not a cache: how often this process reached a rendezvous
_engine/job/key_value_exchange:_roles   not a cache: the last role of this process
_engine/lowering/rules/adaptive_pooling:_band both sizes, which determine the result
_engine/lowering/decompose:decomposition_table no arguments; loaded when ops are registered, as keys on disk require
_engine/lowering/decompose:_tracer      no arguments; a thread, created again after a fork
_engine/lowering/rules/jax_call:_entries numbers that are never reused
_engine/lowering/rules/jax_call:_numbers test: test_functions_with_other_callbacks_are_other_functions
_engine/lowering/registry:RULES         a registry by operator, which rejects a second rule
_engine/lowering/rules/upsample:_nearest all arguments: sizes, alignment, scale, dtype of indices, shift
_engine/lowering/rules/upsample:_linear all arguments: sizes, alignment, scale, dtype of indices
_engine/lowering/rules/upsample:_cubic  all arguments: sizes, alignment, scale, dtype of indices
_engine/lowering/rules/upsample:_antialias_weights all arguments: sizes, alignment, scale, dtype of indices, filter
_engine/parallel/collectives:_retained      not a cache: results by device until the graph is flushed
_engine/parallel/collectives:_counts    the graph's key, which determines the number of collective ops
_engine/parallel/replica_program:_replicated_sharding the devices in order, which determine the mesh
_engine/parallel/spmd:mesh_devices      no arguments; the backend starts once in a process
_engine/parallel/spmd:replicated_sharding no arguments; computed from mesh_devices()
_engine/parallel/spmd:_resharding_function shape and both shardings by value; jax.jit has a separate key for the array
_engine/parallel/spmd:_replicated       id of an array, with a weak reference that is compared and removes it
_engine/recorder/source_info:origin_from_id the number of a stack of lines and a scope, which is never reused
distributed/fsdp/wrap:known             not a cache: a table inside one call
distributed/launcher/job_attempt:codes  not a cache: exit codes of one attempt
distributed/spmd/_fully_shard:_fsdp_module no arguments; a class of torch
distributed/spmd/_fully_shard:_fsdp_class the class by identity, held
distributed/spmd/_fully_shard:_kept     not a cache: by module, from the pre-hook of a call to its hook
distributed/spmd/_mesh:_jax_mesh        device ids, shape and axis names, by value; the process's devices
distributed/spmd/_process_fsdp_module:fsdp_module_class no arguments; a class of torch
experimental/callback:_runners          threads by device
experimental/custom_kernel/_torch_ops:decode_sharding all arguments as text: spec, mesh and rank; the process's devices
experimental/scan_layers:_calls         the module by identity, held weakly; its children are compared at each call
experimental/scan_layers:_alike         test: test_layers_that_have_become_different_are_refused
stablehlo/bundle:state_dict             not a cache: the contents of a bundle
_engine/compat/pjrt_execution:isolating_options its argument; switches of the installed jax, set at each use
_engine/base/engine_sources:_hash       no arguments; invalidated if the stamps of files differ from those at import
_engine/base/xla_flags:_read_once       test: test_cache_folders
_engine/compilation/persistent_cache/graph_key:_releases no arguments; versions of modules that are imported
_engine/compilation/persistent_cache/storage:_remove_leftovers the folder; returns nothing, removes old parts once in
    a process
_engine/recorder/toolchain:stamps       not a cache: stamps of the files of one build
debug/utilization:_callbacks             not a cache: the functions that the user added
debug/utilization:_measure_matmul        the dtype; the speed of this machine, measured once
"""

#: The same for the C++ of the recorder and of the CPU kernels.
NATIVE = """
graph/state_snapshot.h:entries_         not a cache: the tensors before one step, by serial number
graph/state_snapshot.cpp:leaves_        not a cache: the inputs of one graph, while it is described
graph/state_snapshot.cpp:roots_         not a cache: the results of one graph, while it is described
graph/state_snapshot.cpp:placed_        not a cache: memory that was described already
graph/replay_program.h:bound_           not a cache: the tensors of one step, which it owns
aten/autocast.cpp:library               the library that holds the autocast kernels, registered once
csrc/bindings.cpp:seen                  not a cache: lives for one call
support/counters.cpp:counters           a registry by name
support/counters.cpp:s                  a registry of functions
support/counters.cpp:t                  holds counters.cpp:counters
dispatch/cpu_fallback.cpp:inputs        not a cache: lives for one call
runtime/device.cpp:advice               a text, written by Python when the backend starts
runtime/device.cpp:count                a setting, written by Python: the number of devices reported to torch
runtime/device.cpp:current_index        the current device of a thread
runtime/device.cpp:h                    Python functions, set once
runtime/device.cpp:known                the number of devices, which never decreases; queried again for an index
    beyond it
runtime/device.h:closing                a flag: the process is ending
ir/node.cpp:states                      by device: its live tensors and seed
ir/op.h:supported                       the op; whether the platform, which is chosen once, can compile its rule
ir/op.cpp:op                            pseudo-operators of the recorder, by their constant names
runtime/device.h:states                 by device: its live tensors and seed
graph/donation.cpp:next                 not a cache: lives for one graph
graph/donation.cpp:capacity             not a cache: lives for one graph
runtime/execution_lock.cpp:locks        a lock for each device
dispatch/foreach.cpp:positions_         not a cache: lives for one call
support/fork_safe_lock.cpp:handlers     a registry of functions
support/lazy_pointer.h:pointer_         the name; objects of its table live as long as the process
support/spinlock.h:unlocks              a counter of builds with ThreadSanitizer
graph/graph.cpp:found                   not a cache: lives for one graph
csrc/ffi_handler.h:handler              the signature of a handler, of its template arguments
aten/unboxed_views.cpp:op               the operator of a slot, set when it is registered
tensor/tensor_identity.cpp:last         a counter
tensor/tensor_identity.cpp:next         a counter
interpreter/graph_interpreter.cpp:last_look_ a time
interpreter/graph_interpreter.cpp:storages not a cache: lives for one graph
interpreter/graph_interpreter.cpp:ops     constant operators
runtime/python_hooks.cpp:depth_         the nesting depth of a thread inside the interpreter's gate
runtime/python_hooks.cpp:gate           one gate in a process
runtime/python_hooks.cpp:handler        the previous terminate handler
runtime/python_hooks.cpp:devices_lost_message a message for the end of the process
graph/launch.cpp:names                  three constant texts as objects of Python, never freed
graph/launch.cpp:inputs                 not a cache: lives for one launch
graph/launch.h:last_arrays              of one executable, with last_floats and last_ints, compared bit by bit
graph/launch.h:last_floats              see last_arrays
graph/launch.h:last_ints                see last_arrays
tensor/view_layout.cpp:valid            for each step: operator, attributes, operand's shape and dtype, result and start
runtime/memory_stats.cpp:all_stats      sums by device
runtime/memory_stats.cpp:pending_provenance provenance of buffers made on this thread, set around each launch
ir/node.cpp:last                        a counter
runtime/bucket.cpp:mutex                a lock
runtime/buffer.cpp:p                    nodes that wait to be released
ir/node.cpp:work                        not a cache: lives while nodes are released
ir/op.cpp:static_args                   not a cache: lives for one registration
ir/op.cpp:constant_numbers              a setting, set when torch_xla is imported
ir/op.cpp:handle                        torch's operator aten::alias, in place of the recorder's own
ir/op.cpp:ops                           name and overload; torch rejects a second definition; the recorder's are never
    unregistered
ir/op.cpp:t                             holds op.cpp:ops
ir/source_location.cpp:frames           not a cache: emptied at each use
ir/source_location.cpp:numbers          scope, code objects (held, so that addresses are not reused), instructions
ir/source_location.cpp:scope            the scope of a thread
ir/source_location.cpp:scopes           the number of an operation, stored with its scope and compared
ir/source_location.cpp:t                holds source_location.cpp:numbers
ir/source_location.h:capturing_origins  a setting
ir/rng_state.cpp:output_spec            no arguments: one int64
graph/sync_reason.cpp:current_reason    the reason of a thread
graph/sync_reason.cpp:reasons           the text itself, never freed
dispatch/library.cpp:by_namespace       a registry by namespace
dispatch/library.cpp:libraries          libraries, never freed
csrc/registration.cpp:names             names that have a kernel
runtime/pending_sharding.cpp:any        a flag that is never cleared: some value has a sharding
runtime/pending_sharding.cpp:pending    the sharding of the next buffer of a thread, used once
graph/concat_forwarding.cpp:found       three operators by name
inference/output_spec_cache.cpp:c       holds output_spec_cache.cpp:signatures
inference/output_spec_cache.cpp:verifying a setting: output specs are inferred again and compared
inference/output_spec_cache.cpp:accepted operator, dtypes of results and of out=, which determine the check
inference/output_spec_cache.cpp:recent  the same key as signatures, of this thread
inference/output_spec_cache.cpp:specs   operator, default dtype, operands' shapes and dtypes, numbers' types,
    attributes
dispatch/graph_size_limit.cpp:any_flush_due a flag
dispatch/graph_size_limit.cpp:flush_due the device of this thread whose graph is to be flushed
dispatch/graph_size_limit.cpp:limit     a setting
graph/slice_starts.cpp:kinds            the graph's key without starts, and its device; only decides which starts are
    operands
graph/slice_starts.cpp:t                holds slice_starts.cpp:kinds
aten/recurrent.cpp:op                   an operator by name
threading/kernel_thread.cpp:instance    the thread team of the process, created again in a forked child
"""


def reasons(table: str) -> dict[str, str]:
    """Return the reason of each cache, by its name. An indented line of the table continues the previous one."""
    lines = re.sub(r"\n +", " ", table.strip()).splitlines()
    return dict(line.split(maxsplit=1) for line in lines)  # type: ignore[misc]


def find_caches() -> set[str]:
    """Return ``module:name`` of every object of the package that Python code can use as a cache."""
    found: set[str] = set()
    for file in _ROOT.rglob("*.py"):
        module = file.relative_to(_ROOT).with_suffix("").as_posix()
        found.update(f"{module}:{name}" for name in _names(ast.parse(file.read_text()), False))
    return found


def find_native_caches() -> set[str]:
    """Return ``folder/file:name`` of every possible cache in the C++ of the recorder and the CPU kernels."""
    files = [file for file in _ROOT.rglob("csrc/**/*") if file.suffix in (".cpp", ".h")]
    return {f"{file.parent.name}/{file.name}:{name}" for file in files for name in find_native_names(file.read_text())}


def find_native_names(text: str) -> Iterator[str]:
    """Yield the names of objects that can be a cache in C++ code formatted by clang-format."""
    for line in re.sub(r"[ \\]*//.*|[ \\]+$", "", text, flags=re.MULTILINE).splitlines():
        found = next((match for pattern in _NATIVE if (match := pattern.match(line))), None)
        if found is None or _NATIVE_FIXED.search(line) or _PARAMETERS.match(line, found.end("name")):
            continue
        yield found["name"]


def _names(node: ast.AST, is_local: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(_name(_called(d)) in {"cache", "lru_cache"} for d in child.decorator_list):
                yield child.name
            yield from _names(child, True)
            continue
        if isinstance(child, (ast.Assign, ast.AnnAssign)) and child.value is not None:
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            if _is_cache(child.value, is_local):
                yield _name(target)
        yield from _names(child, is_local)


def _called(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call):
        node = node.func
    return node


def _name(node: ast.expr) -> str:
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_cache(value: ast.expr, is_local: bool) -> bool:
    name = _name(_called(value))
    if is_local:
        return isinstance(value, ast.Call) and name in _LOCAL
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call):
        return False
    if name == "field":
        return any(k.arg == "default_factory" and _name(k.value) in {"dict", *_MAKERS} for k in value.keywords)
    return name in _MAKERS or (name == "dict" and not value.args and not value.keywords)
