"""Every environment variable that torch_xla reads, in one table.

A variable is one line of :class:`Settings`; its attribute is typed, and named as the variable is::

    from torch_xla._engine.settings import settings
    if settings.XLA_SYNC_WAIT: ...

A variable is read when it is first asked for, and never again: scripts may set it after ``import torch_xla``, as many
do, but cannot change it under a running engine. An empty value counts as unset. This module imports nothing of torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


@dataclass(frozen=True)
class Kind(Generic[T]):
    """How the text of a variable becomes a value. ``parse`` raises ValueError; ``form`` says what it accepts."""

    parse: Callable[[str], T]
    form: str


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _flag(text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError as error:
        raise ValueError(text) from error


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise ValueError(text)
        return value

    return parse


def _fractions(text: str) -> tuple[float, ...]:
    values = tuple(float(part) for part in text.split(":"))
    if not all(0 < value < 1 for value in values):
        raise ValueError(text)
    return values


FLAG = Kind(_flag, "1 or 0 (also true/false, yes/no, on/off)")
COUNT = Kind(_at_least(1), "an integer of at least 1")
ORDINAL = Kind(_at_least(0), "an integer of at least 0")
TEXT: Kind[str] = Kind(str, "a text")
FRACTIONS = Kind(_fractions, "numbers between 0 and 1, both excluded, with colons between them, as in 0.5:0.9")
DEVICE_KIND: Kind[str] = Kind(str.upper, "the name of a kind of device")
FOLDER = Kind(lambda text: Path(text).expanduser().absolute(), "the path of a folder")
FOLDER_OR_NONE: Kind[Path | None] = Kind(FOLDER.parse, FOLDER.form)


class Variable(Generic[T]):
    """One environment variable: its kind, its default (written as in the environment) and its meaning.

    As a descriptor of :class:`Settings` it takes its name from the attribute and gives back the value.
    """

    def __init__(self, kind: Kind[T], default: str | None, meaning: str, *aliases: str) -> None:
        self.name = ""
        self.kind, self.default, self.meaning, self.aliases = kind, default, meaning, aliases

    def __set_name__(self, owner: type[Settings], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Settings]) -> Variable[T]: ...
    @overload
    def __get__(self, instance: Settings, owner: type[Settings]) -> T: ...
    def __get__(self, instance: Settings | None, owner: type[Settings]) -> Variable[T] | T:
        if instance is None:
            return self
        if self.name not in instance._values:
            instance._values[self.name] = self.read()
        value: T = instance._values[self.name]
        return value

    def __set__(self, instance: Settings, value: T) -> None:
        raise AttributeError(f"settings.{self.name} cannot be assigned; set the environment variable {self.name}")

    def source(self) -> str | None:
        """The spelling (name or alias) under which the environment sets this variable, None where it does not."""
        return next((name for name in (self.name, *self.aliases) if os.environ.get(name)), None)

    def read(self) -> T:
        """The value in the environment as it is now. Raises ValueError that names variable, value and form."""
        source = self.source()
        text = self.default if source is None else os.environ[source]
        if text is None:
            return None  # type: ignore[return-value]  # only kinds that include None have no default
        try:
            return self.kind.parse(text)
        except ValueError:
            raise ValueError(f"environment variable {source}={text!r} is not {self.kind.form}") from None


class Settings:
    """The table. Order: devices, graph, execution, reports, debugging, files."""

    PJRT_DEVICE = Variable(DEVICE_KIND, "", "kind of device to use: CPU, CUDA or TPU; unset: the best that jax finds")
    CPU_NUM_DEVICES = Variable(COUNT, "1", "number of xla devices made from this machine's CPU")

    RANK = Variable(ORDINAL, "0", "this process's ordinal in its job; spawn and torchrun set it")
    WORLD_SIZE = Variable(COUNT, "1", "number of processes in the job; spawn and torchrun set it")
    LOCAL_RANK = Variable(ORDINAL, "0", "this process's ordinal on its machine; spawn and torchrun set it")
    LOCAL_WORLD_SIZE = Variable(COUNT, "1", "number of the job's processes on this machine")
    MASTER_ADDR = Variable(TEXT, "", "the machine of rank 0, where torchrun's processes meet")
    MASTER_PORT = Variable(ORDINAL, "0", "the port on which torchrun's processes meet")
    TORCH_XLA_RENDEZVOUS = Variable(TEXT, "", "the file by which the processes of spawn find each other; spawn sets it")

    XLA_TRIM_GRAPH_SIZE = Variable(
        COUNT, "10000", "pending operations at which the graph is cut and run", "TRIM_GRAPH_SIZE"
    )
    XLA_AUTO_BARRIER = Variable(FLAG, "1", "cut the graph at a second optimizer step that has no barrier before it")
    XLA_NO_SPECIAL_SCALARS = Variable(FLAG, "0", "send also the numbers 0, 1 and -1 as inputs, not as constants")

    XLA_SYNC_WAIT = Variable(FLAG, "0", "sync() waits until the device has finished")
    XLA_COMPILATION_CACHE_SIZE = Variable(COUNT, "2048", "compiled programs kept in memory")
    XLA_FALLBACK_WARN = Variable(FLAG, "1", "warn once for each operation that runs on the CPU instead")

    XLA_METRICS_SAMPLES = Variable(COUNT, "1024", "latest samples a metric keeps for its percentiles")
    XLA_METRICS_PERCENTILES = Variable(
        FRACTIONS, "0.01:0.05:0.1:0.2:0.5:0.8:0.9:0.95:0.99", "percentiles in metric reports"
    )

    TORCH_XLA_CACHE_DIR = Variable(
        FOLDER_OR_NONE, None, "where the built recorder is kept; unset: torch_xla inside XDG_CACHE_HOME"
    )
    XDG_CACHE_HOME = Variable(FOLDER, "~/.cache", "the user's folder for caches of all programs")

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """The value of a variable by its name or an alias. Raises KeyError for a name not in the table."""
        for variable in variables():
            if name in (variable.name, *variable.aliases):
                return getattr(self, variable.name)
        raise KeyError(f"{name} is not a setting; `python -m torch_xla.settings` lists them")

    def reload(self) -> None:
        """Forget what was read, so that each variable is read again. For tests; the engine may hold old values."""
        self._values.clear()

    @property
    def cache_dir(self) -> Path:
        """The folder for files that torch_xla keeps between runs. It need not exist yet."""
        return self.TORCH_XLA_CACHE_DIR or self.XDG_CACHE_HOME / "torch_xla"


def variables() -> Iterator[Variable[Any]]:
    """The variables in the order of the table."""
    return (value for value in vars(Settings).values() if isinstance(value, Variable))


settings = Settings()
