"""Interprets an fx graph of functional ATen operators with jax: applies the lowering rule of each operator in order.

The graphs come from torch's decompositions (decompose.py) and from torch.export. Their sizes may be symbolic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.compat import dispatcher
from torch_xla._engine.lowering.apply_rule import apply_rule
from torch_xla._engine.lowering.composites import CompositeRegion
from torch_xla._engine.lowering.registry import RULES, LoweringRuleContext, Rule, TensorSpec

#: Assertions on symbolic sizes and metadata. A compiled program needs none: it has checked the shapes of its arguments.
_ASSERTIONS = frozenset({"aten::_assert_scalar", "aten::_assert_tensor_metadata", "aten::sym_constrain_range",
                         "aten::_assert_async", "aten::sym_constrain_range_for_size"})  # fmt: skip


class FxInterpreter:
    """One evaluation of an fx graph.

    Args:
      module: a graph of functional operators for which ``find`` returns rules.
      find: returns the rule of an operator by qualified name; raises LookupError if there is none.
      size: converts a torch size, a number or a symbol, to jax; the default accepts numbers only.
      attribute: returns the array of a tensor attribute of the module, by name.
      regions: regions of the graph that each become one composite operation (composites.py).
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        find: Callable[[str], Rule] = RULES.__getitem__,
        size: Callable[[Any], Any] = int,
        attribute: Callable[[str], jax.Array] | None = None,
        regions: Sequence[CompositeRegion] = (),
    ) -> None:
        self._module, self._find, self._size = module, find, size
        self._attribute = attribute or self._constant
        self._values: dict[torch.fx.Node, Any] = {}
        self._composed = {mark: region for region in regions for mark in region.outputs}
        self._skipped = {node for region in regions for node in region.inside}

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Return the output, a pytree of arrays and numbers; ``inputs`` follow the order of the placeholders."""
        given: Iterator[Any] = iter(inputs)
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(given)
            elif node.op == "get_attr":
                self._values[node] = self._attribute(node.target)
            elif node.op == "output":
                return self._value(node.args[0])
            elif node in self._composed:
                if node not in self._values:
                    self._compose(self._composed[node])
            elif node not in self._skipped:
                self._values[node] = self._call(node)
        raise AssertionError("a traced graph has no output")

    def _compose(self, region: CompositeRegion) -> None:
        """Compute the marked outputs as one operation of the region's inputs and captured values."""
        late = [node.name for node in (*region.inputs, *region.outside) if node not in self._values]
        if late:
            raise NotImplementedError(f"the composite {region.name!r} reads {late}, which depend on its own outputs")
        given = [*region.inputs, *(n for n in region.outside if isinstance(self._values[n], jax.Array))]
        plain = {n: self._values[n] for n in region.outside if n not in given}

        def body(*arrays: jax.Array, **_: Any) -> list[jax.Array]:
            inner = copy.copy(self)
            inner._values = {**dict(zip(given, arrays, strict=True)), **plain}
            for node in region.inside:
                inner._values[node] = inner._call(node)
            return [inner._value(mark.args[0]) for mark in region.outputs]

        outs = lax.composite(body, region.name)(*(self._values[n] for n in given), **region.attributes)
        self._values.update(zip(region.outputs, outs, strict=True))

    def _constant(self, name: str) -> jax.Array:
        return jnp.asarray(getattr(self._module, name).numpy())

    def _value(self, arg: Any) -> Any:
        return torch.fx.node.map_arg(arg, lambda n: self._values[n])

    def _call(self, node: torch.fx.Node) -> Any:
        args, kwargs = self._value(node.args), self._value(node.kwargs)
        schema = dispatcher.schema_or_none(node.target)
        if schema is None:  # operator.getitem, arithmetic on sizes
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if schema.name == "aten::sym_size":
            return args[0].shape[args[1]]
        if schema.name in _ASSERTIONS:
            return None
        return self._apply(node, schema, args, kwargs)

    def _apply(self, node: torch.fx.Node, schema: Any, args: Any, kwargs: Any) -> Any:
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        rule = self._find(name)
        full = [
            args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in enumerate(schema.arguments)
        ]
        full = [list(a) if isinstance(a, (tuple, list)) else a for a in full]
        meta = node.meta["val"]
        outs = [self._promise(t) for t in (meta if isinstance(meta, (tuple, list)) else [meta])]
        with jax.named_scope(_scope(node, name)):
            results = apply_rule(rule, full, outs, LoweringRuleContext(name, outs))
        return results if isinstance(meta, (tuple, list)) else results[0]

    def _promise(self, meta: Any) -> TensorSpec:
        return ((), None) if meta is None else (tuple(map(self._size, meta.shape)), meta.dtype)


def shape_struct(tensor: torch.Tensor, size: Callable[[Any], Any] = int) -> jax.ShapeDtypeStruct:
    """Return the ShapeDtypeStruct of a tensor, with which jax traces functions."""
    return jax.ShapeDtypeStruct(tuple(map(size, tensor.shape)), dtypes.numpy_dtype(tensor.dtype))


def _scope(node: torch.fx.Node, name: str) -> str:
    """Return the name scope of an operator: the path of its module, if the graph has it, and the operator's name."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = stack[-1][0] if stack else ""
    return f"{path}/{name}" if path else name
