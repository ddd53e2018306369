"""Compiles the rules that a test checks together, as one program."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.rule_check import together
from tests.tools import compile_for_targets

compile_for_targets.install()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Run the checks that the test has queued."""
    with together():
        return (yield)
