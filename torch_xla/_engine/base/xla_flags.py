"""The flags of XLA in this process. XLA parses XLA_FLAGS once, so a program depends on the value of that time.

    not read -> read, when the backend starts or the first program is named -> never read again

A flags file (XLA_FLAGS=PATH, --flagfile=PATH) counts with its content.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from torch_xla._engine.compat import debug_options

_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_FLAG_FILE = re.compile(r"--?flagfile[= ](\S+)")


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that the backend starts with.

    ``variables``: the environment's. ``text``: XLA_FLAGS and the content of its files. ``parsed``: a hash of the
    options that XLA has made of them; these count where jax started its backend before torch_xla looked.
    """

    variables: dict[str, str]
    text: str
    parsed: str

    def identity(self) -> list[str]:
        """Return all that a compiled program depends on, for its key."""
        return [*(f"{name}={text}" for name, text in self.variables.items()), self.text, self.parsed]

    def changed_late(self) -> list[str]:
        """Return the variables whose values have changed since."""
        return [name for name, text in self.variables.items() if os.environ.get(name, "") != text]


@functools.cache
def read() -> Flags:
    """Return the flags of this process; the first call reads them."""
    variables = {name: os.environ.get(name, "") for name in _VARIABLES}
    text = variables["XLA_FLAGS"]
    parsed = hashlib.sha256(debug_options.serialize_options()).hexdigest()
    return Flags(variables, "\n".join([text, *_contents(text)]), parsed)


def _contents(text: str) -> list[str]:
    """The files that XLA_FLAGS names: a value that does not start with a dash is the path of one."""
    names = _FLAG_FILE.findall(text)
    if text.strip() and not text.strip().startswith("-"):
        names.append(text.strip())
    found = []
    for name in names:
        try:
            found.append(Path(name).read_text(errors="replace"))
        except OSError:  # XLA itself reports it
            found.append("")
    return found
