"""Installs and runs the package on clean Debian systems, as a non-root user: ``make test-debian``.

    python -m tests.tools.clean_debian [bookworm trixie] [--folder FOLDER] [--quick]

Bootstraps each system with debootstrap in a separate folder, installs the packages of docker/steps.sh with apt, and
runs the commands of README and docs/get_started/install.md as a user, in a clone of the committed tree:
``make demo``, ``make test``, the
wheel, the first script, and ``python -m torch_xla.doctor`` in a working environment and in broken ones. Prints a line
for each step; the folder stores all output. Needs root, debootstrap, unshare, and a network.

apt and pip use the package indexes that this machine is configured with. torch and jax have the versions of
requirements-dev.txt: with Python 3.13 that torch installs 5 GB of CUDA libraries.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("bookworm", "trixie")
PYTHON = "~/venv/bin/python"  # of the environment with the wheel
HOST = "/srv/host"  # mount point of the files and folders of this machine that pip's settings name


@dataclass(frozen=True)
class Step:
    """A command of the user, the exit code and the text that it must have."""

    name: str
    command: str
    code: int = 0
    words: tuple[str, ...] = ()
    user: str = "user"
    environment: dict[str, str] = field(default_factory=dict)
    long: bool = False  # skipped by --quick


def doctor(name: str, code: int, *words: str, before: str = "", **environment: str) -> Step:
    """Return a step that runs the doctor after a command."""
    return Step(f"doctor: {name}", f"{before}{PYTHON} -m torch_xla.doctor", code, words, environment=environment)


ALL_IS_WELL = "The device computed a tensor."
STEPS = (
    Step("apt-get install, as in docker/steps.sh", "/tmp/steps.sh system", user="root"),
    Step("make demo", "cd torch_xla && make demo", words=("test accuracy",)),
    Step("make smoke", "cd torch_xla && make smoke"),
    Step("make test", "cd torch_xla && make test", long=True),
    Step("the wheel", "cd torch_xla && PYTHON=$PWD/.venv/bin/python scripts/build_torch_wheels.sh", words=("dist/",)),
    Step("pip install of the wheel", "python3 -m venv venv && venv/bin/pip install --quiet torch_xla/dist/*.whl"),
    Step("README's first script", f"{PYTHON} first_script.py"),
    doctor("all is well", 0, ALL_IS_WELL),
    doctor(
        "a TPU is asked for", 1, "PJRT_DEVICE requests a TPU: no TPU chip found", "or set PJRT_DEVICE=CPU",
        PJRT_DEVICE="TPU",
    ),
    doctor(
        "the cache folder is read-only", 1, "folder /home/user/closed is not writable: Permission denied",
        before="mkdir -p closed && chmod 555 closed && ", TORCH_XLA_CACHE_DIR="/home/user/closed",
    ),
    Step("apt-get remove g++", "apt-get purge -qy g++ g++-[0-9]*", user="root"),
    doctor("no compiler, recorder already built", 0, "A C++ compiler was not found", "the findings are advice."),
    doctor(
        "no compiler", 1, "A C++ compiler was not found", "-> apt-get install g++", "THE DEVICE CHECK FAILED",
        TORCH_XLA_CACHE_DIR="/home/user/empty",
    ),
    doctor(
        "an older jaxlib", 1, "jaxlib 0.9", "is from another release than jax", "-> pip install jaxlib==",
        before='PIP_CONSTRAINT= venv/bin/pip install --quiet --no-deps "jaxlib<0.10" && ',
    ),
    doctor(
        "its cure", 0, "the findings are advice.",
        before="venv/bin/pip install --quiet jaxlib==$(venv/bin/python -c 'import importlib.metadata as m; "
        "print(m.version(\"jax\"))') && ",
    ),
)  # fmt: skip


def mirror(targets: str) -> str:
    """Return Debian's repository from the lines of ``apt-get indextargets`` (suite and address), without the
    updates."""
    for line in targets.splitlines():
        suite, _, address = line.partition(" ")
        if address and "-" not in suite:
            return address.rstrip("/")
    raise SystemExit("clean_debian: apt of this machine names no repository of Debian: --mirror ADDRESS")


def pip_variables(config: str) -> dict[str, str]:
    """Convert the output of ``pip config list`` to pip environment variables; those of this process take precedence."""
    found = re.findall(r"^(:env:|global|install)\.([\w-]+)=(.*)$", config, re.MULTILINE)
    found.sort(key=lambda entry: entry[0] == ":env:")
    return {f"PIP_{key.upper().replace('-', '_')}": " ".join(str(ast.literal_eval(v)).split()) for _, key, v in found}


def paths(values: dict[str, str]) -> set[Path]:
    """Return the files and folders of this machine that the values name."""
    found = [urlparse(word) for word in " ".join(values.values()).split()]
    named = {Path(word.path) for word in found if word.scheme in ("", "file") and word.path.startswith("/")}
    return {path for path in named if path.exists()}


def inside(values: dict[str, str]) -> dict[str, str]:
    """Map the values into the chroot: the paths that they name are below HOST, separate from Debian's files."""
    for path in paths(values):
        values = {name: re.sub(rf"(?<![^\s/]){path}(?!\S)", f"{HOST}{path}", value) for name, value in values.items()}
    return values


def output(*command: str) -> str:
    """Return the output of a command of this machine."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Debian:
    """A Debian in a folder, entered by chroot."""

    def __init__(self, suite: str, folder: Path) -> None:
        self.suite, self.root = suite, folder / suite
        self.log = folder / f"{suite}.log"
        self.variables = pip_variables(output(sys.executable, "-m", "pip", "config", "list"))
        self.proxies = {n: v for n, v in os.environ.items() if n.lower() in ("http_proxy", "https_proxy", "no_proxy")}

    def make(self, address: str) -> None:
        """Bootstrap a minimal Debian with this machine's apt settings."""
        shutil.rmtree(self.root, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", self.suite, str(self.root), address]
        with self.log.open("w") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
        (self.root / "etc/apt/apt.conf").write_text(output("apt-config", "dump", "Acquire"))
        for name in ("etc/resolv.conf", "etc/hosts"):
            shutil.copy(f"/{name}", self.root / name)
        shutil.copy(ROOT / "docker" / "steps.sh", self.root / "tmp")

    def mount(self) -> None:
        """Mount the kernel's file systems and the paths of pip's settings, in the mount namespace that ``main``
        created.
        """
        self._mount("-t", "proc", "proc", at="proc")
        self._mount("-t", "sysfs", "-o", "ro", "sysfs", at="sys")
        self._mount("--bind", "/dev", at="dev")
        self._mount("-t", "devpts", "devpts", at="dev/pts")
        self._mount("-t", "tmpfs", "tmpfs", at="dev/shm")
        for path in paths(self.variables):
            # The files of an index are in the folder above its pages.
            source = path.parent if path.name == "simple" else path
            place = self.root / f"{HOST}{source}".lstrip("/")
            (place if source.is_dir() else place.parent).mkdir(parents=True, exist_ok=True)
            if source.is_file():
                place.touch()
            self._mount("--bind", "-o", "ro", str(source), at=str(place.relative_to(self.root)))

    def _mount(self, *words: str, at: str) -> None:
        subprocess.run(["mount", *words, str(self.root / at)], check=True)

    def bring(self) -> None:
        """Copy the user's files: a clone, and the script of the README."""
        home = self.root / "home" / "user"
        output("git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(home / "torch_xla"))
        script = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        assert script is not None
        (home / "first_script.py").write_text(script[1])
        for path in (home, *home.rglob("*")):
            shutil.chown(path, 1000, 1000)

    def run(self, step: Step) -> tuple[bool, float]:
        """Run a step; return whether it passed, and how long it took."""
        home = "/root" if step.user == "root" else "/home/user"
        environment = {"HOME": home, "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        environment |= inside(self.variables) | self.proxies
        if step.user != "root":
            environment["PIP_CONSTRAINT"] = "/home/user/torch_xla/requirements-dev.txt"
        environment |= step.environment
        words = [f"{name}={value}" for name, value in environment.items()]
        command = ["chroot", f"--userspec={step.user}", str(self.root), "env", "-i", *words, "sh", "-c"]
        start = time.perf_counter()
        done = subprocess.run(
            [*command, f"cd ~ && {step.command}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        took = time.perf_counter() - start
        with self.log.open("a") as log:
            log.write(f"\n==== {step.name}: exit code {done.returncode}, {took:.0f} s\n{done.stdout}")
        said = " ".join(done.stdout.split())
        return done.returncode == step.code and all(word in said for word in step.words), took


def run_step(debian: Debian, step: Step) -> bool:
    """Run a step and print its result; return whether it passed."""
    passed, seconds = debian.run(step)
    print(f"{debian.suite}: {step.name}: {'passed' if passed else 'FAILED'}, {seconds:.0f} s", flush=True)
    return passed


def check(debian: Debian, steps: list[Step]) -> list[str]:
    """Run the steps and print their results; return the names of those that failed."""
    failed = []
    for number, step in enumerate(steps):
        if not run_step(debian, step):
            failed.append(step.name)
            if not step.name.startswith("doctor"):
                break  # later steps need it
        if number == 0:
            debian.bring()
    return failed


def in_own_name_space(module: str = "tests.tools.clean_debian") -> None:
    """Restart a program in a separate mount namespace, which ends with it."""
    if os.environ.get("CLEAN_DEBIAN") == "inside":
        return
    for program in ("debootstrap", "unshare", "chroot"):
        if shutil.which(program) is None:
            raise SystemExit(f"clean_debian: {program} was not found: apt-get install debootstrap util-linux coreutils")
    if os.getuid() != 0:
        raise SystemExit("clean_debian: chroot and mount need root")
    # No process namespace: no process in it would reap orphaned processes.
    command = ["unshare", "--mount", "--propagation", "private"]
    again = [sys.executable, "-m", module, *sys.argv[1:]]
    sys.exit(subprocess.run([*command, *again], env=os.environ | {"CLEAN_DEBIAN": "inside"}).returncode)


def make_systems(suites: Iterable[str], folder: Path, address: str | None) -> Iterator[Debian]:
    """Bootstrap systems one after another, from a mirror or from that of apt."""
    folder.mkdir(parents=True, exist_ok=True)
    address = address or mirror(output("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)"))
    for suite in suites:
        debian = Debian(suite, folder.resolve())
        debian.make(address)
        debian.mount()
        yield debian


def main() -> int:
    """Return 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", default=SUITES, metavar="SUITE")
    parser.add_argument("--folder", type=Path, default=Path("build/debian"), help="folder of the systems; some GB each")
    parser.add_argument("--mirror", help="Debian mirror (default: that of apt)")
    parser.add_argument("--quick", action="store_true", help="without make test")
    options = parser.parse_args()
    in_own_name_space()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of a background job ignore it
    failed = 0
    for debian in make_systems(options.suites, options.folder, options.mirror):
        failed += len(check(debian, [step for step in STEPS if not (options.quick and step.long)]))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
