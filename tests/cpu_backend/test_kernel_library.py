"""The CPU kernel library: import finds or builds it, and the first program only loads it."""

from __future__ import annotations

import pytest

from tests.support.helpers import run_script

STATE = """
    import os
    import torch_xla
    from torch_xla._engine.cpu_backend import library
    from torch_xla._engine.device import devices
    assert library._library is None and not devices.backend_started()
    print(library._located and os.path.basename(library._located))
"""


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"PJRT_DEVICE": "CPU"}, "_torch_xla_cpu_kernels.so"),
        ({"PJRT_DEVICE": "TPU"}, "None"),
        ({"PJRT_DEVICE": "CPU", "TORCH_XLA_CPU_KERNELS": "0"}, "None"),
    ],
    ids=["CPU", "TPU", "off"],
)
def test_import_locates_the_library_of_cpu_devices(variables: dict[str, str], found: str) -> None:
    assert run_script(STATE, **variables).stdout == f"{found}\n"


NOT_BUILT = """
    import warnings
    import torch_xla
    from torch_xla._engine.recorder.toolchain import RecorderBuildError
    from torch_xla._engine.cpu_backend import library
    tried = []
    def fail(extension):
        tried.append(extension.what)
        raise RecorderBuildError("no compiler")
    library.build_or_find = fail
    library._located = None
    library.locate_library()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch
        x = torch.randn(8, 16, 32, 32, device="xla")
        torch.conv2d(x, torch.randn(32, 16, 3, 3, device="xla")).cpu()
    print(tried, [str(w.message).splitlines()[0][-11:] for w in caught])
"""


def test_a_failed_build_is_tried_once() -> None:
    """The import compiles for a while and fails; the first program warns of that and does not compile again."""
    assert run_script(NOT_BUILT, PJRT_DEVICE="CPU").stdout == "['CPU kernels'] ['no compiler']\n"
