"""Convert a torch.export ExportedProgram into a jax function, without recording or running it on a device.

ExportedProgram ──decompositions of what has no rule──► fx graph ──rules (lowering/fx_interpreter.py)──► jax function
sizes: s0, s0 // 2, ...  ────────────────────────────────────────► symbols of jax.export, with the same bounds
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import jax_function
from torch_xla._engine.compat import dispatcher
from torch_xla._engine.device import devices
from torch_xla._engine.lowering import composites, decompose, fx_interpreter
from torch_xla._engine.lowering.registry import RULES, LoweringRuleContext, Rule
from torch_xla._engine.lowering.rules import custom_call

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the graph: an argument at a flat position, or a named tensor that the program holds."""

    kind: InputKind
    name: str  # qualified, as in state_dict; for an argument the name of its placeholder
    position: int  # among the flat arguments; -1 for a tensor of the program
    struct: jax.ShapeDtypeStruct


@dataclass(frozen=True, slots=True)
class Constant:
    """A flat result that is not a tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class ExportedFunction:
    """A function of all ``inputs`` in order; it returns the new values of ``mutated``, then the results."""

    function: Callable[..., list[Any]]
    inputs: list[Input]
    mutated: list[str]
    constants: list[tuple[int, Any]]  # flat arguments that are not tensors: position, value
    results: list[Any]  # for each flat result its index among the function's outputs, or a Constant
    targets: frozenset[str]  # of custom calls


def to_jax_function(program: torch.export.ExportedProgram, custom: frozenset[str] = frozenset()) -> ExportedFunction:
    """Convert a program to a jax function.

    Operators of the namespaces in ``custom`` become custom calls ``namespace.operator``.

    Raises:
      NotImplementedError: An operator has neither a lowering rule nor a decomposition, or draws random numbers.
    """
    devices.configure_cpu_devices()  # tracing starts jax's backend
    with warnings.catch_warnings():
        # torch (2.13) raises this itself when it copies its pytrees.
        warnings.filterwarnings("ignore", ".*treespec, LeafSpec", FutureWarning)
        decomposed = program.run_decompositions(_decompositions())
    sizes, parts = _SymbolicSizes(decomposed), composites.composite_regions(decomposed.graph)
    inputs, given, constants = _inputs(decomposed, sizes)
    outputs = decomposed.graph_signature.output_specs
    tensor_outputs = [i for i, spec in enumerate(outputs) if not isinstance(spec.arg, ConstantArgument)]
    mutated = [spec.target for spec in outputs if spec.kind in _MUTATIONS and spec.target is not None]

    def function(*arrays: jax.Array) -> list[Any]:
        values = [arrays[g] if isinstance(g, int) else g.value for g in given]
        composed = parts if _composes.get() else ()
        graph = fx_interpreter.FxInterpreter(
            decomposed.graph_module, lambda name: _rule(name, custom), sizes, regions=composed
        )
        found = graph(values)
        return [jnp.asarray(found[i]) for i in tensor_outputs]

    place = {i: number for number, i in enumerate(tensor_outputs)}
    results = [
        place[i] if i in place else Constant(spec.arg.value)
        for i, spec in enumerate(outputs)
        if spec.kind == OutputKind.USER_OUTPUT
    ]
    names = {_name(s) for n in decomposed.graph.nodes if (s := dispatcher.schema_or_none(n.target)) is not None}
    targets = frozenset(_target(name) for name in names if name not in RULES and name.partition("::")[0] in custom)
    return ExportedFunction(function, inputs, mutated, constants, results, targets | _custom_call_targets(decomposed))


def _custom_call_targets(program: torch.export.ExportedProgram) -> frozenset[str]:
    """Return the targets of the custom calls in the program."""
    schemas = [(n, dispatcher.schema_or_none(n.target)) for n in program.graph.nodes]
    return frozenset(str(n.args[1]) for n, s in schemas if s is not None and s.name == custom_call.NAME)


def _inputs(program: torch.export.ExportedProgram, sizes: _SymbolicSizes) -> tuple[list[Input], list[Any], list[Any]]:
    """Return the inputs, the input or Constant of each placeholder, and the constant arguments with their positions."""
    metas = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    inputs: list[Input] = []
    given: list[Any] = []
    constants = []
    position = -1
    for spec in program.graph_signature.input_specs:
        is_argument = spec.kind == InputKind.USER_INPUT
        position += is_argument
        if isinstance(spec.arg, TensorArgument):
            given.append(len(inputs))
            struct = fx_interpreter.shape_struct(metas[spec.arg.name], sizes)
            inputs.append(Input(spec.kind, spec.target or spec.arg.name, position if is_argument else -1, struct))
            continue
        if not isinstance(spec.arg, ConstantArgument):
            raise NotImplementedError(
                f"argument {position} of the program is a dynamic size ({spec.arg.name}): pass a tensor instead"
            )
        given.append(Constant(spec.arg.value))
        constants.append((position, spec.arg.value))
    return inputs, given, constants


def lower(exported: ExportedFunction, name: str, platforms: Sequence[str]) -> jax.export.Exported:
    """Lower the function for each of the platforms (cpu, cuda, rocm, tpu)."""
    # jax (0.10.2) adds an argument, which a composite lacks, to functions for several platforms or of symbolic sizes.
    several = len(platforms) > 1 or any(not isinstance(size, int) for i in exported.inputs for size in i.struct.shape)
    token = _composes.set(not several)
    try:
        return _lower_for_platforms(exported, name, platforms)
    finally:
        _composes.reset(token)


#: Whether marked regions become StableHLO composites (lowering/composites.py) or ordinary operations.
_composes: ContextVar[bool] = ContextVar("composes", default=True)


def _lower_for_platforms(exported: ExportedFunction, name: str, platforms: Sequence[str]) -> jax.export.Exported:
    checks = [jax.export.DisabledSafetyCheck.custom_call(target) for target in exported.targets]
    with recorder.enable_x64():
        export = jax.export.export(_jit_exported(exported, name), platforms=tuple(platforms), disabled_checks=checks)
        return export(*(i.struct for i in exported.inputs))


def unused_inputs(exported: ExportedFunction) -> list[int]:
    """Return the indices of the inputs of which the function reads neither value nor size."""
    with recorder.enable_x64():
        closed = _jit_exported(exported, "exported").trace(*(i.struct for i in exported.inputs)).jaxpr
    static = [all(isinstance(size, int) for size in i.struct.shape) for i in exported.inputs]
    return [n for n, used in enumerate(jax_function.used_inputs(closed)) if not used and static[n]]


def stablehlo_text(exported: ExportedFunction, name: str, platforms: Sequence[str]) -> str:
    """Return StableHLO with locations: the module and the operator of each operation."""
    with recorder.enable_x64():
        traced = _jit_exported(exported, name).trace(*(i.struct for i in exported.inputs))
        return str(traced.lower(lowering_platforms=tuple(platforms)).as_text(debug_info=True))


def _jit_exported(exported: ExportedFunction, name: str) -> Any:
    def called(*arrays: jax.Array) -> list[Any]:
        with dtypes.exact_dtypes():
            return exported.function(*arrays)

    called.__name__ = called.__qualname__ = name
    return jax.jit(called)


def _decompositions() -> Any:
    """Return torch's decompositions of all operators without a lowering rule."""
    table: Any = torch.export.default_decompositions()
    for overload, decomposition in dispatcher.decompositions().items():
        table.setdefault(overload, decomposition)
    for overload in list(table):
        schema = dispatcher.schema_or_none(overload)
        if schema is not None and _name(schema) in RULES:
            del table[overload]
    return table


def _name(schema: Any) -> str:
    return str(schema.name + (f".{schema.overload_name}" if schema.overload_name else ""))


def _rule(name: str, custom: frozenset[str]) -> Rule:
    rule = RULES.get(name)
    if rule is None and name.partition("::")[0] in custom:
        return Rule(name, functools.partial(_custom_call, _target(name)), ctx=True)
    if rule is None:
        try:
            rule = Rule(name, decompose.decomposition_rule(name))
        except LookupError as error:
            advice = "; use custom_ops_allowed_in_graph to lower custom operators to custom calls"
            raise NotImplementedError(f"{name}: {error}{'' if name.startswith('aten::') else advice}") from None
    if rule.random:
        raise NotImplementedError(
            f"{name} draws random numbers, but an exported program has no generator: export model.eval(), or pass the "
            "random tensor as an argument"
        )
    return rule


def _target(name: str) -> str:
    return name.replace("::", ".").removesuffix(".default")


def _custom_call(target: str, context: LoweringRuleContext, *args: Any) -> Any:
    outs = [
        jax.ShapeDtypeStruct(shape, dtypes.numpy_dtype(dtype))
        for shape, dtype in context.out_specs
        if dtype is not None
    ]
    return tuple(jax.ffi.ffi_call(target, outs)(*(a for a in args if isinstance(a, jax.Array))))


class _SymbolicSizes:
    """Convert torch's symbolic sizes to jax.export's, with torch's bounds and in one symbolic scope."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        # Skip symbols of no argument: computed sizes, or sizes of the base that an example argument is a view of.
        given = _symbols_of(program)
        symbols = {str(s): r for s, r in program.range_constraints.items() if s.is_symbol and str(s) in given}
        self._symbols: dict[str, Any] = {}
        if symbols:
            constraints = [c for name, bounds in symbols.items() for c in _bounds(name, bounds)]
            found = jax.export.symbolic_shape(", ".join([*symbols, ""]), constraints=constraints)
            self._symbols = dict(zip(symbols, found, strict=True))

    def __call__(self, size: Any) -> Any:
        if isinstance(size, int):
            return size
        return self._expression(size.node.expr)

    def _expression(self, expression: Any) -> Any:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._symbols[str(expression)]
        args = [self._expression(a) for a in expression.args]
        known = _OPERATIONS.get(type(expression).__name__)
        if known is None:
            raise NotImplementedError(f"jax.export does not support the size expression {expression}")
        return known(*args)


def _symbols_of(program: torch.export.ExportedProgram) -> set[str]:
    """Return the symbols in the shapes of the program's inputs."""
    values = [n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"]
    sizes: list[Any] = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    return {str(symbol) for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def _product(*factors: Any) -> Any:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms[1:], terms[0]),
    "Mul": _product,
    "Pow": lambda base, exponent: base**exponent,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": lambda *args: _fold(jax.core.max_dim, args),
    "Min": lambda *args: _fold(jax.core.min_dim, args),
}


def _fold(function: Callable[[Any, Any], Any], args: Sequence[Any]) -> Any:
    result = args[0]
    for arg in args[1:]:
        result = function(result, arg)
    return result


def _bounds(name: str, bounds: Any) -> list[str]:
    # torch's infinities are not sympy Integers.
    least, most = (int(b) if b.is_Integer else None for b in (bounds.lower, bounds.upper))
    found = [] if least is None or least < 2 else [f"{name} >= {least}"]
    return found if most is None or most > np.iinfo(np.int32).max else [*found, f"{name} <= {most}"]
