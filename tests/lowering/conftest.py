"""The rules that a test checks are compiled together."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.rule_check import together
from tests.tools import compile_for_targets

compile_for_targets.install()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Checks what the test has asked for as a part of it."""
    with together():
        return (yield)
