"""Build computations from XLA operations, on jax: an Op is a symbolic value with a shape.

create_builder -> mkparam -> Op ... Op -> build -> Computation -> on xla tensors: xla_op_registry, or as a function
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import jax_function
from torch_xla._engine.device import devices

_TORCH = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "u8": torch.uint8,
    "s8": torch.int8, "u16": torch.uint16, "s16": torch.int16, "u32": torch.uint32, "s32": torch.int32,
    "u64": torch.uint64, "s64": torch.int64, "c64": torch.complex64, "c128": torch.complex128, "pred": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TORCH.items()}


class Type:
    """Names of XLA's element types."""

    F32, F64, BF16, F16 = "f32", "f64", "bf16", "f16"
    U8, S8, U16, S16, U32, S32, U64, S64 = "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"
    C64, C128, PRED = "c64", "c128", "pred"

    @classmethod
    def to_torch_type(cls, xla_type: str) -> torch.dtype:
        """Return the torch dtype.

        Args:
          xla_type: name of the type in XLA, such as ``f32``.

        Raises:
          KeyError: an unknown type.
        """
        return _TORCH[xla_type]

    @classmethod
    def from_torch_type(cls, torch_type: torch.dtype) -> str:
        """Return XLA's name.

        Args:
          torch_type: a torch dtype.

        Raises:
          KeyError: a dtype that XLA does not have.
        """
        return _NAMES[torch_type]


class Shape:
    """The shape of a value: an element type and sizes, or a tuple of Shapes.

    Args:
      struct: a jax.ShapeDtypeStruct, or a tuple of structures.
    """

    def __init__(self, struct: Any) -> None:
        self._struct = struct

    @classmethod
    def create(cls, dtype: str, sizes: Sequence[int], dynamic_dimensions: Any = None) -> Shape:
        """Return the shape of an array.

        Args:
          dtype: name of the type in XLA, such as ``f32``.
          sizes: the sizes of the dimensions.
          dynamic_dimensions: None, or False for each dimension.

        Raises:
          ValueError: dynamic dimensions, which are not supported.
        """
        if dynamic_dimensions is not None and any(dynamic_dimensions):
            raise ValueError("Shape.create: dynamic dimensions are not supported; give every size and pad the data")
        return cls(jax.ShapeDtypeStruct(tuple(sizes), dtypes.numpy_dtype(_TORCH[dtype])))

    @property
    def struct(self) -> Any:
        """The shape as jax.ShapeDtypeStruct, or a tuple of them."""
        return self._struct

    def is_tuple(self) -> bool:
        return isinstance(self._struct, tuple)

    def tuple_size(self) -> int:
        return len(self._struct)

    def tuple_shape(self, index: int) -> Shape:
        return Shape(self._struct[index])

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._struct.shape)

    @property
    def numel(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))

    @property
    def dtype(self) -> str:
        return _NAMES[dtypes.torch_dtype(self._struct.dtype)]

    def __repr__(self) -> str:
        if self.is_tuple():
            return f"({', '.join(repr(Shape(s)) for s in self._struct)})"
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class Computation:
    """A named function of arrays with fixed shapes.

    Args:
      name: the name of the computation.
      function: a jax function of the parameters.
      structs: shapes and dtypes of the parameters.
    """

    def __init__(self, name: str, function: Callable[..., Any], structs: Sequence[Any]) -> None:
        self.name, self.function, self.structs = name, function, tuple(structs)

    def hlo(self) -> str:
        """Return the computation as HLO text."""
        devices.configure_cpu_devices()  # lowering starts jax's backend
        with recorder.enable_x64(), dtypes.exact_dtypes():
            return str(jax.jit(self.function).lower(*self.structs).as_text("hlo"))

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Record the computation on xla tensors as one operation and return its results."""
        return jax_function.call_jax(self.function, tensors, None, self.name)


class Builder:
    """Collects the parameters of one computation; every Op belongs to a Builder.

    Args:
      name: the name of the computation.
    """

    def __init__(self, name: str) -> None:
        devices.configure_cpu_devices()  # jax starts its backend for the first operation
        self.name = name
        self.parameters: dict[int, Op] = {}


class Op:
    """A symbolic value of a computation, with its shape.

    Methods are XLA's operations under upstream's names; ``+ - * / % ** @`` and comparisons are the same. Both operands
    must have the same element type; sizes broadcast as in numpy. Shape errors are raised when the Op is created
    (TypeError, ValueError).

    Args:
      builder: the builder that the value belongs to.
      function: a jax function of the operands.
      operands: the Ops that the value is computed from.
    """

    def __init__(self, builder: Builder, function: Callable[..., Any], *operands: Op) -> None:
        self.builder, self._function, self._operands = builder, function, operands
        with recorder.enable_x64(), dtypes.exact_dtypes():
            self._struct: Any = jax.eval_shape(function, *(o._struct for o in operands))

    def shape(self) -> Shape:
        """Return the shape of the value."""
        return Shape(self._struct)

    def build(self, name: str | None = None) -> Computation:
        """Return the computation of this value, whose arguments are the builder's parameters in order of number.

        Args:
          name: the name of the computation.
        """
        parameters = [op for _, op in sorted(self.builder.parameters.items())]
        made = lambda *arrays: self.evaluate(dict(zip(map(id, parameters), arrays, strict=True)))
        return Computation(name or self.builder.name, made, [p._struct for p in parameters])

    def evaluate(self, values: dict[int, Any]) -> Any:
        """Compute the value with jax, given the values of the parameters by id.

        Args:
          values: the values of the parameters, by id.
        """
        stack: list[Op] = [self]
        while stack:
            op = stack[-1]
            missing = [o for o in op._operands if id(o) not in values]
            if missing and id(op) not in values:
                stack += missing
                continue
            if id(op) not in values:
                values[id(op)] = op._function(*(values[id(o)] for o in op._operands))
            stack.pop()
        return values[id(self)]

    def _with(self, function: Callable[..., Any], *others: Op) -> Op:
        return Op(self.builder, function, self, *others)

    # --- shapes

    def reshape(self, sizes: Sequence[int], dimensions: Sequence[int] | None = None) -> Op:
        return self._with(lambda x: lax.reshape(x, tuple(sizes), dimensions))

    def permute(self, permutation: Sequence[int]) -> Op:
        return self._with(lambda x: jnp.transpose(x, tuple(permutation)))

    transpose = permute

    def broadcast(self, sizes: Sequence[int]) -> Op:
        """Add leading dimensions of these sizes.

        Args:
          sizes: sizes of the new dimensions.
        """
        return self._with(lambda x: lax.broadcast(x, tuple(sizes)))

    def broadcast_in_dim(self, sizes: Sequence[int], dimensions: Sequence[int]) -> Op:
        return self._with(lambda x: lax.broadcast_in_dim(x, tuple(sizes), tuple(dimensions)))

    def concat_in_dim(self, ops: Sequence[Op], dimension: int) -> Op:
        """Concatenate this value and the others.

        Args:
          ops: the other values.
          dimension: the dimension along which to concatenate.
        """
        return self._with(lambda *xs: lax.concatenate(xs, dimension), *ops)

    def slice(self, start: Sequence[int], limit: Sequence[int], strides: Sequence[int] | None = None) -> Op:
        return self._with(lambda x: lax.slice(x, tuple(start), tuple(limit), strides))

    def slice_in_dim(self, start: int, limit: int, stride: int, dimension: int) -> Op:
        return self._with(lambda x: lax.slice_in_dim(x, start, limit, stride, dimension))

    def dynamic_slice(self, starts: Sequence[Op], sizes: Sequence[int]) -> Op:
        return self._with(lambda x, *at: lax.dynamic_slice(x, at, tuple(sizes)), *starts)

    def dynamic_update_slice(self, update: Op, starts: Sequence[Op]) -> Op:
        return self._with(lambda x, new, *at: lax.dynamic_update_slice(x, new, at), update, *starts)

    def pad(self, value: Op, config: Sequence[tuple[int, int, int]]) -> Op:
        """Pad each dimension by its (low, high, interior) entry of ``config``.

        Args:
          value: the scalar to pad with.
          config: a tuple (low, high, interior) for each dimension.
        """
        return self._with(lambda x, v: lax.pad(x, v, list(config)), value)

    def rev(self, dimensions: Sequence[int]) -> Op:
        return self._with(lambda x: lax.rev(x, tuple(dimensions)))

    # --- types

    def cast(self, to_type: str) -> Op:
        return self._with(lambda x: x.astype(dtypes.numpy_dtype(_TORCH[to_type])))

    def bitcast(self, to_type: str) -> Op:
        return self._with(lambda x: lax.bitcast_convert_type(x, dtypes.numpy_dtype(_TORCH[to_type])))

    # --- selection, matrix multiplication, control flow

    def select(self, true_value: Op, false_value: Op) -> Op:
        return self._with(lambda p, a, b: jnp.where(p, a, b), true_value, false_value)

    def clamp(self, min_value: Op, max_value: Op) -> Op:
        return self._with(lambda x, low, high: lax.clamp(low, x, high), min_value, max_value)

    def dot(self, rhs: Op) -> Op:
        return self._with(lambda a, b: lax.dot(a, b, precision=lax.Precision.HIGHEST), rhs)

    def dot_general(self, rhs: Op, dimension_numbers: Any) -> Op:
        """Contract as jax.lax.dot_general does; ``dimension_numbers`` is ``((contracting), (batch))``.

        Args:
          rhs: the right operand.
          dimension_numbers: contracting and batch dimensions of both operands.
        """
        precision = lax.Precision.HIGHEST
        return self._with(lambda a, b: lax.dot_general(a, b, dimension_numbers, precision=precision), rhs)

    def reduce(self, init_value: Op, computation: Computation, dimensions: Sequence[int]) -> Op:
        return self._with(lambda x, v: lax.reduce(x, v, computation.function, tuple(dimensions)), init_value)

    def reduce_all(self, init_value: Op, computation: Computation) -> Op:
        return self.reduce(init_value, computation, range(self.shape().rank))

    def call(self, computation: Computation, ops: Sequence[Op] = ()) -> Op:
        """Call the computation on this value and the others.

        Args:
          computation: the computation to call.
          ops: its further arguments.
        """
        return self._with(lambda *xs: computation.function(*xs), *ops)

    def while_loop(self, condition: Computation, body: Computation) -> Op:
        """Apply ``body`` to this value or tuple while the condition holds.

        Args:
          condition: a Computation of the value that returns a boolean.
          body: a Computation from the value to a value of the same shape.
        """
        return self._with(lambda x: lax.while_loop(condition.function, body.function, x))

    def conditional(self, true_op: Op, true: Computation, false_op: Op, false: Computation) -> Op:
        def chosen(p: Any, a: Any, b: Any) -> Any:
            return lax.cond(p.reshape(()), lambda: true.function(a), lambda: false.function(b))

        return self._with(chosen, true_op, false_op)

    def get_tuple_element(self, index: int) -> Op:
        return self._with(lambda x: x[index])

    # --- values

    @classmethod
    def tuple(cls, ops: Sequence[Op], builder: Builder | None = None) -> Op:
        """Combine several values into one tuple value.

        Args:
          ops: the values.
          builder: the builder, if there are no values.
        """
        return cls(builder or ops[0].builder, lambda *xs: tuple(xs), *ops)

    @classmethod
    def constant(cls, builder: Builder, value: Any) -> Op:
        """Copy a CPU tensor or a numpy array into a constant.

        Args:
          builder: the builder that the constant belongs to.
          value: a CPU tensor or a numpy array.
        """
        array = np.array(value.numpy() if isinstance(value, torch.Tensor) else value)
        return cls(builder, lambda: jnp.asarray(array))

    @classmethod
    def scalar(cls, builder: Builder, value: Any, dtype: str = Type.F32) -> Op:
        return cls(builder, lambda: jnp.asarray(value, dtypes.numpy_dtype(_TORCH[dtype])))

    @classmethod
    def iota(cls, builder: Builder, shape: Shape, iota_dimension: int) -> Op:
        return cls(builder, lambda: lax.broadcasted_iota(shape.struct.dtype, shape.sizes, iota_dimension))


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Op]:
    def method(self: Op, other: Op, broadcast_dimensions: Sequence[int] = ()) -> Op:
        if not isinstance(other, Op):
            raise TypeError(
                f"{function.__name__}: expected an Op, got {other!r} ({type(other).__name__}); convert a number with "
                "Op.scalar(builder, value, dtype=Type.F32)"
            )
        if self.shape().dtype != other.shape().dtype:
            raise TypeError(
                f"{function.__name__}: operands have shapes {self.shape()} and {other.shape()}; cast one of them"
            )

        def applied(a: Any, b: Any) -> Any:
            if broadcast_dimensions:
                low, high = (a, b) if a.ndim < b.ndim else (b, a)
                spread = lax.broadcast_in_dim(low, high.shape, tuple(broadcast_dimensions))
                a, b = (spread, b) if a.ndim < b.ndim else (a, spread)
            return function(a, b)

        return self._with(applied, other)

    return method


def _division(a: Any, b: Any) -> Any:
    return lax.div(*jnp.broadcast_arrays(a, b))


def _remainder(a: Any, b: Any) -> Any:
    return lax.rem(*jnp.broadcast_arrays(a, b))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "div": _division, "rem": _remainder,
    "max": jnp.maximum, "min": jnp.minimum, "pow": jnp.power, "atan2": jnp.arctan2, "logical_and": jnp.bitwise_and,
    "logical_or": jnp.bitwise_or, "logical_xor": jnp.bitwise_xor, "eq": jnp.equal, "ne": jnp.not_equal,
    "ge": jnp.greater_equal, "gt": jnp.greater, "le": jnp.less_equal, "lt": jnp.less,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": jnp.abs, "acos": jnp.arccos, "acosh": jnp.arccosh, "asin": jnp.arcsin, "asinh": jnp.arcsinh,
    "atan": jnp.arctan, "atanh": jnp.arctanh, "cbrt": jnp.cbrt, "ceil": jnp.ceil, "conj": jnp.conj, "cos": jnp.cos,
    "cosh": jnp.cosh, "clz": lax.clz, "exp": jnp.exp, "expm1": jnp.expm1, "floor": jnp.floor, "imag": jnp.imag,
    "is_finite": jnp.isfinite, "log": jnp.log, "log1p": jnp.log1p, "neg": jnp.negative, "logical_not": jnp.bitwise_not,
    "popcnt": lax.population_count, "real": jnp.real, "round": lambda x: lax.round(x), "rsqrt": lax.rsqrt,
    "sigmoid": lax.logistic, "sign": jnp.sign, "sin": jnp.sin, "sinh": jnp.sinh, "sqrt": jnp.sqrt, "tan": jnp.tan,
    "tanh": jnp.tanh,
}  # fmt: skip
_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "mod": "rem", "pow": "pow", "and": "logical_and",
    "or": "logical_or", "xor": "logical_xor", "eq": "eq", "ne": "ne", "ge": "ge", "gt": "gt", "le": "le", "lt": "lt",
    "matmul": "dot", "neg": "neg", "invert": "logical_not",
}  # fmt: skip
for _name, _function in _BINARY.items():
    setattr(Op, _name, _binary(_function))
for _name, _one in _UNARY.items():
    setattr(Op, _name, lambda self, _one=_one: self._with(_one))
for _operator, _name in _OPERATORS.items():
    setattr(Op, f"__{_operator}__", getattr(Op, _name))


def parameter(builder: Builder, number: int, shape: Shape) -> Op:
    """Create parameter ``number`` of the computation. Raises ValueError if the number is in use."""
    if number in builder.parameters:
        raise ValueError(f"mkparam: parameter {number} of {builder.name} already exists")
    zeros = lambda: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape.struct)
    made = builder.parameters[number] = Op(builder, zeros)
    return made


def by_name(name: str, ops: Sequence[Op], **options: Any) -> Op:
    """Apply the operation with this XLA name (Add, ConcatInDim). Raises AttributeError for an unknown name."""
    method = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    if method.startswith("_") or not hasattr(Op, method):
        raise AttributeError(f"mkop: unknown operation {name}")
    found: Op = getattr(ops[0], method)(*ops[1:], **options)
    return found
