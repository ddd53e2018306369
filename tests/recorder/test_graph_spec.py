"""The enums of serialized graphs: C++ (serialize.cpp) and Python (graph_spec.py) agree."""

from __future__ import annotations

import re
from pathlib import Path

from torch_xla._engine.graph import graph_spec
from torch_xla._engine.graph.graph_spec import ArgTag

_SERIALIZE = Path(graph_spec.__file__).parents[1] / "recorder/csrc/graph/serialize.cpp"


def _cpp_enum(name: str) -> dict[str, int]:
    """Return the members of a C++ enum, with kFloatInput as FLOAT_INPUT."""
    body = re.search(rf"enum {name} {{(.*?)}}", _SERIALIZE.read_text(), re.DOTALL)
    assert body is not None
    members = re.findall(r"\bk(\w+) = (\d+)", body[1])
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", member).upper(): int(value) for member, value in members}


def test_argument_tags_match_the_recorder():
    assert _cpp_enum("ArgTag") == {tag.name: tag.value for tag in ArgTag}


def test_schema_kinds_match_the_recorder():
    kinds = _cpp_enum("SchemaKind")
    assert kinds == {name: getattr(graph_spec, name) for name in ("FUNCTIONAL", "IN_PLACE", "SCATTER")}
