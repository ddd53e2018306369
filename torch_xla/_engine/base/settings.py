"""Every environment variable that torch_xla reads, in one table.

A variable is one line of :class:`Settings`; its attribute is typed, and named as the variable is::

    from torch_xla._engine.base.settings import settings
    if settings.XLA_SYNC_WAIT: ...

A variable is read when it is first asked for, and never again: scripts may set it after ``import torch_xla``, as many
do, but cannot change it under a running engine. An empty value counts as unset, unless its kind says otherwise. This
module imports nothing of torch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


@dataclass(frozen=True)
class SettingType(Generic[T]):
    """How the text of a variable becomes a value. ``parse`` raises ValueError; ``form`` says what it accepts."""

    parse: Callable[[str], T]
    form: str
    empty: bool = False  # whether an empty text is a value


def _or_none(kind: SettingType[T]) -> SettingType[T | None]:
    """The same kind, for variables that may have no default: None where the environment does not set them."""
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
    """(name below torch_xla, "+", "-" or "") of each part."""
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
    except RuntimeError as error:  # the user has no home
        raise ValueError(text) from error


FLAG = SettingType(_flag, "1 or 0 (also true/false, yes/no, on/off)")
COUNT = SettingType(_at_least(1), "an integer of at least 1")
NUMBER = SettingType(_at_least(0), "an integer of at least 0")
NUMBER_OR_NONE = _or_none(NUMBER)
PATH: SettingType[str] = SettingType(str, "the path of a file")
STREAM: SettingType[str] = SettingType(str, "the path of a file, or STDOUT or STDERR")
LOGS: SettingType[tuple[tuple[str, str], ...]] = SettingType(
    _logs, "names with commas between them, each with + before it for more detail or - for errors only"
)
TEXT: SettingType[str] = SettingType(str, "a text")
NAMES_OR_NONE: SettingType[str | None] = SettingType(str, "names with commas between them, or nothing", empty=True)
FRACTIONS = SettingType(_fractions, "numbers between 0 and 1, both excluded, with colons between them, as in 0.5:0.9")
WEIGHT = SettingType(_weight, "a number of at least 0 and below 1")
DEVICE_KIND: SettingType[str] = SettingType(str.upper, "the name of a kind of device")
FOLDER = SettingType(_folder, "the path of a folder")
FOLDER_OR_NONE = _or_none(FOLDER)
#: None: not set. An empty path: none is wanted.
FOLDER_OR_EMPTY: SettingType[Path | None] = SettingType(
    lambda text: FOLDER.parse(text) if text else Path(), "the path of a folder, or nothing", empty=True
)
FILE_OR_NONE = _or_none(SettingType(FOLDER.parse, "the path of a file"))
GRAPH_FORMATS = ("text", "dot", "hlo", "stablehlo")
GRAPH_FORMAT = SettingType(_parse_choice(GRAPH_FORMATS), "one of " + ", ".join(GRAPH_FORMATS))


WHEN_NEW = SettingType(_parse_choice(("auto", "eager", "compile")), "auto, eager or compile")
IN_STORMS = SettingType(_parse_choice(("interpret", "compile")), "interpret or compile")


class Setting(Generic[T]):
    """One environment variable: its kind, its default (written as in the environment) and its meaning.

    As a descriptor of :class:`Settings` it takes its name from the attribute and gives back the value.
    """

    def __init__(self, kind: SettingType[T], default: str | None, meaning: str, *aliases: str) -> None:
        self.name = ""
        self.kind, self.default, self.meaning, self.aliases = kind, default, meaning, aliases

    def __set_name__(self, owner: type[Settings], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Settings]) -> Setting[T]: ...
    @overload
    def __get__(self, instance: Settings, owner: type[Settings]) -> T: ...
    def __get__(self, instance: Settings | None, owner: type[Settings]) -> Setting[T] | T:
        if instance is None:
            return self
        # As a plain attribute of the instance, which hides this descriptor: from now on reading it costs nothing.
        value = instance.__dict__[self.name] = self.read()
        return value

    def source(self) -> str | None:
        """The spelling (name or alias) under which the environment sets this variable, None where it does not."""
        given = {name: os.environ[name] for name in (self.name, *self.aliases) if name in os.environ}
        return next((name for name, text in given.items() if text or self.kind.empty), None)

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
        "kind of device to use: CPU (jax starts nothing else), CUDA or TPU; unset: the best that jax finds",
    )
    CPU_NUM_DEVICES = Setting(COUNT, "1", "number of xla devices made from this machine's CPU")
    CUDA_VISIBLE_DEVICES = Setting(NAMES_OR_NONE, None, "the GPUs that CUDA shows to this process; empty: none")
    XRT_TPU_CONFIG = Setting(TEXT, "", "the TPU as until 2023, as in localservice;0;localhost:51011")
    XRT_DEVICE_MAP = Setting(
        TEXT, "", "devices as until 2023, as in CPU:0;/job:localservice/replica:0/task:0/device:XLA_CPU:0"
    )
    XRT_WORKERS = Setting(TEXT, "", "where those devices are, as in localservice:0;grpc://localhost:40934")
    COLAB_TPU_ADDR = Setting(TEXT, "", "the TPU that a Colab runtime of those days had, on another machine")
    TPU_ACCELERATOR_TYPE = Setting(TEXT, "", "the TPU and its size, as in v4-8; TPU machines set it")

    TORCH_XLA_DIST = Setting(TEXT, "", "the job of xla_dist that this process was started for; xla_dist sets it")
    TORCH_XLA_GRACE_PERIOD = Setting(
        COUNT, "30", "seconds that the processes of spawn have to end after SIGTERM to the one that waits for them"
    )
    XLA_UNEVEN_HEARTBEAT_TIMEOUT = Setting(
        COUNT, "900", "seconds without a step after which xla_dist restarts a job whose workers made different numbers"
    )
    XLA_EVEN_HEARTBEAT_TIMEOUT = Setting(
        COUNT, "1800", "seconds without a step after which xla_dist restarts a job whose workers made equally many"
    )

    RANK = Setting(NUMBER, "0", "this process's ordinal in its job; spawn and torchrun set it", "XRT_SHARD_ORDINAL")
    WORLD_SIZE = Setting(
        COUNT, "1", "number of processes in the job; spawn and torchrun set it", "XRT_SHARD_WORLD_SIZE"
    )
    LOCAL_RANK = Setting(
        NUMBER, "0", "this process's ordinal on its machine; spawn and torchrun set it", "XRT_SHARD_LOCAL_ORDINAL"
    )
    LOCAL_WORLD_SIZE = Setting(COUNT, "1", "number of the job's processes on this machine")
    MASTER_ADDR = Setting(TEXT, "", "the machine of rank 0, where torchrun's processes meet")
    MASTER_PORT = Setting(NUMBER, "0", "the port on which torchrun's processes meet")
    TORCH_XLA_RENDEZVOUS = Setting(TEXT, "", "the file by which the processes of spawn find each other; spawn sets it")

    XLA_RENDEZVOUS_TIMEOUT = Setting(COUNT, "1800", "seconds to wait for other processes of the job")

    ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB = Setting(
        NUMBER, "0", "MB of gradients that are reduced in one collective; 0: all in one"
    )

    XLA_USE_BF16 = Setting(
        FLAG, "0", "store float32 and float64 tensors as bfloat16 on the device; they keep their dtype in Python"
    )
    XLA_DOWNCAST_BF16 = Setting(FLAG, "0", "store float32 tensors as bfloat16, and float64 as float32, on the device")
    XLA_USE_F16 = Setting(FLAG, "0", "the same as XLA_USE_BF16: bfloat16 needs no loss scaling, where float16 does")
    XLA_DOWNCAST_FP16 = Setting(FLAG, "0", "the same as XLA_DOWNCAST_BF16")
    XLA_USE_32BIT_LONG = Setting(FLAG, "0", "store int64 as int32, uint64 as uint32 on the device; larger values wrap")

    XLA_TRIM_GRAPH_SIZE = Setting(
        COUNT, "10000", "pending operations at which the graph is cut and run", "TRIM_GRAPH_SIZE"
    )
    XLA_AUTO_BARRIER = Setting(
        FLAG,
        "1",
        "cut the graph of a loop without a barrier: at optimizer steps, and at reads that compute steps again",
    )
    XLA_NO_SPECIAL_SCALARS = Setting(FLAG, "0", "send also the numbers 0, 1 and -1 as inputs, not as constants")

    XLA_SYNC_WAIT = Setting(FLAG, "0", "sync() waits until the device has finished")
    RATE_TRACKER_SMOOTHING = Setting(WEIGHT, "0.4", "xm.RateTracker: the weight of the rate before against the newest")
    XLA_COMPILATION_CACHE_SIZE = Setting(COUNT, "2048", "compiled programs kept in memory")
    XLA_PERSISTENT_CACHE_PATH = Setting(
        FOLDER_OR_EMPTY,
        None,
        "folder in which compiled programs are kept for other processes; unset: programs in the cache folder; empty: "
        "they are not kept",
    )
    TORCH_XLA_PERSISTENT_CACHE_GB = Setting(
        NUMBER_OR_NONE,
        None,
        "gigabytes (2^30 bytes) of programs that are kept, the last used ones; 0: no limit; unset: 4, but none in a "
        "folder that XLA_PERSISTENT_CACHE_PATH names",
    )
    XLA_PERSISTENT_CACHE_READ_ONLY = Setting(FLAG, "0", "only read compiled programs from XLA_PERSISTENT_CACHE_PATH")
    TORCH_XLA_CPU_KERNELS = Setting(
        FLAG, "1", "programs on the CPU call torch's own kernels where these are faster: convolutions, some gradients"
    )
    TORCH_XLA_KEEP_HEAP = Setting(
        FLAG,
        "1",
        "memory that programs on the CPU have freed stays with the process, to be used again, and with it that of the "
        "user's own arrays up to the size of a program's largest block; 0: malloc decides",
    )
    XLA_FALLBACK_WARN = Setting(FLAG, "1", "warn once for each operation that runs on the CPU instead")

    XLA_METRICS_SAMPLES = Setting(COUNT, "1024", "latest samples a metric keeps for its percentiles")
    XLA_METRICS_PERCENTILES = Setting(
        FRACTIONS, "0.01:0.05:0.1:0.2:0.5:0.8:0.9:0.95:0.99", "percentiles in metric reports"
    )

    XLA_IR_DEBUG = Setting(FLAG, "0", "note the user's Python stack and torch.nn module with each operation")
    XLA_HLO_DEBUG = Setting(FLAG, "0", "as XLA_IR_DEBUG, and carry both into the metadata of the compiled HLO")
    XLA_SAVE_TENSORS_FILE = Setting(
        FILE_OR_NONE, None, "file that each graph is appended to when it is run; the process's rank is added: FILE.0"
    )
    XLA_SAVE_TENSORS_FMT = Setting(GRAPH_FORMAT, "text", "form of the graphs in XLA_SAVE_TENSORS_FILE")
    SAVE_GRAPH_FMT = Setting(GRAPH_FORMAT, "text", "form of the graphs that torch_xla.debug.graph_saver writes")
    TORCH_XLA_STORM = Setting(
        IN_STORMS, "interpret", "what is done on CPU devices with a graph of a line that makes another one each time"
    )
    TORCH_XLA_FIRST_RUN = Setting(
        WHEN_NEW,
        "auto",
        "which graphs CPU devices compile only when they come again: all (eager), none (compile), those that take long",
    )
    XLA_SYNC_TENSORS_OPBYOP = Setting(
        FLAG, "0", "compile and run each operation of a step on its own", "SYNC_TENSORS_OPBYOP"
    )
    XLA_GET_TENSORS_OPBYOP = Setting(
        FLAG, "0", "compile and run each operation that a value needs on its own", "GET_TENSORS_OPBYOP"
    )
    XLA_USE_EAGER_DEBUG_MODE = Setting(
        FLAG, "0", "run every operation at once, as torch_xla.experimental.eager_mode(True) does"
    )
    MODELCMP_SAVEDIR = Setting(
        FOLDER_OR_NONE, None, "folder that torch_xla.debug.model_comparator.save writes to; unset: it does nothing"
    )
    XLA_METRICS_FILE = Setting(STREAM, "", "append the metrics report to this file at the end of every step")
    XLA_EXPLAIN_RECOMPILATIONS = Setting(
        NUMBER, "3", "explain recompilations from this unexpected one on: 1 is the first, 0 turns it off"
    )
    TORCH_XLA_LOGS = Setting(
        LOGS, "", "log to stderr: all, compile, execute, transfer, fallback, recompilation, memory"
    )

    XLA_EMIT_STEPLOG = Setting(FLAG, "0", "write a line to stderr at every step")
    PT_XLA_DEBUG = Setting(FLAG, "0", "analyse compilations and executions, and sum up what was slow at the end")
    PT_XLA_DEBUG_LEVEL = Setting(
        NUMBER_OR_NONE, None, "1: analyse compilations, 2: executions as well, 0: nothing; unset: 2 with PT_XLA_DEBUG"
    )
    PT_XLA_DEBUG_FILE = Setting(PATH, "", "append the analyses to this file instead of writing them to stderr")
    PT_XLA_DEBUG_MAX_FRAME = Setting(COUNT, "8", "Python frames that an analysis shows at most")

    TORCH_XLA_CACHE_DIR = Setting(
        FOLDER_OR_NONE, None, "where the built recorder is kept; unset: torch_xla inside XDG_CACHE_HOME"
    )
    XDG_CACHE_HOME = Setting(FOLDER, "~/.cache", "the user's folder for caches of all programs")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings.{name} cannot be assigned; set the environment variable {name}")

    def get(self, name: str) -> Any:
        """The value of a variable by its name or an alias. Raises KeyError for a name not in the table."""
        for variable in variables():
            if name in (variable.name, *variable.aliases):
                return getattr(self, variable.name)
        raise KeyError(f"{name} is not a setting; `python -m torch_xla.settings` lists them")

    def reload(self) -> None:
        """Forget what was read, so that each variable is read again. For tests; the engine may hold old values."""
        self.__dict__.clear()

    def enabled_after_read(self, names: Sequence[str]) -> list[str]:
        """Those of these flags that the environment sets now, and that were not set when they were read."""
        known = self.__dict__
        return [name for name in names if known.get(name) is False and Settings.__dict__[name].read()]

    def changed_after_read(self, names: Sequence[str]) -> list[str]:
        """Those of these variables that have been read, and that the environment gives another value now."""
        return [name for name in names if name in self.__dict__ and self._is_another(name)]

    def _is_another(self, name: str) -> bool:
        try:
            return bool(Settings.__dict__[name].read() != self.__dict__[name])
        except ValueError:  # what it says now has never been a value
            return True

    def export(self, name: str, text: str) -> None:
        """Sets a variable for this process and those that it starts. Raises ValueError for a text it cannot read."""
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
        """The folder for files that torch_xla keeps between runs. It need not exist yet.

        The temporary one for a user without a home, as in a container that is run with --user 1234.
        """
        if self.TORCH_XLA_CACHE_DIR is not None:
            return self.TORCH_XLA_CACHE_DIR
        if Settings.XDG_CACHE_HOME.source() is None and not _has_home():
            return self.temporary_cache_dir()
        return self.XDG_CACHE_HOME / "torch_xla"

    def temporary_cache_dir(self) -> Path:
        """Return the folder that stands in for ``cache_dir`` where that cannot be used."""
        return Path(tempfile.gettempdir()) / f"torch_xla-{os.geteuid()}"


def variables() -> Iterator[Setting[Any]]:
    """The variables in the order of the table."""
    return (value for value in vars(Settings).values() if isinstance(value, Setting))


settings = Settings()
