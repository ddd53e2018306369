"""All environment variables that torch_xla reads, in one table.

Each variable is an attribute of :class:`Settings`, typed and named like the variable::

    from torch_xla._engine.base.settings import settings
    if settings.XLA_SYNC_WAIT: ...

A variable is read on first access and cached: scripts may set it after ``import torch_xla``, but cannot change it under
a running engine. An empty value counts as unset, unless the type of the variable allows it. This module imports nothing
of torch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


@dataclass(frozen=True)
class SettingType(Generic[T]):
    """How the text of a variable is parsed. ``parse`` raises ValueError; ``form`` describes the accepted values."""

    parse: Callable[[str], T]
    form: str
    empty: bool = False  # whether an empty string is a value


def _or_none(kind: SettingType[T]) -> SettingType[T | None]:
    """Return the same type for a variable without a default, which is None if the environment does not set it."""
    return SettingType(kind.parse, kind.form)


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


def _parse_choice(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(text)
        return text.lower()

    return parse


def _logs(text: str) -> tuple[tuple[str, str], ...]:
    """Return (name below torch_xla, "+", "-" or "") for each name."""
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.lstrip("+-").replace("_", "").isalpha() for part in parts):
        raise ValueError(text)
    return tuple((part.lstrip("+-"), part[0] if part[0] in "+-" else "") for part in parts)


def _weight(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise ValueError(text)
    return value


def _folder(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # the user has no home folder
        raise ValueError(text) from error


FLAG = SettingType(_flag, "1 or 0 (also true/false, yes/no, on/off)")
COUNT = SettingType(_at_least(1), "an integer of at least 1")
NUMBER = SettingType(_at_least(0), "an integer of at least 0")
NUMBER_OR_NONE = _or_none(NUMBER)
LEVEL_OR_NONE: SettingType[int | None] = SettingType(
    lambda text: int(_parse_choice(("0", "1", "2"))(text)), "0, 1 or 2"
)
PATH: SettingType[str] = SettingType(str, "the path of a file")
STREAM: SettingType[str] = SettingType(str, "the path of a file, or STDOUT or STDERR")
LOGS: SettingType[tuple[tuple[str, str], ...]] = SettingType(
    _logs, "comma-separated names, each with an optional prefix: + for more detail, - for errors only"
)
TEXT: SettingType[str] = SettingType(str, "a string")
NAMES_OR_NONE: SettingType[str | None] = SettingType(str, "comma-separated names, or nothing", empty=True)
FRACTIONS = SettingType(_fractions, "colon-separated numbers between 0 and 1, exclusive, such as 0.5:0.9")
WEIGHT = SettingType(_weight, "a number of at least 0 and below 1")
DEVICE_KIND: SettingType[str] = SettingType(str.upper, "the name of a device type")
FOLDER = SettingType(_folder, "the path of a folder")
FOLDER_OR_NONE = _or_none(FOLDER)
#: None: unset. An empty path: disabled.
FOLDER_OR_EMPTY: SettingType[Path | None] = SettingType(
    lambda text: FOLDER.parse(text) if text else Path(), "the path of a folder, or nothing", empty=True
)
FILE_OR_NONE = _or_none(SettingType(FOLDER.parse, "the path of a file"))
GRAPH_FORMATS = ("text", "dot", "hlo", "stablehlo")
GRAPH_FORMAT = SettingType(_parse_choice(GRAPH_FORMATS), "one of " + ", ".join(GRAPH_FORMATS))


CHECK_INDICES = SettingType(_parse_choice(("0", "1", "auto")), "0, 1 or auto")
TRACEBACKS = SettingType(_parse_choice(("short", "full")), "short or full")
_POLICIES = ("auto", "eager", "compile")
COMPILE_POLICY = SettingType(_parse_choice(_POLICIES), "one of " + ", ".join(_POLICIES))


class Setting(Generic[T]):
    """An environment variable: its type, its default (as written in the environment) and its meaning.

    A descriptor of :class:`Settings`: its name is that of the attribute, and reading the attribute returns its value.
    """

    def __init__(
        self,
        kind: SettingType[T],
        default: str | None,
        meaning: str,
        *aliases: str,
        deprecated: tuple[str, ...] = (),
    ) -> None:
        self.name = ""
        self.kind, self.default, self.meaning = kind, default, meaning
        self.aliases, self.deprecated = aliases, deprecated

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name, its aliases and its deprecated names, in order of precedence."""
        return (self.name, *self.aliases, *self.deprecated)

    @overload
    def __get__(self, instance: None, owner: type[Settings]) -> Setting[T]: ...
    @overload
    def __get__(self, instance: Settings, owner: type[Settings]) -> T: ...
    def __get__(self, instance: Settings | None, owner: type[Settings]) -> Setting[T] | T:
        if instance is None:
            return self
        # Cache it as an instance attribute, which hides this descriptor: later reads cost nothing.
        value = instance.__dict__[self.name] = self.read()
        return value

    def source(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Return the spelling under which the environment sets this variable, or None if it is unset."""
        given = {name: environment[name] for name in self.spellings if name in environment}
        return next((name for name, text in given.items() if text or self.kind.empty), None)

    def read(self) -> T:
        """Return the current value in the environment.

        Warns once if the environment uses a deprecated name.

        Raises:
            ValueError: The text cannot be parsed. The message names the variable, its value and the expected form.
        """
        source = self.source()
        if source in self.deprecated:
            old = [name for name in self.deprecated if os.environ.get(name)]
            self._warn_deprecated(old, self._text(source, os.environ))
        return self.parse(os.environ)

    def parse(self, environment: Mapping[str, str]) -> T:
        """Return the value in an environment, without warnings. Raises ValueError as ``read``."""
        source = self.source(environment)
        text = self.default if source is None else self._text(source, environment)
        if text is None:
            return None  # type: ignore[return-value]  # only kinds that include None have no default
        try:
            return self.kind.parse(text)
        except ValueError:
            raise ValueError(f"environment variable {source}={text!r} is not {self.kind.form}") from None

    def _text(self, source: str, environment: Mapping[str, str]) -> str:
        return environment[source]

    def _warn_deprecated(self, old: list[str], text: str) -> None:
        if _warned_deprecated.isdisjoint(old):
            _warned_deprecated.update(old)
            subject = f"variable {old[0]} is" if len(old) == 1 else f"variables {' and '.join(old)} are"
            warnings.warn(
                f"torch_xla: environment {subject} deprecated and will be removed in the next release; "
                f"set {self.name}={text} instead",
                FutureWarning,
                stacklevel=2,
            )


_warned_deprecated: set[str] = set()  # deprecated names that this process has warned about


class _CompilePolicySetting(Setting[str]):
    """TORCH_XLA_COMPILE_POLICY, which replaces two deprecated variables by the nearest policy."""

    class _Replaced:
        TORCH_XLA_STORM = Setting(
            SettingType(_parse_choice(("interpret", "compile")), "interpret or compile"), "interpret", ""
        )
        TORCH_XLA_FIRST_RUN = Setting(
            SettingType(_parse_choice(("auto", "eager", "compile")), "auto, eager or compile"), "auto", ""
        )

    def _text(self, source: str, environment: Mapping[str, str]) -> str:
        if source not in self.deprecated:
            return environment[source]
        unstable, first = (getattr(self._Replaced, name).parse(environment) for name in self.deprecated)
        return "compile" if first == "compile" or (first, unstable) == ("auto", "compile") else "auto"


def _has_home() -> bool:
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


class Settings:
    """The table. Order: devices, dtypes, graph, execution, reports, debugging, files."""

    PJRT_DEVICE = Setting(
        DEVICE_KIND,
        "",
        "device type to use: CPU (jax starts no other backend), CUDA or TPU; unset: the best that jax finds",
    )
    CPU_NUM_DEVICES = Setting(COUNT, "1", "number of xla devices to create from this machine's CPU")
    CUDA_VISIBLE_DEVICES = Setting(NAMES_OR_NONE, None, "the GPUs that are visible to this process; empty: none")
    XRT_TPU_CONFIG = Setting(TEXT, "", "legacy (XRT) TPU configuration, e.g. localservice;0;localhost:51011")
    XRT_DEVICE_MAP = Setting(
        TEXT, "", "legacy (XRT) device map, e.g. CPU:0;/job:localservice/replica:0/task:0/device:XLA_CPU:0"
    )
    XRT_WORKERS = Setting(TEXT, "", "legacy (XRT) worker addresses, e.g. localservice:0;grpc://localhost:40934")
    COLAB_TPU_ADDR = Setting(TEXT, "", "legacy (XRT) address of the remote TPU of a Colab runtime")
    TPU_ACCELERATOR_TYPE = Setting(TEXT, "", "TPU type and size, e.g. v4-8; set by TPU machines")

    TORCH_XLA_DIST = Setting(TEXT, "", "the xla_dist job that this process belongs to; set by xla_dist")
    TORCH_XLA_GRACE_PERIOD = Setting(
        COUNT, "30", "seconds that processes of spawn have to exit after SIGTERM to their parent"
    )
    XLA_UNEVEN_HEARTBEAT_TIMEOUT = Setting(
        COUNT,
        "900",
        "seconds without a step after which xla_dist restarts a job whose workers have unequal step counts",
    )
    XLA_EVEN_HEARTBEAT_TIMEOUT = Setting(
        COUNT, "1800", "seconds without a step after which xla_dist restarts a job whose workers have equal step counts"
    )

    RANK = Setting(
        NUMBER, "0", "global rank of this process in its job; set by spawn and torchrun", "XRT_SHARD_ORDINAL"
    )
    WORLD_SIZE = Setting(
        COUNT, "1", "number of processes in the job; set by spawn and torchrun", "XRT_SHARD_WORLD_SIZE"
    )
    LOCAL_RANK = Setting(
        NUMBER, "0", "rank of this process on its machine; set by spawn and torchrun", "XRT_SHARD_LOCAL_ORDINAL"
    )
    LOCAL_WORLD_SIZE = Setting(COUNT, "1", "number of the job's processes on this machine")
    MASTER_ADDR = Setting(TEXT, "", "address of rank 0 for the rendezvous of torchrun's processes")
    MASTER_PORT = Setting(NUMBER, "0", "port for the rendezvous of torchrun's processes")
    TORCHELASTIC_MAX_RESTARTS = Setting(
        NUMBER,
        "0",
        "how often torchrun may restart the processes; above 0, a lost process ends all others within seconds; set by "
        "torchrun",
    )
    TORCH_XLA_RENDEZVOUS_FILE = Setting(
        TEXT,
        "",
        "file for the rendezvous of the processes of spawn; set by spawn",
        deprecated=("TORCH_XLA_RENDEZVOUS",),
    )

    TORCH_XLA_RENDEZVOUS_TIMEOUT = Setting(
        COUNT, "1800", "seconds to wait for other processes of the job", deprecated=("XLA_RENDEZVOUS_TIMEOUT",)
    )

    ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB = Setting(
        NUMBER, "0", "MB of gradients to reduce in one collective; 0: all in one"
    )

    XLA_USE_BF16 = Setting(
        FLAG, "0", "store float32 and float64 tensors as bfloat16 on the device; they keep their dtype in Python"
    )
    XLA_DOWNCAST_BF16 = Setting(FLAG, "0", "store float32 tensors as bfloat16, and float64 as float32, on the device")
    XLA_USE_F16 = Setting(FLAG, "0", "the same as XLA_USE_BF16: unlike float16, bfloat16 needs no loss scaling")
    XLA_DOWNCAST_FP16 = Setting(FLAG, "0", "the same as XLA_DOWNCAST_BF16")
    XLA_USE_32BIT_LONG = Setting(FLAG, "0", "store int64 as int32, uint64 as uint32 on the device; larger values wrap")

    XLA_TRIM_GRAPH_SIZE = Setting(
        COUNT, "10000", "number of pending operations at which the graph is flushed", "TRIM_GRAPH_SIZE"
    )
    TORCH_XLA_AUTO_SYNC = Setting(
        FLAG,
        "1",
        "flush the graph when an optimizer steps twice without a barrier in between, or reads recompute old steps",
        deprecated=("XLA_AUTO_BARRIER",),
    )
    XLA_NO_SPECIAL_SCALARS = Setting(FLAG, "0", "pass also the numbers 0, 1 and -1 as program inputs, not as constants")

    XLA_SYNC_WAIT = Setting(FLAG, "0", "make sync() wait until the device has finished")
    RATE_TRACKER_SMOOTHING = Setting(
        WEIGHT, "0.4", "xm.RateTracker: weight of the previous rate relative to the newest"
    )
    XLA_COMPILATION_CACHE_SIZE = Setting(COUNT, "2048", "number of compiled programs cached in memory")
    XLA_PERSISTENT_CACHE_PATH = Setting(
        FOLDER_OR_EMPTY,
        None,
        "folder of the persistent compilation cache; unset: programs in TORCH_XLA_CACHE_DIR; empty: disabled",
    )
    TORCH_XLA_PERSISTENT_CACHE_MAX_GB = Setting(
        NUMBER_OR_NONE,
        None,
        "size limit of the persistent compilation cache in GiB (least recently used programs go first); 0: no limit; "
        "unset: 4, but no limit if XLA_PERSISTENT_CACHE_PATH is set",
        deprecated=("TORCH_XLA_PERSISTENT_CACHE_GB",),
    )
    XLA_PERSISTENT_CACHE_READ_ONLY = Setting(
        FLAG, "0", "read compiled programs from XLA_PERSISTENT_CACHE_PATH, but write none"
    )
    TORCH_XLA_CPU_KERNELS = Setting(
        FLAG, "1", "CPU programs call ATen's kernels where they are faster (convolutions, some gradients)"
    )
    TORCH_XLA_KEEP_HEAP = Setting(
        FLAG,
        "1",
        "keep up to 64 MB of freed memory in the process, so that CPU programs can use it again; 0: malloc decides",
    )
    TORCH_XLA_WARN_FALLBACK = Setting(
        FLAG, "1", "warn once for each operator that falls back to the CPU", deprecated=("XLA_FALLBACK_WARN",)
    )

    TORCH_XLA_CHECK_INDICES = Setting(
        CHECK_INDICES,
        "auto",
        "programs check indices, class targets, integer divisors and probabilities, and sync() or the next read raises "
        "torch's error. auto: on CPU devices, up to 65,536 values of an operand; 1: on all devices; 0: no checks",
    )
    XLA_METRICS_SAMPLES = Setting(COUNT, "1024", "number of recent samples that a metric stores for its percentiles")
    XLA_METRICS_PERCENTILES = Setting(
        FRACTIONS, "0.01:0.05:0.1:0.2:0.5:0.8:0.9:0.95:0.99", "percentiles in metric reports"
    )

    XLA_IR_DEBUG = Setting(FLAG, "0", "record the user's Python stack and torch.nn module with each operation")
    XLA_HLO_DEBUG = Setting(FLAG, "0", "like XLA_IR_DEBUG, and add both to the HLO metadata")
    XLA_SAVE_TENSORS_FILE = Setting(
        FILE_OR_NONE, None, "file to which each executed graph is appended; the rank is added to its name: FILE.0"
    )
    XLA_SAVE_TENSORS_FMT = Setting(GRAPH_FORMAT, "text", "format of the graphs in XLA_SAVE_TENSORS_FILE")
    SAVE_GRAPH_FMT = Setting(GRAPH_FORMAT, "text", "format of the graphs that torch_xla.debug.graph_saver writes")
    TORCH_XLA_COMPILE_POLICY = _CompilePolicySetting(
        COMPILE_POLICY,
        "auto",
        "when CPU devices compile a graph instead of interpreting it. auto: when it runs again, except at lines whose "
        "graph keeps changing; eager: never; compile: always",
        deprecated=("TORCH_XLA_STORM", "TORCH_XLA_FIRST_RUN"),
    )
    XLA_SYNC_TENSORS_OPBYOP = Setting(
        FLAG, "0", "compile and run each operation of a step separately", "SYNC_TENSORS_OPBYOP"
    )
    XLA_GET_TENSORS_OPBYOP = Setting(
        FLAG, "0", "compile and run each operation that a read value depends on separately", "GET_TENSORS_OPBYOP"
    )
    XLA_USE_EAGER_DEBUG_MODE = Setting(
        FLAG, "0", "run every operation eagerly, as torch_xla.experimental.eager_mode(True) does"
    )
    MODELCMP_SAVEDIR = Setting(
        FOLDER_OR_NONE, None, "folder that torch_xla.debug.model_comparator.save writes to; unset: disabled"
    )
    XLA_METRICS_FILE = Setting(STREAM, "", "append the metrics report to this file at the end of every step")
    TORCH_XLA_EXPLAIN_RECOMPILATIONS = Setting(
        NUMBER,
        "3",
        "log explanations from the n-th unexpected recompilation on; 0 disables them",
        deprecated=("XLA_EXPLAIN_RECOMPILATIONS",),
    )
    TORCH_XLA_LOGS = Setting(
        LOGS, "", "log to stderr: all, compile, execute, transfer, fallback, recompilation, memory, checkpoint"
    )

    XLA_EMIT_STEPLOG = Setting(FLAG, "0", "log a line to stderr at every step")
    PT_XLA_DEBUG = Setting(FLAG, "0", "analyze compilations and executions; print a summary at exit")
    PT_XLA_DEBUG_LEVEL = Setting(
        LEVEL_OR_NONE, None, "1: analyze compilations, 2: also executions, 0: nothing; unset: 2 with PT_XLA_DEBUG"
    )
    PT_XLA_DEBUG_FILE = Setting(PATH, "", "append the analyses to this file instead of stderr")
    PT_XLA_DEBUG_MAX_FRAME = Setting(COUNT, "8", "maximum number of Python frames in an analysis")

    TORCH_XLA_TRACEBACK = Setting(
        TRACEBACKS,
        "short",
        "short: tracebacks of errors omit the internal frames of torch_xla and jax; full: show them",
    )

    TORCH_XLA_CACHE_DIR = Setting(
        FOLDER_OR_NONE,
        None,
        "cache folder of torch_xla, e.g. for the built recorder; unset: torch_xla inside XDG_CACHE_HOME",
    )
    XDG_CACHE_HOME = Setting(FOLDER, "~/.cache", "the user's cache folder for all applications")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings.{name} cannot be assigned; set the environment variable {name}")

    def get(self, name: str) -> Any:
        """Return the value of a variable by its name or an alias. Raises KeyError for a name not in the table."""
        for variable in variables():
            if name in variable.spellings:
                return getattr(self, variable.name)
        raise KeyError(f"{name} is not a setting; `torch-xla settings` lists them")

    @contextlib.contextmanager
    def uncached(self) -> Iterator[None]:
        """Cache no value that is first read in the block: scripts may still set these variables."""
        before = dict(self.__dict__)
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)

    def reload(self) -> None:
        """Clear the cached values, so that each variable is read again. For tests; the engine may hold old values."""
        self.__dict__.clear()

    def enabled_after_read(self, names: Sequence[str]) -> list[str]:
        """Return the flags among ``names`` that the environment sets now, but did not when they were read."""
        known = self.__dict__
        return [name for name in names if known.get(name) is False and Settings.__dict__[name].read()]

    def changed_after_read(self, names: Sequence[str]) -> list[str]:
        """Return the variables among ``names`` that were read, and whose value in the environment has changed since."""
        return [name for name in names if name in self.__dict__ and self._is_another(name)]

    def _is_another(self, name: str) -> bool:
        try:
            return bool(Settings.__dict__[name].read() != self.__dict__[name])
        except ValueError:  # the new text is invalid, so it differs from the value read
            return True

    def export(self, name: str, text: str) -> None:
        """Set a variable for this process and its child processes. Raises ValueError for text that cannot be parsed."""
        variable = next(variable for variable in variables() if variable.name == name)
        before = os.environ.get(name)
        os.environ[name] = text
        try:
            self.__dict__[name] = variable.read()
        except ValueError:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before
            raise

    @property
    def cache_dir(self) -> Path:
        """The folder for files that torch_xla stores between runs. It may not exist yet.

        The temporary folder for a user without a home folder, as in a container that runs with --user 1234.
        """
        if self.TORCH_XLA_CACHE_DIR is not None:
            return self.TORCH_XLA_CACHE_DIR
        if Settings.XDG_CACHE_HOME.source() is None and not _has_home():
            return self.temporary_cache_dir()
        return self.XDG_CACHE_HOME / "torch_xla"

    def temporary_cache_dir(self) -> Path:
        """Return the fallback folder if ``cache_dir`` cannot be used."""
        return Path(tempfile.gettempdir()) / f"torch_xla-{os.geteuid()}"


def variables() -> Iterator[Setting[Any]]:
    """Return the variables in the order of the table."""
    return (value for value in vars(Settings).values() if isinstance(value, Setting))


settings = Settings()
