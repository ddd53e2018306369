"""Checks the subjects of commits: `area: imperative summary`, at most 72 characters.

python scripts/commit_subject.py FILE              a message in a file, as git calls a commit-msg hook
python scripts/commit_subject.py --range A..B      the commits of a range
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from lint_rules.function_names import FUNCTION_WORDS, is_participle

LIMIT = 72

#: One area or several: `recorder:`, `ci, docs:`, `lowering/rules:`.
_AREA = re.compile(r"[a-z0-9][\w./+-]*(?:, [a-z0-9][\w./+-]*)*: ")

#: What git writes itself.
_GENERATED = re.compile(r'Merge |Revert "|Reapply "|(?:fixup|squash|amend)! ')

#: Imperatives that end like a third person or a participle.
_IMPERATIVES = frozenset({"alias", "bias", "bring", "focus", "string", "shed"})


def problem_of(subject: str) -> str | None:
    """What is wrong with a subject and how to write it, or None."""
    if _GENERATED.match(subject):
        return None
    if len(subject) > LIMIT:
        return f"has {len(subject)} characters: shorten it to {LIMIT}, and explain in the body"
    area = _AREA.match(subject)
    if area is None:
        return "has no area: begin with the package or folder, as in `lowering: add a rule for aten::lerp`"
    verb = subject[area.end() :].split(" ")[0]
    if not re.fullmatch(r"[a-z]+(?:-[a-z]+)*", verb):
        return f"begins with {verb!r} after the area: begin with a verb in lower case, as in `add`, `fix`, `remove`"
    if verb not in _IMPERATIVES and (
        verb in FUNCTION_WORDS or is_participle(verb) or (verb.endswith("s") and not verb.endswith("ss"))
    ):
        return f"begins with {verb!r} after the area: use the imperative, as in `add`, not `adds`, `added` or `adding`"
    if subject.endswith("."):
        return "ends with a full stop: leave it out"
    return None


def subject_of(message: str) -> str:
    """The first line of a message that is no comment."""
    return next((line.strip() for line in message.splitlines() if line.strip() and not line.startswith("#")), "")


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks the subjects of commits.")
    parser.add_argument("file", nargs="?", type=Path, help="a commit message")
    parser.add_argument("--range", help="check the commits of this range instead, as in main..HEAD")
    options = parser.parse_args()
    if (options.file is None) == (options.range is None):
        parser.error("pass either a file or --range")
    if options.range is None:
        subjects = [subject_of(options.file.read_text())]
    else:
        log = ["git", "log", "--no-merges", "--format=%s", options.range, "--"]
        subjects = subprocess.run(log, check=True, capture_output=True, text=True).stdout.splitlines()
    problems = [(subject, problem) for subject in subjects if (problem := problem_of(subject))]
    for subject, problem in problems:
        print(f"commit subject {subject!r} {problem}", file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
