"""Training on xla is independent of the user's jax options."""

from __future__ import annotations

import jax
import numpy
import pytest
import torch

from tests.support.helpers import run_script
from torch_xla.core import xla_builder

OPTIONS = """
import sys
from tests.programs import jax_option_programs
jax_option_programs.check_all()
"""


def test_training_is_independent_of_the_options_of_jax() -> None:
    done = run_script(OPTIONS, check=False, TORCH_XLA_COMPILE_POLICY="compile", CPU_NUM_DEVICES="2")
    assert done.returncode == 0, done.stderr[-6000:]


def test_functions_of_the_user_keep_the_options_of_promotion() -> None:
    x = torch.ones(3, 2, device="xla")
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="jax_numpy_rank_promotion"):
        xla_builder.call_jax(lambda v: v + v[0], (x,))
    assert xla_builder.call_jax(lambda v: v + v[0], (x,)).tolist() == [[2.0, 2.0]] * 3


def test_a_transfer_guard_of_the_user_holds_for_the_user_alone() -> None:
    with jax.transfer_guard("disallow"):
        torch.ones(2).to("xla").add(1).cpu()
        with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
            jax.numpy.add(numpy.ones(2), 1)
