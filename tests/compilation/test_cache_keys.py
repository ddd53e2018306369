"""Same key, other value: pairs that a cache must keep apart, for every cache that the code has."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from jax.experimental import io_callback
from torch import nn
from torch.utils import _pytree as pytree

import torch_xla
from tests.support import cache_table
from tests.support.helpers import counts
from torch_xla.core.xla_builder import Op, call_jax, create_builder, jax_func_to_xla_computation, mkparam, mkshape
from torch_xla.experimental.assume_pure import PureModule, assume_pure
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.interop import jax_function

_STRUCT = jax.ShapeDtypeStruct((3,), np.float32)

JaxFunction = Callable[[jax.Array], Any]


def _ones() -> torch.Tensor:
    return torch.ones(3).to("xla")


# --- functions of jax that differ in what StableHLO does not show


def _nested(add: Callable[[Any], np.ndarray]) -> JaxFunction:
    inner = jax.jit(lambda v: jax.pure_callback(add, _STRUCT, v))
    return lambda v: jax.lax.cond(v[0] > 0, lambda: inner(v), lambda: v)


_CALLBACKS: dict[str, Callable[[Callable[[Any], np.ndarray]], JaxFunction]] = {
    "pure_callback": lambda add: lambda v: jax.pure_callback(add, _STRUCT, v),
    "io_callback": lambda add: lambda v: io_callback(add, _STRUCT, v),
    "nested": _nested,
}


@pytest.mark.parametrize("kind", _CALLBACKS)
def test_functions_with_other_callbacks_are_other_functions(kind: str) -> None:
    def adding(number: int) -> JaxFunction:
        return _CALLBACKS[kind](lambda v: np.asarray(v) + np.float32(number))

    x = _ones()
    results = [call_jax(adding(number), (x,), name="same") for number in (1, 2, 3)]
    assert [float(result[0]) for result in results] == [2.0, 3.0, 4.0]


def test_ordered_callbacks_are_refused_at_the_call() -> None:
    function = lambda v: io_callback(np.asarray, _STRUCT, v, ordered=True)
    with pytest.raises(NotImplementedError, match=r"call_jax: same has ordered Python callbacks.*ordered=False"):
        call_jax(function, (_ones(),), name="same")


def test_debug_callbacks_and_formats_are_in_the_key(capfd: pytest.CaptureFixture[str]) -> None:
    def noting(number: int) -> JaxFunction:
        return lambda v: (jax.debug.callback(lambda _: seen.append(number), v), v + 1)[1]

    def printing(text: str) -> JaxFunction:
        return lambda v: (jax.debug.print(text, v[0]), v + 1)[1]

    x, seen = _ones(), list[int]()
    functions = [noting(1), noting(2), printing("first {}"), printing("second {}")]
    results = [call_jax(function, (x,), name="same") for function in functions]
    torch_xla.sync()
    assert [float(result[0]) for result in results] == [2.0] * 4
    jax.effects_barrier()
    assert sorted(seen) == [1, 2]
    assert sorted(capfd.readouterr().out.split()) == ["1.0", "1.0", "first", "second"]


def test_a_function_made_anew_with_the_same_callback_is_compiled_once() -> None:
    def add(v: Any) -> np.ndarray:
        return np.asarray(v) + np.float32(1)

    x = _ones()
    torch_xla.sync()
    with counts() as moved:
        for _ in range(3):
            x = call_jax(lambda v: jax.pure_callback(add, _STRUCT, v), (x,))
            torch_xla.sync()
    assert moved["CreateCompileHandles"] == 1
    assert float(x[0]) == 4.0


def test_gradients_call_the_callbacks_of_their_own_function() -> None:
    def scaled(number: float) -> JaxFunction:
        scale = lambda v: np.asarray(v) * np.float32(number)
        function = jax.custom_vjp(lambda v: jax.pure_callback(scale, _STRUCT, v))
        function.defvjp(lambda v: (function(v), None), lambda _, g: (jax.pure_callback(scale, _STRUCT, g),))
        return function

    gradients = []
    for number in (2.0, 3.0):
        x = _ones().requires_grad_()
        jax_function(scaled(number))(x).sum().backward()
        assert x.grad is not None
        gradients.append(float(x.grad[0]))
    assert gradients == [2.0, 3.0]


# --- arrays of numpy that change after the call


_CLOSURES: dict[str, Callable[[np.ndarray], JaxFunction]] = {
    "array": lambda table: lambda v: v * table,
    "jax array that may share its memory": lambda table: _times(jnp.asarray(table)),
    "in a jitted function": lambda table: _jitted_times(table),
    "in a loop": lambda table: lambda v: jax.lax.scan(lambda c, _: (c * table, None), v, None, length=1)[0],
    "in a branch": lambda table: lambda v: jax.lax.cond(v[0] > 0, lambda: v * table, lambda: v),
    "in a custom gradient": lambda table: _with_own_gradient(table),
}


def _times(table: Any) -> JaxFunction:
    return lambda v: v * table


def _jitted_times(table: np.ndarray) -> JaxFunction:
    inner = jax.jit(_times(table))
    return lambda v: inner(v) + 0


def _with_own_gradient(table: np.ndarray) -> JaxFunction:
    function = jax.custom_vjp(_times(table))
    function.defvjp(lambda v: (v * table, None), lambda _, g: (g * table,))
    return function


@pytest.mark.parametrize("shape", [(3,), ()], ids=["vector", "scalar"])
@pytest.mark.parametrize("kind", _CLOSURES)
def test_arrays_of_closures_are_copied_at_the_call(kind: str, shape: tuple[int, ...]) -> None:
    table, other = np.full(shape, 2, np.float32), np.full(shape, 2, np.float32)
    x, graded = _ones(), _ones().requires_grad_()
    function = _CLOSURES[kind](table)
    first = call_jax(function, (x,), name="same")
    second = jax_function(function)(graded)
    table += 5
    assert float(first[0]) == 2.0
    # A function that is equal to the first one and closes over a different array.
    assert float(call_jax(_CLOSURES[kind](other), (x,), name="same")[0]) == 2.0
    second.sum().backward()
    assert graded.grad is not None
    assert float(graded.grad[0]) == 2.0
    assert float(call_jax(function, (x,), name="same")[0]) == 2.0  # as in jax.jit: captured when it was traced
    assert float(call_jax(_CLOSURES[kind](table), (x,), name="same")[0]) == 7.0


def test_arrays_of_computations_are_copied() -> None:
    table, value = np.full(3, 2, np.float32), torch.full((3,), 2.0)
    x = _ones()
    made = jax_func_to_xla_computation(lambda v, t: v * t, (x, table))
    builder = create_builder("times")
    times = mkparam(builder, 0, mkshape("f32", [3])) * Op.constant(builder, value)
    table += 5
    value += 5
    assert float(made(x)[0]) == 2.0
    assert float(times.build()(x)[0]) == 2.0


# --- constants among the arguments


_PAIRS: list[tuple[str, Any, Any]] = [
    ("int and float", 1, 1.0),
    ("int and bool", 1, True),
    ("zeros", 0.0, -0.0),
    ("numpy scalars", np.float32(1), np.float64(1)),
    ("dtypes of one width", np.zeros(3, np.int32), np.zeros(3, np.float32)),
    ("dtypes of one name", np.ones(3, ml_dtypes.float8_e4m3fn), np.ones(3, ml_dtypes.float8_e4m3fn).view(
        ml_dtypes.float8_e4m3b11fnuz)),
    ("fields", np.zeros(3, [("a", "f4")]), np.zeros(3, [("b", "f4")])),
    ("shapes", np.zeros((1, 3)), np.zeros((3, 1))),
    ("long arrays", np.arange(9999), np.where(np.arange(9999) == 5000, 0, np.arange(9999))),
    ("kinds of arrays", np.zeros(3), np.zeros((3,)).tolist()),
    ("dtypes of torch", torch.int8, torch.int16),
]  # fmt: skip


@pytest.mark.parametrize("api", ["call_jax", "assume_pure"])
@pytest.mark.parametrize(("first", "second"), [pytest.param(*pair, id=what) for what, *pair in _PAIRS])
def test_constants_that_differ_are_traced_apart(api: str, first: Any, second: Any) -> None:
    def noting(v: Any, constant: Any) -> Any:
        traced.append(constant)
        return v + 1

    pure = assume_pure(noting)
    x, traced = _ones(), list[Any]()
    for constant in (first, second, first, second):
        call_jax(noting, (x, constant)) if api == "call_jax" else pure(x, constant)
    assert [constant is first for constant in traced] == [True, False]


@pytest.mark.parametrize("array", [np.array([object()]), np.ma.array([1, 2], mask=[0, 1]), bytearray(b"1")])
def test_constants_without_a_key_are_refused(array: Any) -> None:
    with pytest.raises(TypeError, match=r"call_jax: args\[1\], an .* cannot be a constant of the program"):
        call_jax(lambda v, constant: v, (_ones(), array))


class _Config:
    """A configuration that Python compares by identity."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


@dataclass(unsafe_hash=True)
class _Values:
    """A configuration that is compared by value, and may change."""

    scale: float


def _scaled(x: Any, config: Any) -> Any:
    return x * config.scale


_APIS: dict[str, tuple[str, Callable[..., Any]]] = {
    "call_jax": (r"args\[1\]", lambda x, config: call_jax(_scaled, (x, config))),
    "call_jax, nested": (r"kwargs\['config'\]\[0\]", lambda x, config: call_jax(
        lambda x, config: _scaled(x, *config), (x,), {"config": [config]})),
    "jax_function": (r"args\[1\]", jax_function(_scaled)),
    "assume_pure": (r"args\[1\]", assume_pure(_scaled)),
    "PureModule": (r"args\[1\]", lambda x, config: PureModule(_Scaled())(x, config)),
}  # fmt: skip


class _Scaled(nn.Module):
    def forward(self, x: torch.Tensor, config: Any) -> Any:
        return _scaled(x, config)


@pytest.mark.parametrize("api", _APIS)
def test_objects_without_a_value_are_refused_and_others_are_seen_to_change(api: str) -> None:
    where, call = _APIS[api]
    x, config = _ones(), _Values(2.0)
    with pytest.raises(TypeError, match=rf"{where}, an object of .*_Config.* compared by identity.*frozen=True"):
        call(x, _Config(2.0))
    results = [call(x, config)]
    config.scale = 3.0
    results.append(call(x, config))
    assert [float(r[0]) for r in results] == [2.0, 3.0]


_FIXED = [len, nn.ReLU, math, torch.float32, torch.strided, object(), functools.partial(max, 1), jax.devices]


@pytest.mark.parametrize("value", _FIXED, ids=lambda value: type(value).__name__)
def test_what_stands_for_itself_may_be_a_constant(value: Any) -> None:
    pure = assume_pure(lambda x, given: x + (given is value))
    assert float(pure(_ones(), value)[0]) == 2.0


def test_modes_of_modules_among_the_constants_are_in_the_key() -> None:
    module, pure = nn.Sequential(nn.ReLU()), assume_pure(lambda x, module: x + module[0].training)
    results = [pure(_ones(), module), pure(_ones(), module.eval())]
    assert [float(r[0]) for r in results] == [2.0, 1.0]


def test_jaxs_configuration_is_in_the_key() -> None:
    x, more = torch.ones(3, dtype=torch.int32).to("xla"), torch.ones(2, 3, dtype=torch.int32).to("xla")
    added = lambda v, w: v + w.astype(jnp.float32)
    call_jax(added, (x, x))
    with jax.numpy_dtype_promotion("strict"), pytest.raises(ValueError, match="promotion"):
        call_jax(added, (x, x))
    call_jax(added, (x, more))
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank_promotion"):
        call_jax(added, (x, more))
    sizes = [call_jax(_key_shape, (x,)).numel()]
    with jax.default_prng_impl("rbg"):
        sizes.append(call_jax(_key_shape, (x,)).numel())
    assert sizes == [2, 4]


def _key_shape(v: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.key(0))


@torch.library.custom_op("cache_keys::add_key_size", mutates_args=())
def _add_key_size(x: torch.Tensor) -> torch.Tensor:
    return call_jax(lambda v: v + jax.random.key_data(jax.random.key(0)).size, (x,))


_add_key_size.register_fake(torch.empty_like)


def _step(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return carry, _add_key_size(x)


_RECORDED_ONCE: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
    "assume_pure": lambda: assume_pure(_add_key_size),
    "scan": lambda: lambda x: scan(_step, x[0], x, is_fn_pure=True)[1],
    "torch.compile": lambda: torch.compile(lambda x: _add_key_size(x) * 1, backend="openxla"),
}


@pytest.mark.parametrize("api", _RECORDED_ONCE)
def test_jaxs_configuration_is_in_the_key_of_torch_functions(api: str) -> None:
    function, x = _RECORDED_ONCE[api](), torch.zeros(3).to("xla")
    first = function(x)
    with jax.default_prng_impl("rbg"):
        second = function(x)
    assert [float(first[0]), float(second[0]), float(function(x)[0])] == [2.0, 4.0, 2.0]


def _change_setting(layer: nn.Sequential) -> None:
    layer[0].eps = 100.0  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "message"),
    [(_change_setting, "eps=100.0"), (lambda layer: layer[1].eval(), "training is False in its Dropout")],
    ids=["setting", "mode within"],
)
def test_layers_that_have_become_different_are_refused(change: Callable[[nn.Module], object], message: str) -> None:
    layers = [nn.Sequential(nn.LayerNorm(3), nn.Dropout(0.0)).to("xla") for _ in range(2)]
    scan_layers(layers, _ones())
    change(layers[1])
    with pytest.raises(ValueError, match=rf"layer 1 differs from layer 0: .*{message}"):
        scan_layers(layers, _ones())


# --- structures of scan, with nodes of the user's


def _node_type() -> Any:
    class Node:
        def __init__(self, tensor: torch.Tensor, context: Any) -> None:
            self.tensor, self.context = tensor, context

    pytree.register_pytree_node(Node, lambda n: ([n.tensor], n.context), lambda parts, context: Node(*parts, context))
    return Node


class _Context(_Values):
    def __repr__(self) -> str:
        return "_Context()"


_ONE, _OTHER = _node_type(), _node_type()
_NODES: dict[str, tuple[tuple[Any, Any], tuple[Any, Any]]] = {
    "types of one name": ((_ONE, None), (_OTHER, None)),
    "contexts of one repr": ((_ONE, _Context(1.0)), (_ONE, _Context(2.0))),
    "contexts in a list": ((_ONE, [_Context(1.0)]), (_ONE, [_Context(2.0)])),
}


@pytest.mark.parametrize("kind", _NODES)
def test_structures_that_differ_are_recorded_apart(kind: str) -> None:
    def step(carry: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        recorded.append((type(carry), carry.context))
        return carry, x + len(recorded)

    recorded = list[Any]()
    results = [
        scan(step, node(torch.zeros(3).to("xla"), context), _ones(), is_fn_pure=True)[1]
        for node, context in (*_NODES[kind], *_NODES[kind])
    ]
    assert recorded == list(_NODES[kind])
    assert [float(ys[0]) for ys in results] == [2.0, 3.0, 2.0, 3.0]


def test_a_carry_of_another_type_with_the_same_name_is_refused() -> None:
    with pytest.raises(ValueError, match="structure of the returned carry differs"):
        scan(lambda carry, x: (_OTHER(carry.tensor, None), x), _ONE(_ones(), None), _ones())


def test_contexts_compared_by_identity_are_refused() -> None:
    with pytest.raises(TypeError, match=r"scan: step: the context of a pytree node, .*_Config"):
        scan(_step, _ONE(_ones(), _Config(2.0)), _ones(), is_fn_pure=True)


# --- all caches that there are


@pytest.mark.parametrize(
    ("find", "table"),
    [(cache_table.find_caches, cache_table.TABLE), (cache_table.find_native_caches, cache_table.NATIVE)],
    ids=["Python", "C++"],
)
def test_every_cache_has_pairs_or_a_reason(find: Callable[[], set[str]], table: str) -> None:
    reasons = cache_table.reasons(table)
    assert sorted(find() ^ set(reasons)) == []  # a new one needs a line in tests/support/cache_table.py
    named = {name for reason in reasons.values() if reason.startswith("test:") for name in reason.split()[1:]}
    assert named - {"test_cache_folders", "test_graph_dump"} <= set(globals())


_NATIVE_CODE = """
static std::vector<int> table(int size) {
  static const OpPointer op("aten::t");
  static thread_local std::vector<Frame> frames(16);
  static auto* const pool = [] { return new Pool; }();
  static const Allowed found = find_allowed();
  static const std::unordered_set<std::string> names{"aten::t"};
  // static int comment = 0;
}
struct Known {
  compat::FlatMap<Key, int, KeyHash> by_key;
  mutable std::array<int, 2> last_arrays = {};
  Layout last_layout;
  static Pool& of_process();
};
thread_local int8_t current = 0;
std::map<int, std::vector<int>> global;
constexpr int kSize = 4;
"""


def test_caches_of_all_kinds_are_found_in_native_code() -> None:
    found = list(cache_table.find_native_names(_NATIVE_CODE))
    assert found == ["frames", "pool", "found", "by_key", "last_arrays", "last_layout", "current", "global"]
