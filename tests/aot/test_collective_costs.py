"""Bytes and time of collectives in HLO texts, as XLA's compilers for CPUs, GPUs and TPUs print them."""

from __future__ import annotations

import pytest

from torch_xla._engine.aot import collective_costs, cost_model, hlo_parser
from torch_xla._engine.aot.hardware_specs import ChipSpec

CHIP = ChipSpec("test", "test", {"bf16": 1.0}, 1, 1.0, 100.0, "")
_MODULE = """HloModule test

ENTRY %main (a: f32[64], b: f32[16]) -> f32[64] {{
  %a = f32[64]{{0}} parameter(0)
  %b = f32[16]{{0}} parameter(1)
  %c = {}, replica_groups={{{{0,1,2,3}}}}
  ROOT %d = f32[64]{{0}} copy(%a)
}}
"""
_PAIR = "(f32[64]{0}, f32[16]{0})"

#: Instruction; bytes of the results among 4 chips; bytes that a chip sends.
CASES = [
    ("f32[64]{0} all-gather(%b)", 256, 192),
    ("(f32[16]{0}, f32[64]{0}) all-gather-start(%b)", 256, 192),
    ("((f32[16]{0}), f32[64]{0}) all-gather-start(%b)", 256, 192),
    (f"({_PAIR}, (f32[256]{{0}}, f32[64]{{0}})) all-gather-start(%a, %b)", 1280, 960),
    ("f32[16]{0} reduce-scatter(%a)", 64, 192),
    ("((f32[64]{0}), f32[16]{0}) reduce-scatter-start(%a)", 64, 192),
    (f"({_PAIR}, (f32[16]{{0}}, f32[4]{{0}})) reduce-scatter-start(%a, %b)", 80, 240),
    ("f32[64]{0} all-reduce(%a)", 256, 384),
    ("f32[64]{0} all-reduce-start(%a)", 256, 384),  # jaxlib 0.10
    ("((f32[64]{0}), f32[64]{0}) all-reduce-start(%a)", 256, 384),  # jaxlib 0.11
    (f"{_PAIR} all-reduce-start(%a, %b)", 320, 480),
    ("((f32[64]{0}), f32[64]{0}) all-to-all-start(%a)", 256, 192),
    ("(f32[64]{0}, f32[64]{0}, u32[], u32[]) collective-permute-start(%a)", 256, 256),
]


@pytest.mark.parametrize(("instruction", "results", "sent"), CASES)
def test_bytes(instruction: str, results: int, sent: int) -> None:
    module = hlo_parser.parse_hlo(_MODULE.format(instruction))
    operations = cost_model.CostCounter(module).operations()
    found = collective_costs.collectives_per_op(operations, module, 4)
    (row,) = collective_costs.summarize_collectives(operations, found, CHIP)
    assert (row.count, row.group, row.bytes) == (1, 4, results)
    assert row.seconds == pytest.approx(sent / 100)
