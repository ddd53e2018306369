"""docs/project/upstream_names.md lists the status of each of upstream's names."""

from __future__ import annotations

from tests.tools import upstream_names


def test_the_page_is_up_to_date() -> None:
    found = [upstream_names.find(name) for name in upstream_names.names()]
    assert upstream_names.PAGE.read_text() == upstream_names.page(found), "run: python -m tests.tools.upstream_names"


def test_notes_only_for_different_names() -> None:
    found = [f for f in (upstream_names.find(name) for name in upstream_names.names()) if f.state != "same"]
    assert {start for start in upstream_names.NOTES if not any(f.name.path.startswith(start) for f in found)} == set()


def test_missing_names_are_detected() -> None:
    """Detect a missing name, argument and module."""
    cases = {
        "torch_xla.core.xla_model nothing": "absent", "torch_xla.nowhere name": "absent",
        "torch_xla.core.xla_model mark_step": "same",
    }  # fmt: skip
    for path, state in cases.items():
        assert upstream_names.find(upstream_names.Name(*path.split(), None)).state == state
    different = upstream_names.find(upstream_names.Name("torch_xla.core.xla_model", "mark_step", ("wait", "never")))
    assert (different.state, different.note) == ("different", "without never")
