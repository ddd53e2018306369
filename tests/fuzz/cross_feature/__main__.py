"""The command: programs by number."""

from __future__ import annotations

import logging
import sys

from tests.fuzz.cross_feature.running import Difference, program, run, shortened


def main() -> None:
    """The command."""
    first, count = map(int, sys.argv[1:3])
    logging.getLogger("torch_xla").setLevel(logging.ERROR)
    seen: dict[str, int] = {}
    for number in range(first, first + count):
        try:
            run(program(number))
        except Difference as difference:
            key = f"{difference.step[0]}|{difference.what[:60]}"
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= 1:
                short = shortened(program(number))
                try:
                    run(short)
                except Difference as less:
                    print(f"--- {number}: {short}\n{less}", flush=True)


if __name__ == "__main__":
    main()
