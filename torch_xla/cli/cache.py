"""``torch-xla cache``: list, prune, export and import the programs of the persistent compilation cache."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torch_xla._engine.base import command_line
from torch_xla._engine.compilation.persistent_cache import archive, maintenance
from torch_xla._engine.compilation.persistent_cache.maintenance import CacheFile
from torch_xla.cli.formatting import format_age, format_size, format_table, parse_age, parse_size

_ROWS = 20  # programs that `list` shows without --all

_HELP = """\
Manage the persistent compilation cache: the programs that earlier processes compiled. By default the folder that a
script in this environment would use (XLA_PERSISTENT_CACHE_PATH, or ~/.cache/torch_xla/programs).
"""

_EPILOG = """\
examples:
  {prog} list                               the most recently used programs
  {prog} prune --unused-for 30d             remove programs that were not used for 30 days
  {prog} prune --max-size 2GB --dry-run     what would be removed to fit into 2 GB
  {prog} export programs.tar.gz             for machines of the same kind, with the same versions
  {prog} import programs.tar.gz

A program is used only with the versions of torch_xla, jax and the device that compiled it. Loading one runs code from
it: import archives only from users that you trust.

exit codes:
  0  success
  1  the folder or the archive cannot be used
  2  the command line is wrong
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP, _EPILOG.format(prog=prog))
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions")

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=summary, description=f"{summary.capitalize()}.", allow_abbrev=False)
        action.add_argument("--dir", type=Path, metavar="DIR", help="the cache folder")
        return action

    listing = add("list", "list the programs, the most recently used first")
    listing.add_argument("--all", action="store_true", help=f"all programs, not only {_ROWS}")
    listing.add_argument("--json", action="store_true", help="all programs as JSON")
    add("size", "print the number of programs and their size")
    prune = add("prune", "remove programs by age, size or format")
    prune.add_argument("--unused-for", type=parse_age, metavar="AGE", help="not used for, e.g., 12h, 30d or 2w")
    prune.add_argument("--max-size", type=parse_size, metavar="SIZE", help="the least recently used beyond, e.g., 2GB")
    prune.add_argument("--old-formats", action="store_true", help="those that this version of torch_xla cannot read")
    prune.add_argument("--dry-run", action="store_true", help="remove nothing, print what would be removed")
    add("clear", "remove all programs").add_argument("--yes", "-y", action="store_true", help="do not ask")
    export = add("export", "write the programs to a tar file")
    export.add_argument("--used-within", type=parse_age, metavar="AGE", help="only those used within, e.g., 7d")
    export.add_argument("file", type=Path, help="the archive, compressed if its name ends in .gz or .tgz")
    imports = add("import", "add the programs of a tar file")
    imports.add_argument(
        "--trust", action="store_true", help="also if another user owns the file or may write to it: it can run code"
    )
    imports.add_argument("file", type=Path, help="the archive")
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Run one action and return the exit code."""
    parser = make_parser(prog)
    options = parser.parse_args(argv)
    if (
        options.action == "prune"
        and options.unused_for is None
        and options.max_size is None
        and not options.old_formats
    ):
        parser.error("prune: specify --unused-for, --max-size or --old-formats")
    folder = options.dir.expanduser().absolute() if options.dir else maintenance.configured_folder()
    if folder is None:
        print(f"{prog}: the cache is disabled (XLA_PERSISTENT_CACHE_PATH is empty); name it by --dir", file=sys.stderr)
        return 1
    try:
        if options.action != "import" and not folder.is_dir():
            print(f"no programs: {folder} does not exist")
            return 0
        return _ACTIONS[options.action](options, folder)
    except BrokenPipeError:
        raise
    except (OSError, archive.ArchiveError) as error:
        print(f"{prog} {options.action}: {error}", file=sys.stderr)
        return 1


def _list(options: argparse.Namespace, folder: Path) -> int:
    files = [file for file in maintenance.list_files(folder) if file.is_program]
    if options.json:
        rows = [
            {"file": str(f.path), "bytes": f.size, "last_used": f.last_used, "info": f.info()} for f in files
        ]  # fmt: skip
        print(json.dumps(rows, indent=1))
        return 0
    shown = files if options.all else files[:_ROWS]
    if shown:
        heading = ("program", "size", "last used", "compiled", "for", "jax")
        print(format_table([heading, *map(_row, shown)], right=(1, 2, 3)))
    if len(shown) < len(files):
        print(f"... and {len(files) - len(shown)} more (--all shows them)")
    print(_total(files, folder))
    return 0


def _row(file: CacheFile) -> tuple[str, ...]:
    now, info = time.time(), file.info()
    name, size = file.path.stem[:12], format_size(file.size)
    used = f"{format_age(now - file.last_used)} ago"
    if info is None:
        return name, size, used, "", "(another version)", ""
    created = f"{format_age(now - info.get('created', now))} ago"
    device, count = info.get("device", ""), info.get("devices", 1)
    platform = str(info.get("platform", ""))
    place = f"{platform}, {device}" if device and device != platform else platform
    return name, size, used, created, f"{count} x {place}" if count > 1 else place, str(info.get("jax", ""))


def _total(files: Sequence[CacheFile], folder: Path) -> str:
    programs = [file for file in files if file.is_program]
    count = len(programs)
    return f"{count} program{'s'[: count != 1]}, {format_size(sum(file.size for file in programs))} in {folder}"


def _size(_: argparse.Namespace, folder: Path) -> int:
    print(_total(maintenance.list_files(folder), folder))
    return 0


def _prune(options: argparse.Namespace, folder: Path) -> int:
    files = maintenance.list_files(folder)
    chosen = maintenance.files_to_prune(files, options.unused_for, options.max_size, options.old_formats)
    if options.dry_run:
        print(f"would remove {_count(chosen)}, {format_size(sum(file.size for file in chosen))}")
        return 0
    maintenance.remove_partial_files(folder)
    print(f"removed {_count(chosen)}, {format_size(maintenance.remove_files(chosen))}")
    return 0


def _count(files: Sequence[CacheFile]) -> str:
    count = sum(file.is_program for file in files)
    return f"{count} program{'s'[: count != 1]}"


def _clear(options: argparse.Namespace, folder: Path) -> int:
    files = maintenance.list_files(folder)
    if not options.yes:
        if not sys.stdin.isatty():
            print("torch-xla cache clear: pass --yes to remove all programs without a question", file=sys.stderr)
            return 2
        if input(f"Remove {_total(files, folder)}? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    maintenance.remove_partial_files(folder)
    print(f"removed {_count(files)}, {format_size(maintenance.remove_files(files))}")
    return 0


def _export(options: argparse.Namespace, folder: Path) -> int:
    files = maintenance.list_files(folder)
    left_out = {f.path for f in maintenance.files_to_prune(files, options.used_within, old_formats=True)}
    chosen = [file for file in files if file.path not in left_out]
    archive.export_files(chosen, options.file.expanduser().absolute())
    print(f"wrote {_count(chosen)}, {format_size(options.file.expanduser().stat().st_size)} to {options.file}")
    return 0


def _import(options: argparse.Namespace, folder: Path) -> int:
    new, known = archive.import_files(options.file.expanduser().absolute(), folder, is_trusted=options.trust)
    print(f"added {new} file{'s'[: new != 1]} to {folder}; {known} were there")
    return 0


_ACTIONS: dict[str, Callable[[argparse.Namespace, Path], int]] = {
    "list": _list, "size": _size, "prune": _prune, "clear": _clear, "export": _export, "import": _import,
}  # fmt: skip
