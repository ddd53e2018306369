"""Builds one wheel with the compiled libraries for several torch releases and Pythons: ``make wheel``.

    python scripts/build_wheel.py [--torch 2.13.0 ...] [--python python3.12 ...] [--dist dist]

For each torch release its wheel is downloaded and only the headers are kept (``--work``, a cache): the libraries are
linked against empty stand-ins of torch's, because torch has loaded its own when they are. Only the half of the recorder
that includes pybind11, which does not support CPython's stable ABI, is compiled for each Python; the other half and the
CPU kernels are compiled once for each torch. Releases with equal headers share their libraries. XLA's FFI headers
are those of the oldest supported jaxlib: XLA runs kernels that were compiled with older headers.

Where no library of the wheel fits, the first import compiles. scripts/check_wheel.py checks the result.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "torch_xla" / "_engine"
TORCHES = ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0")
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
JAXLIB = "0.10.0"
MOST_BYTES = 30_000_000
LIBRARIES = ("torch_python", "torch_cpu", "torch", "c10")
CXX = os.environ.get("CXX", "c++")
#: As torch.utils.cpp_extension, and no paths of this machine.
_EXTRA = ("-fPIC", "-DTORCH_API_INCLUDE_EXTENSION_H", f"-ffile-prefix-map={ROOT}/=")


def _load_prebuilt() -> ModuleType:
    """Load the module that names the libraries, without torch_xla, which imports torch and jax."""
    spec = importlib.util.spec_from_file_location("prebuilt", ENGINE / "recorder" / "prebuilt.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prebuilt = _load_prebuilt()


@dataclass(frozen=True)
class Python:
    """An interpreter with headers, and the tag of its extension modules: ``cpython-312-x86_64-linux-gnu``."""

    name: str
    include: str
    tag: str


def main() -> int:
    """Build the wheel; return 1 if it is too large."""
    options = make_parser().parse_args()
    work: Path = options.work.expanduser()
    pythons = [found for name in options.python if (found := find_python(name)) is not None]
    if not pythons:
        raise SystemExit("build_wheel: no Python with headers was found; name one with --python")
    print("build_wheel: " + ", ".join(python.tag for python in pythons), flush=True)
    with tempfile.TemporaryDirectory(prefix="torch_xla-wheel-") as folder:
        tree = copy_sources(Path(folder))
        ffi = headers_of("jaxlib", JAXLIB, "jaxlib/include/", work) / "jaxlib" / "include"
        for release in options.torch:
            start = time.monotonic()
            headers = headers_of("torch", release, "torch/include/", work) / "torch" / "include"
            for name, path in compile_libraries(headers, ffi, pythons, work).items():
                target = place_of(tree, release, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
            print(f"build_wheel: torch {release}: {time.monotonic() - start:.0f} s", flush=True)
        wheel = make_wheel(tree, options.dist)
    size = wheel.stat().st_size
    print(f"build_wheel: {os.path.relpath(wheel)}: {size / 1e6:.1f} MB")
    return int(size > MOST_BYTES)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", default=TORCHES, help="releases of torch")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="interpreters; those that are missing are omitted")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheel")
    parser.add_argument(
        "--work", type=Path, default=Path("~/.cache/torch_xla-wheel"), help="folder of headers, objects"
    )
    return parser


def find_python(name: str) -> Python | None:
    """Return the interpreter of this name, or of pyenv; None if it, or Python.h, is missing."""
    code = (
        "import importlib.machinery as m, sysconfig;"
        "print(sysconfig.get_paths()['include'], m.EXTENSION_SUFFIXES[0].split('.')[1])"
    )
    version = re.sub(r"^.*?([\d.]*)$", r"\1", name) or "none"
    for path in [name, *map(str, sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")))]:
        try:
            done = subprocess.run([path, "-c", code], capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0 and Path(done.stdout.split()[0], "Python.h").exists():
            include, tag = done.stdout.split()
            return Python(path, include, tag)
    print(f"build_wheel: {name} is not installed, or without headers: the wheel has no library for it", flush=True)
    return None


def headers_of(package: str, release: str, prefix: str, work: Path) -> Path:
    """Return a folder with the headers of a package's release, downloaded with pip unless they are there."""
    folder = work / f"{package}-{release}"
    if folder.exists():
        return folder
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work) as part:
        # The headers are those of every Python: any will do that the release has a wheel for.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--no-cache-dir", "--python-version", "3.12", "--dest", part, f"{package}=={release}"]
        subprocess.run(command, check=True)
        (wheel,) = Path(part).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(part, "out"), [name for name in archive.namelist() if name.startswith(prefix)])
        os.replace(Path(part, "out"), folder)
    return folder


def copy_sources(folder: Path) -> Path:
    """Copy what the wheel is made of, without builds; return the folder."""
    tree = folder / "tree"
    shutil.copytree(ROOT / "torch_xla", tree / "torch_xla", ignore=shutil.ignore_patterns("__pycache__", "builds"))
    autoload = tree / "torch_xla_autoload"
    shutil.copytree(ROOT / autoload.name, autoload, ignore=shutil.ignore_patterns("__pycache__", "builds"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    return tree


def place_of(tree: Path, release: str, name: str) -> Path:
    """Return the path at which the package looks for a library, ``<library>:<tag>``."""
    library, tag = name.split(":")
    packages = {
        "_torch_xla_recorder": "torch_xla/_engine/recorder",
        "_torch_xla_cpu_kernels": "torch_xla/_engine/cpu_backend",
        "_torch_xla_device_guard": "torch_xla_autoload",
    }
    package = tree / packages[library]
    folder = prebuilt.folder_name(release, tag, hash_sources(package / "csrc"))
    return package / prebuilt.FOLDER / folder / "wheel" / f"{library}.so"


def compile_libraries(headers: Path, ffi: Path, pythons: list[Python], work: Path) -> dict[str, Path]:
    """Compile the libraries for one torch, unless they exist; return their paths by ``<library>:<tag>``."""
    stamp = hash_headers(headers)
    recorder, kernels = sorted(ENGINE.glob("recorder/csrc/**/*.cpp")), sorted(ENGINE.glob("cpu_backend/csrc/**/*.cpp"))
    half = {python: [f for f in recorder if includes_python(f) == python] for python in (True, False)}
    builds = work / "builds"
    builds.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiler = Compiler(builds, stamp, headers)
        plain = pool.submit(compiler.compile, "units", half[False], ["-DTORCH_EXTENSION_NAME=_torch_xla_recorder"])
        kernels_object = pool.submit(compiler.compile, "kernels", kernels, [f"-isystem{ffi}"])
        guard = pool.submit(compiler.compile, "guard", sorted((ROOT / "torch_xla_autoload").glob("csrc/*.cpp")), [])
        bound = {python.tag: pool.submit(compiler.compile, *python_half(python, half[True])) for python in pythons}
        found = {f"_torch_xla_cpu_kernels:{platform_of(pythons)}": compiler.link([kernels_object.result()])}
        found[f"_torch_xla_device_guard:{platform_of(pythons)}"] = compiler.link([guard.result()])
        for tag, job in bound.items():
            found[f"_torch_xla_recorder:{tag}"] = compiler.link([job.result(), plain.result()])
    return found


def includes_python(file: Path) -> bool:
    """Return whether a source file includes Python's headers: itself, or by headers of the recorder."""
    text = file.read_text()
    if re.search(r"#include [<\"](pybind11/|torch/csrc/|torch/extension|Python\.h)", text):
        return True
    folder = next(parent for parent in file.parents if parent.name == "csrc")
    own = [folder / name for name in re.findall(r'#include "([^"]+)"', text)]
    return any(includes_python(header) for header in own if header.is_file())


def python_half(python: Python, units: list[Path]) -> tuple[str, list[Path], list[str]]:
    """Return the arguments that compile the half of the recorder that depends on the Python."""
    return python.tag, units, ["-DTORCH_EXTENSION_NAME=_torch_xla_recorder", f"-I{python.include}"]


def platform_of(pythons: list[Python]) -> str:
    """Return the platform part of the tags, such as ``x86_64-linux-gnu``."""
    return pythons[0].tag.split("-", 2)[2]


def hash_headers(headers: Path) -> str:
    """Return a hash of all headers of a torch. Its version is a macro that the libraries do not use."""
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(headers.rglob("*.h")):
        if file.name != "version.h":
            digest.update(str(file.relative_to(headers)).encode() + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Compiler:
    """Compiles for one torch into the folder ``builds``. A file's name is a hash of all that determines its content."""

    builds: Path
    torch: str
    headers: Path

    def compile(self, name: str, units: list[Path], flags: list[str]) -> Path:
        """Compile the units as one; return the object."""
        folder = next(parent for parent in units[0].parents if parent.name == "csrc")
        sources = "".join(f'#include "{unit}"\n' for unit in units)
        command = [CXX, *prebuilt.FLAGS, *_EXTRA, f"-I{folder}", f"-isystem{self.headers}"]
        command += [f"-isystem{self.headers}/torch/csrc/api/include", *flags]
        content = hash_sources(folder) + sources + self.torch + " ".join(command)
        target = self.builds / f"{name}-{hashlib.blake2b(content.encode(), digest_size=12).hexdigest()}.o"
        if not target.exists():
            print(f"build_wheel:   compiling {name} ({self.headers.parents[1].name})", flush=True)
            with tempfile.TemporaryDirectory(dir=self.builds) as part:
                Path(part, "unity.cpp").write_text(sources)
                subprocess.run([*command, "-c", f"{part}/unity.cpp", "-o", f"{part}/unity.o"], check=True)
                os.replace(f"{part}/unity.o", target)
        return target

    def link(self, objects: list[Path]) -> Path:
        """Link the objects into a stripped library; return its path."""
        name = "-".join(file.stem for file in objects)
        target = self.builds / f"{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}.so"
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=self.builds) as part:
                # Names that the loader finds torch's loaded libraries by; their symbols are resolved then.
                for library in LIBRARIES:
                    stand_in = f"{part}/lib{library}.so"
                    soname = f"-Wl,-soname,lib{library}.so"
                    subprocess.run([CXX, "-shared", "-x", "c++", "/dev/null", soname, "-o", stand_in], check=True)
                command = [CXX, "-shared", "-s", *map(str, objects), f"-L{part}", "-Wl,--no-as-needed"]
                command += [f"-l{library}" for library in LIBRARIES] + ["-o", f"{part}/library.so"]
                subprocess.run(command, check=True)
                os.replace(f"{part}/library.so", target)
        return target


def make_wheel(tree: Path, dist: Path) -> Path:
    """Make the wheel, for any Python 3 on the glibc that its libraries need; return its path."""
    libraries = list(tree.rglob("builds/**/*.so"))
    platform = f"manylinux_{glibc_version(libraries)}_{os.uname().machine}"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tree.parent)]
    command += [f"--config-settings=--build-option=--plat-name={platform}", str(tree)]
    subprocess.run(command, check=True)
    (wheel,) = tree.parent.glob("*.whl")
    dist.mkdir(exist_ok=True)
    return Path(shutil.copy(wheel, dist))


def glibc_version(libraries: list[Path]) -> str:
    """Return the newest version of glibc that a symbol of the libraries needs, such as ``2_34``."""
    found: set[tuple[int, int]] = set()
    for library in libraries:
        text = subprocess.run(["objdump", "-T", str(library)], check=True, capture_output=True, text=True).stdout
        found |= {(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", text)}
    return "_".join(map(str, max(found)))


def hash_sources(folder: Path) -> str:
    """Return the hash by which the package finds the libraries of these sources."""
    files = sorted(file for pattern in ("*.cpp", "*.h") for file in folder.rglob(pattern))
    found: str = prebuilt.hash_sources(file for file in files if not file.name.startswith("."))
    return found


if __name__ == "__main__":
    sys.exit(main())
