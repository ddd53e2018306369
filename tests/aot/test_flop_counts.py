"""Counts from HLO (products, bytes, padding, trip counts, kernels), compared with XLA's counts and known values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from torch_xla._engine.aot import (
    collective_costs,
    cost_model,
    flop_counts,
    hardware_specs,
    hlo_parser,
    module_costs,
    program_analysis,
)


def counted(function: Callable[..., Any], *structs: jax.ShapeDtypeStruct) -> tuple[cost_model.OpCost, float]:
    """Return the counts of a jax function, and the flops that XLA counts."""
    compiled = jax.jit(function).lower(*structs).compile()
    total = cost_model.OpCost()
    counter = cost_model.CostCounter(hlo_parser.parse_hlo(compiled.as_text()))
    for operation in counter.operations():
        total.add(operation.cost, operation.times)
    return total, (compiled.cost_analysis() or {})["flops"]


def struct(*shape: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def convolution(stride: int = 1, pad: int = 0, holes: int = 1, groups: int = 1) -> Callable[..., jax.Array]:
    return lambda x, w: lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad)] * 2, (holes, holes), feature_group_count=groups
    )


#: name: function, arguments, multiplications and additions of its products
PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...], float]] = {
    "product": (jnp.dot, (struct(30, 40), struct(40, 50)), 2 * 30 * 40 * 50),
    "batches": (jnp.matmul, (struct(7, 30, 40), struct(7, 40, 50)), 2 * 7 * 30 * 40 * 50),
    "convolution": (convolution(), (struct(8, 6, 12, 12), struct(10, 6, 5, 5)), 2 * 8 * 10 * 6 * 8 * 8 * 25),
    "stride": (convolution(2), (struct(8, 6, 13, 13), struct(10, 6, 5, 5)), 2 * 8 * 10 * 6 * 5 * 5 * 25),
    # of the 15 taps of a kernel of 3 on 5 elements padded by 1, those at the two ends read padding
    "padding": (convolution(pad=1), (struct(2, 3, 5, 5), struct(4, 3, 3, 3)), 2 * 2 * 4 * 3 * 13 * 13),
    "groups": (convolution(groups=3), (struct(8, 6, 12, 12), struct(9, 2, 5, 5)), 2 * 8 * 9 * 2 * 8 * 8 * 25),
    "dilated image": (
        convolution(holes=2), (struct(1, 2, 3, 3), struct(2, 2, 1, 1)), 2 * 1 * 2 * 2 * 3 * 3,
    ),
    "loop": (
        lambda x, w: lax.fori_loop(0, 5, lambda i, x: x @ w, x), (struct(30, 40), struct(40, 40)), 5 * 2 * 30 * 40 * 40,
    ),
    "scan": (
        lambda x, ws: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0], (struct(8, 16), struct(6, 16, 16)),
        6 * 2 * 8 * 16 * 16,
    ),
    "none": (lambda x: jnp.sin(x) + 1, (struct(30, 40),), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_hlo(name: str) -> None:
    """The number of multiplications is the mathematical one, with loops unrolled."""
    function, structs, expected = PRODUCTS[name]
    assert counted(function, *structs)[0].products == expected


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name not in ("loop", "scan")])
def test_flops_agree_with_xla(name: str) -> None:
    """XLA counts the same for programs without loops, except for elementwise operations."""
    function, structs, _ = PRODUCTS[name]
    total, xla = counted(function, *structs)
    assert total.flops == pytest.approx(xla, rel=0.02, abs=2 * 30 * 40)


#: Windowed reductions: shape, window, strides, pads, dilation of the array, dilation of the window.
WINDOWS = {
    "pooling": ((2, 9, 9), (1, 3, 3), (1, 2, 2), ((0, 0), (1, 1), (1, 1)), (1, 1, 1), (1, 1, 1)),
    "running sum": ((4, 40), (1, 40), (1, 1), ((0, 0), (39, 0)), (1, 1), (1, 1)),
    "dilated window": ((3, 17), (1, 3), (1, 2), ((0, 0), (2, 5)), (1, 1), (1, 4)),
    "dilated array": ((3, 7), (1, 4), (1, 1), ((0, 0), (3, 1)), (1, 3), (1, 2)),
    "trimmed": ((20,), (4,), (3,), ((-2, -1),), (1,), (1,)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windowed_reductions_count_elements(name: str) -> None:
    """A windowed reduction counts the elements that its windows read; the sum of ones is their number."""
    shape, window, strides, pads, of_array, of_window = WINDOWS[name]
    ones = np.ones(shape, np.float32)
    found = lax.reduce_window(ones, np.float32(0), lax.add, window, strides, pads, of_array, of_window)
    text = {
        "size": window, "stride": strides, "pad": [f"{low}_{high}" for low, high in pads], "lhs_dilate": of_array,
        "rhs_dilate": of_window,
    }  # fmt: skip
    attributes = "window={{{}}}".format(" ".join(f"{key}={'x'.join(map(str, value))}" for key, value in text.items()))
    array, out = (hlo_parser.HloShape("f32", tuple(dims), "") for dims in (shape, found.shape))
    instruction = hlo_parser.HloInstruction("w", "reduce-window", (out,), (), attributes)
    assert flop_counts.reduced_element_count(instruction, array) == float(found.sum())


#: HLO of libtpu: the sums of rows, broadcast over the rows.
BROADCAST_SUMS = """HloModule jit_softmax, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (p: f32[4,2048]) -> f32[4,2048] {
  %p = f32[4,2048]{1,0:T(8,128)} parameter(0)
  %zero = f32[]{:T(128)} constant(0)
  ROOT %r = f32[4,2048]{1,0:T(8,128)} reduce-window(%p, %zero), window={size=1x4095 pad=0_0x2047_2047}, to_apply=%sum
}
"""


def test_windows_of_whole_axes_reduce_once() -> None:
    """A window that contains its whole axis at every position is a reduction with a broadcast result."""
    (operation,) = cost_model.CostCounter(hlo_parser.parse_hlo(BROADCAST_SUMS)).operations()
    assert operation.cost.flops == 4 * 2048


#: layout: dtype, dimensions, bytes with padding
TILES = {
    "1,0:T(8,128)": ("f32", (3, 5), 8 * 128 * 4),
    "0,1:T(8,128)": ("f32", (3, 200), 200 * 128 * 4),
    "1,0:T(8,128)(2,1)": ("bf16", (100, 300), 104 * 384 * 2),
    "0:T(512)": ("f32", (500,), 512 * 4),
    ":T(128)": ("f32", (), 128 * 4),
    "3,2,1,0:T(8,128)S(1)": ("f32", (2, 3, 8, 128), 2 * 3 * 8 * 128 * 4),
    "1,0": ("f32", (3, 5), 60),
    "1,0:T(4,128)": ("pred", (3, 5), 4 * 128),
}


@pytest.mark.parametrize("layout", TILES)
def test_padding_of_tiles(layout: str) -> None:
    dtype, dims, padded = TILES[layout]
    shape = hlo_parser.HloShape(dtype, dims, layout)
    assert shape.padded_bytes == padded
    assert shape.in_hbm == ("S(" not in layout)


HLO = """HloModule jit_graph, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%body (state: (s32[], f32[8,128], f32[10,8,128])) -> (s32[], f32[8,128], f32[10,8,128]) {
  %state = (s32[], f32[8,128]{1,0}, /*index=2*/f32[10,8,128]{2,1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[8,128]{1,0} get-tuple-element(%state), index=1
  %all = f32[10,8,128]{2,1,0} get-tuple-element(%state), index=2
  %zero = s32[] constant(0)
  %one = f32[1,8,128]{2,1,0} dynamic-slice(%all, %i, %zero, %zero), dynamic_slice_sizes={1,8,128}
  %flat = f32[8,128]{1,0} bitcast(%one)
  %r = f32[8,128]{1,0} all-reduce(%flat), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%sum
  %y = f32[8,128]{1,0} add(%x, %r), metadata={op_name="jit(graph)/Net/aten::add/add" source_file="/a.py" source_line=7}
  ROOT %next = (s32[], f32[8,128]{1,0}, f32[10,8,128]{2,1,0}) tuple(%i, %y, %all)
}

%more (state.1: (s32[], f32[8,128], f32[10,8,128])) -> pred[] {
  %state.1 = (s32[], f32[8,128]{1,0}, f32[10,8,128]{2,1,0}) parameter(0)
  %j = s32[] get-tuple-element(%state.1), index=0
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%j, %ten), direction=LT
}

ENTRY %main (p: f32[8,128], q: f32[10,8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0} parameter(0)
  %q = f32[10,8,128]{2,1,0} parameter(1)
  %start = s32[] constant(0)
  %before = (s32[], f32[8,128]{1,0}, f32[10,8,128]{2,1,0}) tuple(%start, %p, %q)
  %loop = (s32[], f32[8,128]{1,0}, f32[10,8,128]{2,1,0}) while(%before), condition=%more, body=%body
  %got = f32[8,128]{1,0} get-tuple-element(%loop), index=1
  %gather = (f32[8,128]{1,0}, f32[32,128]{1,0}) all-gather-start(%got), replica_groups={{0,1,2,3},{4,5,6,7}}
  %done = f32[32,128]{1,0} all-gather-done(%gather)
  ROOT %out = f32[8,128]{1,0} slice(%done), slice={[0:8], [0:128]}
}
"""


def test_loops_collectives_and_slices() -> None:
    """A loop counts its trip count; a slice counts the elements it reads; replica groups parse in both notations."""
    counter = cost_model.CostCounter(hlo_parser.parse_hlo(HLO))
    operations = counter.operations()
    assert counter.unknown_loops == 0
    one = 8 * 128 * 4
    (add,) = (o for o in operations if o.instruction.name == "y")
    assert (add.times, add.cost.read, add.cost.written) == (10, 2 * one, one)
    assert (add.instruction.op_name, add.instruction.source) == ("jit(graph)/Net/aten::add/add", "/a.py:7")
    assert program_analysis.op_scope(add.instruction.op_name) == "Net/aten::add"
    (taken,) = (o for o in operations if o.instruction.name == "one")
    assert (taken.times, taken.cost.read, taken.cost.written) == (10, one, one)
    found = collective_costs.summarize_collectives(
        operations, collective_costs.collectives_per_op(operations, counter.module, 8), hardware_specs.TPUS["v5e"]
    )
    assert [(c.kind, c.group, c.count, c.bytes) for c in found] == [
        ("all-reduce", 4, 10, 10 * one),
        ("all-gather", 4, 1, 4 * one),
    ]
    reduced = 10 * 2 * 3 / 4 * one / hardware_specs.TPUS["v5e"].link_bandwidth
    assert found[0].seconds == pytest.approx(reduced)


#: (start of a loop, increment of its body) -> trip count up to 12
ROUNDS = {("0", "1"): 12, ("2", "1"): 10, ("0", "2"): 6, ("1", "3"): 4}


@pytest.mark.parametrize(("start", "step"), ROUNDS)
def test_rounds_of_loops(start: str, step: str) -> None:
    counter = cost_model.CostCounter(
        hlo_parser.parse_hlo(f"""HloModule m

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %s = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8]{{0}} get-tuple-element(%s), index=1
  %n = s32[] constant({step}), metadata={{op_name="add"}}
  %j = s32[] add(%i, %n)
  %k = s32[] copy(%j)
  %y = f32[8]{{0}} add(%x, %x)
  ROOT %next = (s32[], f32[8]{{0}}) tuple(%k, %y)
}}

%more (t: (s32[], f32[8])) -> pred[] {{
  %t = (s32[], f32[8]{{0}}) parameter(0)
  %l = s32[] get-tuple-element(%t), index=0
  %most = s32[] constant(12)
  ROOT %less = pred[] compare(%l, %most), direction=LT
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
  %start = s32[] constant({start})
  %at = s32[] copy(%start)
  %before = (s32[], f32[8]{{0}}) tuple(%at, %p)
  %loop = (s32[], f32[8]{{0}}) while(%before), condition=%more, body=%body
  ROOT %got = f32[8]{{0}} get-tuple-element(%loop), index=1
}}
""")
    )
    (added,) = (o for o in counter.operations() if o.instruction.name == "y")
    assert added.times == ROUNDS[start, step] and counter.unknown_loops == 0


#: HLO of libtpu: a loop with a 64-bit counter in two halves, replica groups by mesh axes, an asynchronous all-gather
#: that overlaps with fusions, and a reduce-scatter.
TPU_HLO = """HloModule jit_graph, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%begins (x: f32[8,128]) -> (f32[8,128], f32[32,128], u32[]) {
  %x = f32[8,128]{1,0} parameter(0)
  %g1 = f32[32,128]{1,0} all-gather(%x), channel_id=9, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}
  ROOT %s = (f32[8,128], f32[32,128], u32[]{:S(2)}) custom-call(%g1), custom_call_target="AsyncCollectiveStart"
}

%goes_on (y: f32[16,16], x1: f32[8,128], all1: f32[32,128], f1: u32[]) -> (f32[16,16], f32[32,128]) {
  %y = f32[16,16]{1,0} parameter(0)
  %x1 = f32[8,128]{1,0} parameter(1)
  %all1 = f32[32,128]{1,0} parameter(2)
  %f1 = u32[]{:S(2)} parameter(3)
  %y2 = f32[16,16]{1,0} add(%y, %y)
  %g2 = f32[32,128]{1,0} all-gather(%x1), channel_id=9, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}
  %s2 = f32[32,128]{1,0} custom-call(%x1, %all1, %g2, %f1), custom_call_target="AsyncCollectiveDone"
  ROOT %both = (f32[16,16]{1,0}, f32[32,128]{1,0}) tuple(%y2, %s2)
}

%all-reduce-scatter.1 (z: f32[32,128]) -> f32[8,128] {
  %z = f32[32,128]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %r = f32[32,128]{1,0} all-reduce(%z), channel_id=10, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum
  ROOT %part = f32[8,128]{1,0} dynamic-slice(%r, %zero, %zero), dynamic_slice_sizes={8,128}
}

%body (state: (u32[], u32[], f32[8,128], f32[16,16])) -> (u32[], u32[], f32[8,128], f32[16,16]) {
  %state = (u32[], u32[], f32[8,128]{1,0}, f32[16,16]{1,0}) parameter(0)
  %low = u32[] get-tuple-element(%state), index=0
  %high = u32[] get-tuple-element(%state), index=1
  %w = f32[8,128]{1,0} get-tuple-element(%state), index=2
  %v = f32[16,16]{1,0} get-tuple-element(%state), index=3
  %begun = (f32[8,128]{1,0}, f32[32,128]{1,0}, u32[]{:S(2)}) fusion(%w), kind=kCustom, calls=%begins
  %b0 = f32[8,128]{1,0} get-tuple-element(%begun), index=0
  %b1 = f32[32,128]{1,0} get-tuple-element(%begun), index=1
  %b2 = u32[]{:S(2)} get-tuple-element(%begun), index=2
  %done = (f32[16,16]{1,0}, f32[32,128]{1,0}) fusion(%v, %b0, %b1, %b2), kind=kOutput, calls=%goes_on
  %v2 = f32[16,16]{1,0} get-tuple-element(%done), index=0
  %whole = f32[32,128]{1,0} get-tuple-element(%done), index=1
  %mine = f32[8,128]{1,0} fusion(%whole), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %next = (u32[], u32[], f32[8,128]{1,0}, f32[16,16]{1,0}) tuple(%low, %high, %mine, %v2)
}

%more (state.1: (u32[], u32[], f32[8,128], f32[16,16])) -> pred[] {
  %nought = u32[]{:T(128)} constant(0)
  %six = u32[]{:T(128)} constant(6), metadata={op_name="jit(graph)/while/cond/lt"}
  %none = s32[]{:T(128)} constant(0), metadata={op_name="jit(graph)/while/cond/lt"}
  %state.1 = (u32[], u32[], f32[8,128]{1,0}, f32[16,16]{1,0}) parameter(0)
  %high.1 = u32[]{:T(128)} get-tuple-element(%state.1), index=1
  %same = pred[] compare(%high.1, %nought), direction=EQ
  %low.1 = u32[]{:T(128)} get-tuple-element(%state.1), index=0
  %below = pred[] compare(%low.1, %six), direction=LT
  %and = pred[] and(%same, %below)
  %signed = s32[] bitcast-convert(%high.1)
  %negative = pred[] compare(%signed, %none), direction=LT
  ROOT %or = pred[] or(%negative, %and)
}

ENTRY %main (p: f32[8,128], q: f32[16,16]) -> f32[8,128] {
  %p = f32[8,128]{1,0} parameter(0)
  %q = f32[16,16]{1,0} parameter(1)
  %start = u32[] constant(0)
  %before = (u32[], u32[], f32[8,128]{1,0}, f32[16,16]{1,0}) tuple(%start, %start, %p, %q)
  %loop = (u32[], u32[], f32[8,128]{1,0}, f32[16,16]{1,0}) while(%before), condition=%more, body=%body
  ROOT %got = f32[8,128]{1,0} get-tuple-element(%loop), index=2
}
"""


def test_collectives_that_a_tpu_fuses() -> None:
    """An asynchronous collective and its bytes are counted once, for the fusion that starts it."""
    module = hlo_parser.parse_hlo(TPU_HLO)
    counter = cost_model.CostCounter(module)
    operations = counter.operations()
    found = collective_costs.collectives_per_op(operations, module, 8)
    assert counter.unknown_loops == 0
    one = 8 * 128 * 4
    assert [
        (c.kind, c.group, c.count, c.bytes)
        for c in collective_costs.summarize_collectives(operations, found, hardware_specs.TPUS["v5e"])
    ] == [
        ("all-gather", 4, 6, 6 * 4 * one),
        ("reduce-scatter", 4, 6, 6 * one),
    ]
    (going,) = (o for o in operations if o.instruction.name == "done")
    assert (going.times, going.cost.read, going.cost.written) == (6, 16 * 16 * 4, 16 * 16 * 4)


def test_loops_count_with_32_bits_on_tpus() -> None:
    """Loop counters have 32 bits: libtpu does not analyze loops with 64-bit counters, which jax emits with x64."""
    with jax.enable_x64(True):
        traced = jax.jit(lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x)[0]).trace(struct(6, 3))
        texts = {place: traced.lower(lowering_platforms=(place,)).as_text() for place in ("tpu", "cpu")}
    counters = {place: re.findall(r"stablehlo.compare +LT.*: \(tensor<(\w+)>", text) for place, text in texts.items()}
    assert counters == {"tpu": ["i32"], "cpu": ["i64"]}


#: op_name of an instruction -> its scope in a report
ORIGINS = {
    "jit(graph)/Net/fc/aten::addmm/dot_general": "Net/fc/aten::addmm",
    "jit(program_of_arrays)/backward/Net/aten::mm/dot_general": "backward/Net/aten::mm",
    "jit(graph)/Net/torch_xla::jax_call/jit(Block)/while/body/closed_call/Net/blocks.0/aten::mm/dot_general": (
        "Net/blocks.0/aten::mm"
    ),
    "jit(graph)/backward/Net/torch_xla::jax_call/while/body/closed_call/Net/aten::mm/while/body/closed_call/mul": (
        "backward/Net/aten::mm"
    ),
    "jit(graph)/Net/torch_xla::jax_call/jit(Block)/broadcast_in_dim": "Net/torch_xla::jax_call",
    "jit(step)/while/body/add": "while/body/add",
}


@pytest.mark.parametrize("op_name", ORIGINS)
def test_origins_of_instructions(op_name: str) -> None:
    assert program_analysis.op_scope(op_name) == ORIGINS[op_name]


#: (name, configuration) of a kernel -> multiplications and additions; None if unknown
KERNELS = {
    ("mine", '{"custom_call_config":{"body":"TUw","cost_estimate":{"flops":"4320","bytes_accessed":"7"}}}'): 4320,
    ("flash_mha_bwd_dq_block_q_major_512.1", "{}"): 3 * 2 * 2 * 4 * 64 * 128 * 32,
    ("flash_mha_bwd_dkv_block_q_512", "{}"): 4 * 2 * 2 * 4 * 64 * 128 * 32,
    ("mine.2", "{}"): None,
}


@pytest.mark.parametrize(("name", "config"), KERNELS)
def test_products_of_kernels(name: str, config: str) -> None:
    """A Pallas kernel declares its cost, or its cost is known; otherwise the report counts it as unknown."""
    counter = cost_model.CostCounter(
        hlo_parser.parse_hlo(f"""HloModule m

ENTRY %main (q: bf16[2,4,64,32], k: bf16[2,4,128,32]) -> bf16[2,4,64,32] {{
  %q = bf16[2,4,64,32]{{3,2,1,0}} parameter(0)
  %k = bf16[2,4,128,32]{{3,2,1,0}} parameter(1)
  ROOT %{name} = bf16[2,4,64,32] custom-call(%q, %k), custom_call_target="tpu_custom_call", backend_config={config}
}}
""")
    )
    (operation,) = counter.operations()
    assert operation.cost.products == (KERNELS[name, config] or 0)
    assert counter.unknown_kernels == (KERNELS[name, config] is None)


_BACKEND = 'backend_config={grid_x = 16 : i32, name = "%s", num_stages = 2 : i32}'
#: Custom call target, and configuration -> products of queries and keys that the kernel computes.
KERNELS_ON_GPUS = {
    ("__gpu$xla.gpu.triton", _BACKEND % "mha_forward"): 2,
    ("__gpu$xla.gpu.triton", _BACKEND % "mha_backward"): 7,
    ("__cudnn$fmhaSoftmax", "backend_config={}"): 2,
    ("__cudnn$fmhaSoftmaxBackward", "backend_config={}"): 5,
}


@pytest.mark.parametrize(("target", "config"), KERNELS_ON_GPUS)
def test_products_of_attention_on_gpus(target: str, config: str) -> None:
    counter = cost_model.CostCounter(
        hlo_parser.parse_hlo(f"""HloModule m

ENTRY %main (q: bf16[2,64,4,32], k: bf16[2,128,4,32]) -> bf16[2,64,4,32] {{
  %q = bf16[2,64,4,32]{{3,2,1,0}} parameter(0)
  %k = bf16[2,128,4,32]{{3,2,1,0}} parameter(1)
  ROOT %pallas_call.1 = bf16[2,64,4,32] custom-call(%q, %k), custom_call_target="{target}", {config}
}}
""")
    )
    (operation,) = counter.operations()
    assert operation.cost.products == KERNELS_ON_GPUS[target, config] * 2 * 2 * 4 * 64 * 128 * 32
    assert not counter.unknown_kernels


def test_no_hlo() -> None:
    with pytest.raises(ValueError, match="no entry computation"):
        hlo_parser.parse_hlo("HloModule nothing")


def test_modules_are_summed_with_their_submodules() -> None:
    operations = [
        ("Net/fc/aten::linear", 3.0, 30.0, 10.0),
        ("backward/Net/fc/aten::mm", 4.0, 60.0, 10.0),
        ("Net/aten::relu", 1.0, 1.0, 2.0),
        ("Net/norm/aten::layer_norm", 5.0, 5.0, 50.0),
        ("aten::_foreach_add", 2.0, 2.0, 20.0),
        ("copy of argument 8", 1.0, 0.0, 10.0),
        ("Net/tiny/aten::add", 0.01, 1.0, 1.0),
    ]
    rows = module_costs.summarize_modules(operations)
    assert [row.module for row in rows] == ["Net", "Net/fc", "Net/norm", ""]
    assert rows[0] == module_costs.ModuleCost("Net", 13.01, 4.0, 97.0, 73.0)
    assert rows[1] == module_costs.ModuleCost("Net/fc", 7.0, 4.0, 90.0, 20.0)
    assert (rows[3].seconds, rows[3].backward) == (3.0, 0.0)


def test_no_modules_are_listed_for_a_program_without_any() -> None:
    assert module_costs.summarize_modules([("aten::add", 1.0, 1.0, 1.0)]) == ()
