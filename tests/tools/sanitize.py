"""Runs the threading and lifetime tests with a sanitized recorder: AddressSanitizer and UBSan, or ThreadSanitizer.

    python -m tests.tools.sanitize [--only address|thread] [pytest's options, files and tests ...]

The recorder is built with one of the compiler's sanitizers (in a separate cache folder, so that nothing else loads
that build), and Python is started with the sanitizer's library preloaded. Torch, jax and Python are not instrumented:
their memory use is visible through malloc, and their synchronization through pthreads, but their reads and writes are
not. Every process of a test writes its findings into a file; a finding counts if one of its frames is in the recorder.
First, an extension with one fault of each type runs in the same way, and every fault must be found. Prints a table and
the findings, and exits with 1 if there are any, if a test failed, or if a deliberate fault was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torch_xla._engine.base.settings import settings
from torch_xla._engine.recorder import build

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "tools" / "sanitizer_faults"
#: Tests of recording on several threads, interrupts, waiting, forks and process exit.
TESTS = [
    "recorder/test_donation.py", "recorder/test_views.py", "execution/test_step_transactions.py",
    "recorder/test_threads.py", "data_loading/test_data_parallel.py", "integration/test_process_lifetime.py",
    "recorder/test_fork.py", "data_loading/test_parallel_loader.py", "integration/test_smoke.py",
    "recorder/test_rng.py", "diagnostics/test_device_memory.py", "fuzz/test_random_programs.py",
    "execution/test_compile_policy.py",
]  # fmt: skip

#: Tests of these files that are meaningless under a sanitizer, with the reason.
EXCLUDED = {
    "tests/integration/test_process_lifetime.py::test_memory_stays_flat": (
        "the sanitizer quarantines freed memory and does not reuse it"
    )
}


@dataclass(frozen=True)
class Sanitizer:
    """One way to build and run: the compiler's flags, the library to preload, and the format of its findings.

    ``faults`` are functions of the extension with deliberate faults, with the finding that the sanitizer must report.
    """

    name: str
    flags: str
    library: str
    seconds: tuple[str, ...]  # options that keep a second runtime from writing to stderr
    options: dict[str, str]
    begins: str  # start of the line that names the finding
    faults: dict[str, str]

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables of a sanitized process; it writes findings to ``home``/logs/<name>.<process id>."""
        logs = {name: f"log_path={home}/logs/{name.lower()}:{options}" for name, options in self.options.items()}
        compiler = f"{os.environ.get('CXX') or 'c++'} -fsanitize={self.flags} {_ALL}"
        folder = settings.cache_dir / "sanitized" / self.name
        own = {"CXX": compiler, "TORCH_XLA_CACHE_DIR": str(folder), "PYTHONPATH": str(ROOT)}
        return os.environ | logs | own

    def python(self, home: Path) -> str:
        """Make a Python in ``home`` that preloads the sanitizer's library and starts subprocesses with the same Python.

        The library is not suitable for every program (it crashes shells), so a process removes it from its environment.
        Address randomization is off: the sanitizer's tables leave no address space for randomly placed mappings.
        """
        # The sanitizer intercepts the throw function of the C++ library at start, so that library must be loaded.
        libraries = ":".join(_library(name) for name in (self.library, "libstdc++.so.6"))
        (home / "logs").mkdir(parents=True)
        starter = home / "python"
        starter.write_text(
            f"#!/bin/sh\nexec setarch -R env LD_PRELOAD={libraries} "
            f'PYTHONPATH={home}:"$PYTHONPATH" {sys.executable} "$@"\n'
        )
        starter.chmod(0o755)
        seconds = [(_library(name), f"{home}/logs/{name}") for name in self.seconds]
        (home / "sitecustomize.py").write_text(_AT_START.format(executable=str(starter), seconds=seconds))
        return str(starter)


def _library(name: str) -> str:
    """Return the path of the compiler's sanitizer library."""
    asked = [*(os.environ.get("CXX") or "c++").split(), f"-print-file-name={name}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():  # the compiler returns the bare name of a library that it does not have
        raise SystemExit(f"tests.tools.sanitize: the compiler has no {name}; apt-get install g++ brings it")
    return path


_AT_START = """
import os, sys
sys.executable = {executable!r}
os.environ.pop("LD_PRELOAD", None)
if {seconds}:
    import ctypes
    for library, log in {seconds}:
        ctypes.CDLL(library).__sanitizer_set_report_path(log.encode())
"""
# The vptr check needs the type information of torch's classes, which is hidden in torch's libraries.
_ALL = "-fno-sanitize=vptr -fno-omit-frame-pointer -g1"

SANITIZERS = {
    "address": Sanitizer(
        name="address",
        flags="address,undefined",
        library="libasan.so",
        seconds=("libubsan.so",),
        options={
            # Python and torch do not free much of their memory at exit. Some tests request more memory than exists.
            "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:quarantine_size_mb=128:"
            "allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        begins=r"^(?:==\d+==ERROR: )?AddressSanitizer:|^.*: runtime error:",
        faults={"use_after_free": "heap-use-after-free", "overflow": "signed integer overflow"},
    ),
    "thread": Sanitizer(
        name="thread",
        flags="thread",
        library="libtsan.so",
        seconds=(),
        options={
            # Races between uninstrumented libraries are not the recorder's, and ThreadSanitizer cannot see their
            # atomics. A process with findings exits as it would without.
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=0:exitcode=0:die_after_fork=0:"
            "allocator_may_return_null=1:"
            f"suppressions={FAULTS / 'thread_suppressions.txt'}",
        },
        begins=r"^(?:WARNING: |FATAL: |==\d+==ERROR: )?ThreadSanitizer:(?! reported)",
        faults={"race": "data race"},
    ),
}


@dataclass(frozen=True)
class Finding:
    """All lines of one finding of a sanitizer; the first line names it."""

    text: str

    def is_of(self, extension: build.Extension) -> bool:
        """Return whether a frame is in the extension or its sources, whatever their folder was at build time."""
        return f"{extension.name}.so" in self.text or f"/{'/'.join(extension.sources.parts[-2:])}/" in self.text

    @property
    def place(self) -> str:
        """Return the name of the finding and its first recorder frames, by which equal findings are identified."""
        first = self.text.partition("\n")[0]
        kind = re.sub(r"^.*?(?:Sanitizer|runtime error): | on address .*| \(pid=\d+\)", "", first)
        places = re.findall(r"csrc/(\w+\.(?:cpp|h):\d+)", self.text)
        return " ".join([kind, *dict.fromkeys(places[:6])])


def findings(home: Path, begins: str) -> list[Finding]:
    """Return the findings of the processes that were started from ``home``."""
    found = []
    for file in sorted(home.glob("logs/*")):
        text = file.read_text(errors="replace")
        starts = [match.start() for match in re.finditer(begins, text, re.MULTILINE)]
        found += [Finding(text[start:end].strip()) for start, end in pairwise([*starts, len(text)])]
    return found


# Loads an extension as torch_xla loads the recorder, but without torch_xla, whose import loads the recorder.
_LOAD = """
import sys, types
from pathlib import Path
root, cache, name, sources, function = sys.argv[1:]
for package, path in (("torch_xla", "torch_xla"), ("torch_xla._engine", "torch_xla/_engine"),
                      ("torch_xla._engine.recorder", "torch_xla/_engine/recorder")):
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [root + "/" + path]
from torch_xla._engine.recorder.build import Extension, load_extension
getattr(load_extension(Extension(name, Path(sources), Path(cache))), function)()
"""
RECORDER = build.Extension("_torch_xla_recorder", Path(build.__file__).parent / "csrc", settings.cache_dir)
FAULTY = build.Extension("faults", FAULTS, settings.cache_dir)


def missed_faults(sanitizer: Sanitizer, home: Path) -> list[str]:
    """Return the deliberate faults that were not found, with the actual finding."""
    missed = []
    for function, called in sanitizer.faults.items():
        environment = sanitizer.environment(home / function)
        what = [str(ROOT), environment["TORCH_XLA_CACHE_DIR"], FAULTY.name, str(FAULTY.sources)]
        command = [sanitizer.python(home / function), "-c", _LOAD, *what, function]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        found = findings(home / function, sanitizer.begins)
        if not any(called in finding.text and finding.is_of(FAULTY) for finding in found):
            seen = "\n".join(finding.text for finding in found)
            missed.append(f"{function}: expected a finding with {called!r}; {seen}{done.stdout}{done.stderr}")
    return missed


def run(sanitizer: Sanitizer, options: list[str], home: Path) -> tuple[Counter[str], list[str], list[Finding]]:
    """Return the counts of test outcomes, the lines of failures, and the findings. Raises RuntimeError if no test
    ran."""
    named = any(not option.startswith("-") and "test" in option for option in options)
    paths = [] if named else [str(ROOT / "tests" / name) for name in TESTS]
    left_out = [f"--deselect={test}" for test in EXCLUDED]
    # pytest's faulthandler would replace the sanitizer's report.
    command = [sanitizer.python(home), "-m", "pytest", "-q", "--tb=short", "-rfE", "-p", "no:faulthandler"]
    with (home / "pytest").open("w") as output:  # can be read while it runs
        environment = sanitizer.environment(home)
        done = subprocess.run(
            [*command, *paths, *left_out, *options], env=environment, cwd=ROOT, stdout=output, stderr=output
        )
    printed = (home / "pytest").read_text(errors="replace")
    found = findings(home, sanitizer.begins)
    # Not always the last line: a process may write to stderr later.
    last = re.findall(r"^.*\d (?:passed|failed|error).* in [\d.]+s.*$", printed, re.MULTILINE)[-1:]
    ends = re.findall(r"(\d+) (passed|failed|error|skipped)", "".join(last))
    bad = re.findall(r"^(?:FAILED|ERROR) .*$", printed, re.MULTILINE)
    if not ends:
        bad.append(f"pytest ended with {done.returncode}:\n{printed[-3000:]}")
    return Counter({word: int(number) for number, word in ends}), bad, found


def check(name: str, options: list[str], home: Path) -> list[str]:
    """Run one sanitizer in the empty folder ``home`` and print its row of the table; return its problems as text."""
    sanitizer = SANITIZERS[name]
    start = time.monotonic()
    if missed := missed_faults(sanitizer, home):
        return [f"{name}: a deliberate fault was not found: {text}" for text in missed]
    ends, bad, found = run(sanitizer, options, home)
    ours = [finding for finding in found if finding.is_of(RECORDER)]
    places = Counter(finding.place for finding in ours)
    numbers = [ends["passed"], len(bad), ends["skipped"], len(places), len(found) - len(ours)]
    print("|", " | ".join([name, *map(str, numbers), str(round(time.monotonic() - start))]), "|", flush=True)
    first = {finding.place: finding.text for finding in reversed(ours)}
    texts = [f"{name}: {count} times: {place}\n{first[place]}" for place, count in places.items()]
    return [*texts, *(f"{name}: {line}" for line in bad)]


def main(arguments: list[str]) -> int:
    """Run the sanitizers one after the other; return 1 if one of them reports a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.sanitize", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=SANITIZERS, help="run this sanitizer only (default: all)")
    parser.add_argument("--logs", type=Path, help="store pytest's output and the findings in this new folder")
    parsed, options = parser.parse_known_args(arguments)
    print("| sanitizer | passed | failed | skipped | findings | third-party | seconds |\n|" + " --- |" * 7)
    names = [parsed.only] if parsed.only else list(SANITIZERS)
    with tempfile.TemporaryDirectory(prefix="sanitize-") as temporary:
        folder = parsed.logs or Path(temporary)
        wrong = [text for name in names for text in check(name, options, folder.resolve() / name)]
    print(*wrong, sep="\n\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
