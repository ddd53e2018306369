"""Every cache of the package, found in the code, and what keeps other values from its keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import torch_xla

_ROOT = Path(torch_xla.__file__).parent
_MAKERS = {"LruCache", "WeakKeyDictionary", "WeakValueDictionary", "OrderedDict", "defaultdict", "lru_cache"}
_LOCAL = {"LruCache", "WeakKeyDictionary", "lru_cache"}  # those that count inside functions as well
_NATIVE = re.compile(
    r"static auto\* (\w+) = new std::unordered_map"
    r"|static[^;({]*\b(?:unordered_)?map<[^;]*?>\s*\*?\s*(\w+)"
    r"|^\s*std::unordered_map<.*> (\w+);"
)

#: A cache: the tests of its pairs (``test: names``), or why its key is complete.
TABLE = """
_engine/aot/costs:_inner                the computation of one parsed module, which owns the cache
_engine/aot/hlo:instructions            filled by the parser of one text
_engine/aot/targets:target              the name, which describes a chip of public figures
_engine/aot/watching:_by_key            test: test_cache_folders
_engine/aot/watching:_by_text           test: test_cache_folders
_engine/base/compat/launching:transfer_guard no arguments; names of the installed jax
_engine/base/compat/launching:x64_switch no arguments; names of the installed jax
_engine/base/compat/tracing:_find_trace_context no arguments; a name of the installed jax, called at each use
_engine/base/dtypes:_stored_as          set once, when the backend starts
_engine/base/imports:_waiting           a registry of calls by module name
_engine/base/shardings:_numbers         jax's sharding and the rank, both compared by value
_engine/base/shardings:padded           shape and sharding, both compared by value
_engine/device/devices:devices          no arguments; the backend of the process
_engine/device/plugins:_registered      a registry by name
_engine/device/precision:_known         all settings that decide it
_engine/device/precision:_objects       the value itself
_engine/diagnostics/explain:details     what one report says
_engine/diagnostics/journal:spent       sums by kind
_engine/diagnostics/metrics:_metrics    a registry by name
_engine/diagnostics/spans:_tellers      threads by process
_engine/diagnostics/under_way:_watchers threads by process
_engine/execution/dump:_hlo             form, device and key of the graph; texts for dumps only
_engine/execution/graph_names:_is_known_op test: test_cache_folders
_engine/execution/heap:_function        the name of a function of the C library
_engine/execution/heap:_most            no arguments; the machine
_engine/execution/heap:_user_decides    no arguments; the environment at the start
_engine/execution/launch:_empty         sharding and dtype of an array without elements
_engine/execution/op_by_op:_executables test: test_functions_with_other_callbacks_are_other_functions
_engine/execution/op_by_op:_chains      test: test_functions_with_other_callbacks_are_other_functions
_engine/execution/programs:cache        test: test_functions_with_other_callbacks_are_other_functions
_engine/execution/regions:_named        the name of a region, which is what it stands for
_engine/execution/regions:_of_functions the function, by identity, as long as it lives
_engine/graph/hlo_metadata:_caller      the number of a line, which is never given to another
_engine/graph/listing:tags              the operator, which torch does not redefine
_engine/graph/listing:_arguments        the operator, which torch does not redefine
_engine/interop/arrays:_shared          id of an array, with a weak reference that is compared
_engine/interop/calls:_calls            test: test_constants_that_differ_are_traced_apart
_engine/interop/control_flow:_found     keys of recordings, as in _recorded; shapes and dtypes
_engine/interop/dynamo_graph:_plans     gradients, default dtype, precision; all else is guarded by torch.compile
_engine/interop/gradients:_backwards    which gradients are given; of one Derivative
_engine/interop/gradients:_derivatives  test: test_arrays_of_closures_are_copied_at_the_call
_engine/interop/identities:_removed_at  the table itself
_engine/interop/loops:_by_recorded      keys of recordings, as in _recorded; the loop
_engine/interop/loops:_by_signature     the function by identity, structures, shapes, torch's state
_engine/interop/partition:keep_for      the policy, by identity
_engine/interop/partition:_other        the operator, which torch does not redefine
_engine/interop/pure:_by_recorded       keys of recordings, as in _recorded; needs of gradients
_engine/interop/pure:_known             test: test_objects_without_a_value_are_refused_and_others_are_seen_to_change
_engine/interop/recording:_recorded     the graph's key, all its constants by dtype, shape and content, and precision
_engine/interop/split:is_view           the operator, which torch does not redefine
_engine/job/coordination:_counts        numbers in a row by name; no values
_engine/job/coordination:_roles         a registry by name
_engine/lowering/adaptive_pooling:_band sizes
_engine/lowering/decompose:table        no arguments; torch's decompositions
_engine/lowering/decompose:_tracer      no arguments
_engine/lowering/jax_call:_entries      numbers that are never given to another function
_engine/lowering/jax_call:_numbers      test: test_functions_with_other_callbacks_are_other_functions
_engine/lowering/registry:RULES         a registry by operator
_engine/lowering/upsample:_nearest      sizes and scales
_engine/lowering/upsample:_linear       sizes and scales
_engine/lowering/upsample:_cubic        sizes and scales
_engine/lowering/upsample:_antialiased  sizes and scales
_engine/parallel/collectives:_kept      results that wait for a barrier, by device
_engine/parallel/collectives:_counts    the key of the graph
_engine/parallel/replicated:_sharding   the processes
_engine/parallel/sharded:mesh_devices   no arguments; the devices of the process
_engine/parallel/sharded:replicated     no arguments; the devices of the process
_engine/parallel/sharded:_relaying      shapes and shardings, compared by value
_engine/parallel/sharded:_replicated    id of an array, with a weak reference that is compared
_engine/recorder/origins:origin         the number of a line, which is never given to another
distributed/fsdp/wrap:known             not a cache: a table inside one call
distributed/launcher/attempt:codes      exit codes of one attempt
distributed/spmd/_fully_shard:_fsdp_module no arguments; a module of torch
distributed/spmd/_fully_shard:_fsdp_class the class
distributed/spmd/_fully_shard:_kept     parameters that wait, by device
distributed/spmd/_mesh:_jax_mesh        shape, names and devices of the mesh
experimental/callback:_runners          threads by process and device
experimental/custom_kernel/_operators:read_layout the text of a layout
experimental/scan_layers:_calls         the module, by identity, as long as it lives
experimental/scan_layers:_alike         the module, by identity, as long as it lives
stablehlo/bundle:state_dict             not a cache: the contents of a bundle
_engine/base/compat/launching:isolating_options its argument; names of the installed jax
_engine/base/sources:_hash              no arguments; files whose stamps are compared at each use
_engine/base/xla_flags:read             test: test_cache_folders
_engine/execution/graph_names:_releases no arguments; versions of what is imported
_engine/execution/program_files:_remove_leftovers the folder; only removes files, once
_engine/recorder/toolchain:stamps       not a cache: lives for one build
"""

#: The same for tables in C++ that live as long as the process.
NATIVE = """
donation.cpp:room               not a cache: lives for one graph
donation.cpp:next               not a cache: lives for one graph
launch.cpp:inputs               not a cache: lives for one launch
registration.cpp:by_namespace   a registry by namespace
origin.cpp:numbers              file, line and scope, which are what a number stands for
op.cpp:places                  a constant table
op.cpp:ops                      the name of the operator and its overload, which torch does not redefine
data_dependent.cpp:table        a constant table
"""


def reasons(table: str) -> dict[str, str]:
    """The lines of a table: what is right of the name of each cache."""
    return dict(line.split(maxsplit=1) for line in table.strip().splitlines())  # type: ignore[misc]


def find_caches() -> set[str]:
    """``module:name`` of everything in the package that Python code can use as a cache."""
    found: set[str] = set()
    for file in _ROOT.rglob("*.py"):
        module = file.relative_to(_ROOT).with_suffix("").as_posix()
        found.update(f"{module}:{name}" for name in _names(ast.parse(file.read_text()), False))
    return found


def find_native_caches() -> set[str]:
    """``file:name`` of the maps in the recorder's C++ that are static, or members, or declared on a line."""
    found = set()
    for file in _ROOT.rglob("csrc/*.cpp"):
        for line in file.read_text().splitlines():
            if match := _NATIVE.search(line):
                found.add(f"{file.name}:{match[match.lastindex or 0]}")
    return found


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
