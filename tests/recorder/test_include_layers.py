"""Include layers of the recorder: a folder of csrc includes only itself and the folders below it."""

from __future__ import annotations

import re
from pathlib import Path

CSRC = Path(__file__).parents[2] / "torch_xla" / "_engine" / "recorder" / "csrc"

#: From the bottom up; csrc/README.md lists them in the same order. "." has registration and bindings.
LAYERS = (
    "support", "compat", "runtime", "ir", "tensor", "inference", "dispatch", "aten", "graph", "interpreter", ".",
)  # fmt: skip

_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def test_includes_go_down() -> None:
    """No file includes a header of a higher layer, and every folder has a layer."""
    level = {folder: i for i, folder in enumerate(LAYERS)}
    upward = [
        f"{file} includes {header}"
        for file in (path.relative_to(CSRC) for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp"))
        for header in _INCLUDE.findall((CSRC / file).read_text())
        if level[str(Path(header).parent)] > level[str(file.parent)]
    ]
    assert not upward


def test_readme_lists_the_layers_in_order() -> None:
    """The sections of the README are the layers, from the bottom up."""
    sections = re.findall(r"^## (\w+)$", (CSRC / "README.md").read_text(), re.MULTILINE)
    assert [section for section in sections if section in LAYERS] == list(LAYERS[:-1])
