"""What other users of a machine can see: command lines, listening sockets, and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_xla_dist import DOCKER, describe, fakes, place  # noqa: F401  # the latter two are fixtures

from torch_xla.distributed import xla_dist

#: Prints the command lines of all processes that have the secret, then the variable. Its own has it otherwise.
LOOK = """cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -a 's3cr[3]t'; echo "$X" """

WHERE = {
    "here": ["--local=1"],
    "ssh": ["--hosts=far"],
    "gcloud": ["--tpu=pod"],
    "docker": ["--local=1", "--docker-image=image"],
}


@pytest.mark.parametrize("where", WHERE)
def test_values_are_on_no_command_line(fakes: Path, capfd: pytest.CaptureFixture[str], where: str) -> None:  # noqa: F811
    describe(fakes, "pod", "10.0.0.1")
    (fakes / "tools" / "docker").write_text(DOCKER)
    (fakes / "tools" / "docker").chmod(0o755)
    assert xla_dist.main([*WHERE[where], "--env=X=s3cr3t", "--", "bash", "-c", LOOK]) == 0
    assert capfd.readouterr().out == "[0] s3cr3t\n"
