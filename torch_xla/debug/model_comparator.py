"""Compares tensors, and what two runs of a program have saved. layer_comparator.py compares the layers of a module.

    python -m torch_xla.debug.model_comparator FOLDER1 FOLDER2

compares what two runs wrote with save(); it ends with 1 where they differ.
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
    """Sets the folder that save() writes to, over MODELCMP_SAVEDIR; None: save() does nothing."""
    global _folder, _configured
    with _lock:
        _folder, _configured = None if save_dir is None else Path(save_dir), True
        _saved.clear()


def save(name: str, tensor: torch.Tensor, step: int | None = None) -> None:
    """Writes the tensor's values to ``{name}.{n}``: n is ``step``, or counts the calls for the name.

    Only on the first process; does nothing while no folder is set.
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
    """What differs: shapes, dtypes, or the places of up to ``max_diffs`` elements further apart than
    ``atol + rtol * |tensor2|`` (NaN equals NaN). None where nothing does. Tensors may be on any device.
    """
    a, b = tensor1.detach().cpu(), tensor2.detach().cpu()
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{list(a.shape)} vs. {b.dtype}{list(b.shape)}"
    far = ~torch.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    places = far.nonzero().tolist()
    if not places:
        return None
    rows = [f"{len(places)} of {a.numel()} elements differ"]
    for place in places[:max_diffs]:
        x, y = a[tuple(place)].item(), b[tuple(place)].item()
        rows.append(f"  {place}: {x!r} vs. {y!r}, apart by {abs(x - y):.4g}")
    if len(places) > max_diffs:
        rows.append(f"  ... and {len(places) - max_diffs} more")
    return "\n".join(rows)


def tensor_file_compare(
    path1: str | Path, path2: str | Path, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str | None:
    """compare_tensors of two files that save() wrote."""
    return compare_tensors(torch.load(path1), torch.load(path2), rtol, atol, max_diffs)


def compare(
    save_dir1: str | Path, save_dir2: str | Path, rtol: float = 1e-05, atol: float = 1e-08, max_diffs: int = 25
) -> str:
    """Compares two folders that save() wrote: files that only one has, and what differs in the others, in the order
    in which the first run wrote them. An empty text where nothing does.
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
