"""Runs the notebooks and keeps what they print: ``make notebooks``.

    python scripts/docs/notebooks.py --packages .venv [notebooks/00_start.ipynb ...]

The interpreter is this one, which has ipykernel; torch and the like are those of the environment ``--packages``. A cell
that raises ends it with 1. What differs from run to run without meaning (times of cells, ids) is not kept.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT = 600  # seconds for a cell
#: What the kernel calls a cell: a file of another name in every run. A cell's own output names it first.
_FILE = re.compile(r"\S*ipykernel_\d+/\d+\.py")


def environment(packages: Path, home: Path) -> dict[str, str]:
    """What the kernel gets: this checkout and those packages, and a kernel of this interpreter."""
    release = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = packages.absolute() / "lib" / release / "site-packages"
    if not folder.is_dir():
        raise SystemExit(f"notebooks: {folder} is missing: is {packages} an environment of {release}?")
    return {"PYTHONPATH": f"{ROOT}:{folder}", "JUPYTER_DATA_DIR": str(home), "IPYTHONDIR": str(home)}


def run(path: Path, packages: str) -> None:
    """Runs one notebook in a separate folder, and writes it with its outputs. Raises CellExecutionError.

    ``packages``: the folder of modules, which is not kept in what they print.
    """
    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:  # for the files that it writes
        client = NotebookClient(
            notebook, timeout=_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": folder}},
            record_timing=False,
        )  # fmt: skip
        client.execute()
    files: dict[str, str] = {}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        for output in cell.get("outputs", []):
            output.get("metadata", {}).clear()
            if "text" in output:
                output["text"] = _FILE.sub(
                    lambda found, cell=cell: files.setdefault(found[0], f"In[{cell['execution_count']}]"),
                    output["text"],
                )
                for place, name in ((f"{packages}/", ""), (str(Path.home()), "~")):
                    output["text"] = output["text"].replace(place, name)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(notebook, path)
    print(f"{path.name}: {time.perf_counter() - start:.0f} s")


def main() -> int:
    """Runs those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="the environment that has torch, and all else")
    parser.add_argument("notebooks", nargs="*", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(environment(options.packages, Path(home)))
        packages = os.environ["PYTHONPATH"].rpartition(":")[2]
        for path in options.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb")):
            try:
                run(path, packages)
            except CellExecutionError as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
