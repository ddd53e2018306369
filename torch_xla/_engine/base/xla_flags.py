"""The XLA flags of this process. XLA parses XLA_FLAGS once, so programs depend on its value at that time.

    not read -> read when the backend starts or the first program key is computed -> never read again

The content of a flags file (XLA_FLAGS=PATH, --flagfile=PATH) is included.
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
    """The flags at the start of the backend.

    ``variables``: environment variables. ``text``: XLA_FLAGS and the content of its files. ``parsed``: a hash of XLA's
    parsed options, which applies if jax started its backend before torch_xla read the environment.
    """

    variables: dict[str, str]
    text: str
    parsed: str

    def identity(self) -> list[str]:
        """Return everything that a compiled program depends on, for its cache key."""
        return [*(f"{name}={text}" for name, text in self.variables.items()), self.text, self.parsed]

    def changed_late(self) -> list[str]:
        """Return the variables whose values have changed since they were read."""
        return [name for name, text in self.variables.items() if os.environ.get(name, "") != text]


@functools.cache
def read() -> Flags:
    """Return the flags of this process; read them on the first call."""
    variables = {name: os.environ.get(name, "") for name in _VARIABLES}
    text = variables["XLA_FLAGS"]
    parsed = hashlib.sha256(debug_options.serialize_options()).hexdigest()
    return Flags(variables, "\n".join([text, *_contents(text)]), parsed)


def _contents(text: str) -> list[str]:
    """Return the content of the files that XLA_FLAGS names: a value that does not start with a dash is a path."""
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
