"""When the kernels' OpenMP team sleeps between loops: each row of the table in wait_policy.h."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import torch_xla

SOURCES = Path(torch_xla.__file__).parent / "_engine" / "cpu_backend" / "csrc"

#: Reads lines "time waiting others" in ms: a kernel, and the CPU time of others since the last one (-1: not known).
PROGRAM = """
#include <cstdio>
#include <thread>
#include "threading/wait_policy.h"

using std::chrono::milliseconds;
static std::optional<std::chrono::nanoseconds> others = milliseconds(0);

namespace torch_xla::handlers {
std::optional<std::chrono::nanoseconds> read_cpu_time_of_others() { return others; }
}

int main() {
  torch_xla::handlers::WaitPolicy policy;
  int time, waiting, used;
  while (std::scanf("%d %d %d", &time, &waiting, &used) == 3) {
    std::this_thread::sleep_for(milliseconds(5));
    others = used < 0 || !others ? std::nullopt : std::optional(*others + milliseconds(used));
    policy.add(milliseconds(time), milliseconds(waiting));
    std::putchar(policy.is_passive() ? 'p' : 'a');
  }
}
"""

WAITS, BUSY_OTHERS = "50 40 100000", "50 0 100000"

#: name -> (kernels, the policy after each: active or passive)
ROWS = {
    "less than a window": (["20 20 100000"] * 2, "aa"),
    "little waiting": (["50 10 100000"] * 4, "aaaa"),
    "others are measured from the second window on": ([WAITS, WAITS], "ap"),
    "the process waits for itself": (["50 40 0"] * 6, "aaaaaa"),
    "others have less than 30 % of a core": ([WAITS, "50 40 1"], "aa"),
    "not known": (["50 40 -1"] * 2, "ap"),
    "a window with little waiting measures again": ([WAITS, BUSY_OTHERS, WAITS, WAITS], "aaap"),
    "the pause is over": ([WAITS, WAITS, "200 0 0", "60 0 0"], "appa"),
    "the next pause is twice as long": ([WAITS, WAITS, "260 0 0", WAITS, "260 0 0", "250 0 0"], "apappa"),
    "after little waiting it is short": ([WAITS, WAITS, "260 0 0", BUSY_OTHERS, WAITS, WAITS, "260 0 0"], "apaaapa"),
    "at most 4 s": ([WAITS, *[WAITS, "4000 0 0"] * 6, WAITS, "3999 0 0", "1 0 0"], "a" + "pa" * 6 + "ppa"),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wait_policy")
    (folder / "program.cpp").write_text(PROGRAM)
    command = ["g++", "-std=c++20", "-Wall", "-Werror", f"-I{SOURCES}", "program.cpp", "-o", "program"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table(row: str, program: Path) -> None:
    kernels, expected = ROWS[row]
    found = subprocess.run([program], input="\n".join(kernels), capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == expected
