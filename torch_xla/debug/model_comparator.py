"""Compare tensors, and the tensors saved by two runs of a program. layer_comparator.py compares module layers.

    python -m torch_xla.debug.model_comparator FOLDER1 FOLDER2

compares the tensors that two runs wrote with save(), and exits with code 1 if they differ.
"""

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path

import jax
import torch

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings

_lock = fork_safe_lock()
_folder: Path | None = None
_configured = False
_saved: collections.Counter[str] = collections.Counter()


def configure(save_dir: str | Path | None) -> None:
    """Set the folder that save() writes to, instead of MODELCMP_SAVEDIR; None disables save().

    Args:
      save_dir: the folder, or None.
    """
    global _folder, _configured
    with _lock:
        _folder, _configured = None if save_dir is None else Path(save_dir), True
        _saved.clear()


def save(name: str, tensor: torch.Tensor, step: int | None = None) -> None:
    """Write the tensor to ``{name}.{n}``; n is ``step``, or counts the calls for the name.

    Only the first process writes, and only if a folder is set.

    Args:
      name: name of the tensor.
      tensor: a tensor on any device; waits for its value.
      step: number in the file name; default: the number of earlier calls for the name.
    """
    folder = _folder if _configured else settings.MODELCMP_SAVEDIR
    if folder is None or jax.process_index() != 0:
        return
    with _lock:
        number = _saved[name] if step is None else step
        _saved[name] += 1
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensor.detach().cpu().clone(), folder / f"{name}.{number}")


def compare_tensors(
    tensor1: torch.Tensor, tensor2: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str | None:
    """Return a report of differences in shape, dtype or up to ``max_diffs`` elements; None if there are none.

    Elements differ if they are further apart than ``atol + rtol * |tensor2|``; NaN equals NaN. The tensors may be on
    any device.

    Args:
      tensor1, tensor2: tensors on any device.
      rtol, atol: relative and absolute tolerance.
      max_diffs: maximum number of differing elements in the report.
    """
    a, b = tensor1.detach().cpu(), tensor2.detach().cpu()
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)} vs. {b.dtype}{list(b.shape)}"
    far = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    indices = far.nonzero().tolist()
    if not indices:
        return None
    rows = [f"{len(indices)} of {a.numel()} elements differ"]
    for index in indices[:max_diffs]:
        x, y = a[tuple(index)].item(), b[tuple(index)].item()
        rows.append(f"  {index}: {x!r} vs. {y!r}, apart by {abs(x - y):.4g}")
    if len(indices) > max_diffs:
        rows.append(f"  ... and {len(indices) - max_diffs} more")
    return "\n".join(rows)


def tensor_file_compare(
    path1: str | Path, path2: str | Path, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str | None:
    """Compare two files written by save() with compare_tensors.

    Args:
      path1, path2: the files.
      rtol, atol: relative and absolute tolerance.
      max_diffs: maximum number of differences to list.
    """
    return compare_tensors(torch.load(path1), torch.load(path2), rtol, atol, max_diffs)


def compare(
    save_dir1: str | Path, save_dir2: str | Path, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str:
    """Compare two folders written by save(); return "" if there are no differences.

    Reports files that are in only one folder, then differences, in the order in which the first run wrote the files.

    Args:
      save_dir1, save_dir2: the folders.
      rtol, atol, max_diffs: as for compare_tensors.
    """
    first, second = ({p.name: p for p in Path(folder).iterdir()} for folder in (save_dir1, save_dir2))
    rows = [f"{name}: only in {save_dir1}" for name in sorted(first.keys() - second.keys())]
    rows += [f"{name}: only in {save_dir2}" for name in sorted(second.keys() - first.keys())]
    for name in sorted(first.keys() & second.keys(), key=lambda n: (first[n].stat().st_mtime_ns, n)):
        found = tensor_file_compare(first[name], second[name], rtol, atol, max_diffs)
        rows += [f"{name}: {found}"] if found else []
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("save_dir1")
    parser.add_argument("save_dir2")
    parser.add_argument("--rtol", type=float, default=1e-05)
    parser.add_argument("--atol", type=float, default=1e-08)
    parser.add_argument("--max_diffs", type=int, default=25, help="elements shown per tensor")
    options = parser.parse_args()
    report = compare(options.save_dir1, options.save_dir2, options.rtol, options.atol, options.max_diffs)
    print(report or "no differences")
    return int(bool(report))


if __name__ == "__main__":
    sys.exit(main())
