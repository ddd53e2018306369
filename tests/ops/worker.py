"""Worker process: reads checks from stdin as JSON lines and writes outcomes to a file descriptor as JSON lines.

It runs many checks, because importing torch and its database takes seconds; the pool kills it when a check takes too
long, and starts another when it dies.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("TORCH_XLA_WARN_FALLBACK", "0")

import torch

from tests.ops.check import check
from tests.ops.outcome import Outcome
from tests.support import fast_compile_flags  # noqa: F401  # sets XLA's flags


def main(answers_fd: int) -> None:
    torch.set_num_threads(1)
    with os.fdopen(answers_fd, "w") as answers:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        done = check(job["op"], getattr(torch, job["dtype"]), job["kind"], job["samples"])
    except Exception as error:
        # Not the operator's fault: a sample that cannot be made, or a bug of the sweep.
        done = Outcome(job["op"], job["dtype"], job["kind"], "error", 1, 0, f"sweep: {type(error).__name__}: {error}")
    return done.as_dict()


if __name__ == "__main__":
    main(int(sys.argv[1]))
