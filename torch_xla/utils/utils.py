"""``xu``: what scripts use beside torch: made-up data, nested structures, variables, timing."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch

from torch_xla._engine.data_loading.batch_structure import DataWrapper

__all__ = [
    "Cleaner", "DataWrapper", "FnDataGenerator", "LazyProperty", "SampleGenerator", "TimedScope", "TmpFolder",
    "as_list", "check_env_flag", "eprint", "flatten_nested_tuple", "for_each_instance", "for_each_instance_rewrite",
    "get_free_tcp_ports", "get_print_fn", "getenv_as", "list_copy_append", "null_print", "parallel_work", "shape",
    "timed",
]  # fmt: skip

Print = Callable[..., object]

# --- made-up data


class SampleGenerator:
    """A loader that gives the same ``data`` ``sample_count`` times, each time it is iterated.

    For measuring a model without its input pipeline: ``SampleGenerator((images, labels), 100)``.
    """

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count
        self._given = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The data once more. Raises StopIteration when it was given ``sample_count`` times."""
        if self._given >= self._sample_count:
            raise StopIteration
        self._given += 1
        return self._data


class FnDataGenerator:
    """A loader of ``count`` pairs ``(data, func(data))``, where data is ``gen_tensor(batch_size, *dims)``.

    ``dims`` is (1,) by default.
    """

    def __init__(
        self,
        func: Callable[[Any], Any],
        batch_size: int,
        gen_tensor: Callable[..., Any],
        dims: Sequence[int] | None = None,
        count: int = 1,
    ) -> None:
        self._func, self._batch_size, self._gen_tensor = func, batch_size, gen_tensor
        self._dims, self._count = tuple(dims) if dims else (1,), count
        self._given = 0

    def __iter__(self) -> FnDataGenerator:
        return FnDataGenerator(self._func, self._batch_size, self._gen_tensor, self._dims, self._count)

    def __len__(self) -> int:
        return self._count

    def __next__(self) -> tuple[Any, Any]:
        return self.next()

    def next(self) -> tuple[Any, Any]:
        """The next pair. Raises StopIteration when there were ``count``."""
        if self._given >= self._count:
            raise StopIteration
        self._given += 1
        data = self._gen_tensor(self._batch_size, *self._dims)
        return data, self._func(data)


# --- things that end


class Cleaner:
    """Calls a function once: when nobody holds the Cleaner any more, or at the end of the process."""

    def __init__(self, func: Callable[[], object]) -> None:
        self.func = weakref.finalize(self, func)


class TmpFolder:
    """A folder, ``.name``, that goes with everything in it when nobody holds this any more."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp()
        self.cleaner = Cleaner(lambda name=self.name: shutil.rmtree(name, ignore_errors=True))  # type: ignore[misc]


class LazyProperty:
    """A value that is made when it is first asked for, by one thread."""

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = gen_fn
        self._value: Any = None
        self._lock = threading.Lock()

    @property
    def value(self) -> Any:
        """The value. Raises what making it raises; it is then made anew by who asks next."""
        with self._lock:
            if self._make is not None:
                self._value, self._make = self._make(), None
            return self._value


# --- nested structures


def as_list(t: Any) -> Any:
    """A list or a tuple as it is; anything else in a list."""
    return t if isinstance(t, (list, tuple)) else [t]


def list_copy_append(ilist: Iterable[Any], item: Any) -> list[Any]:
    """A new list of the items and one more."""
    return [*ilist, item]


def shape(inputs: Any) -> list[int]:
    """The sizes of nested lists and tuples, by their first elements: ``shape([[1, 2, 3]])`` is ``[1, 3]``."""
    sizes = []
    while isinstance(inputs, (list, tuple)):
        sizes.append(len(inputs))
        if not inputs:
            break
        inputs = inputs[0]
    return sizes


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """The elements of nested tuples and lists, in order, in one tuple."""
    if not isinstance(inputs, (tuple, list)):
        return (inputs,)
    return tuple(item for part in inputs for item in flatten_nested_tuple(part))


Select = Callable[[Any], bool] | type | tuple[type, ...]


def _selects(select_fn: Select) -> Callable[[Any], bool]:
    if isinstance(select_fn, (type, tuple)):  # as until 2019
        kinds = select_fn
        return lambda value: isinstance(value, kinds)
    return select_fn


def for_each_instance(value: Any, select_fn: Select, fn: Callable[[Any], object]) -> None:
    """Calls ``fn`` with each selected object in nested lists, tuples, sets, dicts and attributes; with each once.

    ``select_fn`` is a predicate or a class. Goes into no object that is selected.
    """
    _visit(value, _selects(select_fn), fn, set())


def _visit(value: Any, selects: Callable[[Any], bool], fn: Callable[[Any], object], seen: set[int]) -> None:
    if id(value) in seen:
        return
    if selects(value):
        seen.add(id(value))
        fn(value)
        return
    inside = _container_items(value)
    if inside is not None:
        seen.add(id(value))
        for item in inside:
            _visit(item, selects, fn, seen)


def _container_items(value: Any) -> Iterable[Any] | None:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, (type, torch.Tensor)):
        return None
    attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
    return None if attributes is None else attributes.values()


def for_each_instance_rewrite(value: Any, select_fn: Select, fn: Callable[[Any], Any]) -> Any:
    """``value`` with ``fn(object)`` in the place of each selected object, as for_each_instance finds them.

    Containers are made anew, of their own kind; other objects that have one inside get a shallow copy.
    """
    return _map_selected(value, _selects(select_fn), fn)


def _map_selected(value: Any, selects: Callable[[Any], bool], fn: Callable[[Any], Any]) -> Any:
    if selects(value):
        return fn(value)
    if isinstance(value, Mapping):
        return _mapping_like(value, {key: _map_selected(item, selects, fn) for key, item in value.items()})
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_map_selected(item, selects, fn) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    inside = _container_items(value)
    if inside is None:
        return value
    attributes = {name: _map_selected(item, selects, fn) for name, item in vars(value).items()}
    if all(attributes[name] is item for name, item in vars(value).items()):
        return value
    twin = copy.copy(value)
    for name, item in attributes.items():
        object.__setattr__(twin, name, item)
    return twin


def _mapping_like(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(original) is dict:
        return items
    twin: Any = copy.copy(original)
    twin.update(items)
    return twin


# --- the process around


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """An environment variable, converted: ``getenv_as("STEPS", int, 10)``; ``defval`` where it is not set, or empty.

    Of ``bool``, 0 and false are False, 1 and true are True. Raises ValueError, naming the variable, for what cannot be
    converted.
    """
    text = os.environ.get(name, "")
    if not text:
        return defval
    try:
        return _bool(text) if type is bool else type(text)
    except ValueError as error:
        raise ValueError(f"environment variable {name}={text!r} is no {type.__name__}") from error


def _bool(text: str) -> bool:
    words = {"true": True, "false": False}
    return words[text.lower()] if text.lower() in words else bool(int(text))


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether an environment variable is ``true`` or a number above 0; ``default`` where it is not set."""
    text = os.environ.get(name, default).strip()
    return text.lower() == "true" or (text.isdecimal() and int(text) > 0)


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """The numbers of ``n`` different TCP ports that nobody uses at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """``list(map(fn, *args))``, computed by so many threads. Raises what the first failing call, in order, raised."""
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        return list(pool.map(fn, *args))


# --- printing and timing


def null_print(*args: Any, **kwargs: Any) -> None:
    """Prints nothing."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Prints to stderr."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: bool | None = None) -> Print:
    """``eprint`` with ``debug``, by default where the environment has DEBUG=1; else ``null_print``."""
    return eprint if (getenv_as("DEBUG", bool, False) if debug is None else debug) else null_print


class TimedScope:
    """Prints how long a block took: ``with TimedScope("Loading: "): ...`` prints ``Loading: 12.345ms``."""

    def __init__(self, msg: str = "", printfn: Print | None = eprint) -> None:
        self._msg, self._print, self._error = msg, printfn, ""

    def set_error(self, error: object) -> None:
        """Has ``error`` printed after the time."""
        self._error = f", {error}"

    def __enter__(self) -> TimedScope:
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._print is not None:
            self._print(f"{self._msg}{1000 * (time.perf_counter() - self._start):.3f}ms{self._error}")


def timed(fn: Callable[[], Any], msg: str = "", printfn: Print | None = eprint) -> Any:
    """What ``fn()`` gives; prints how long it took, as TimedScope."""
    with TimedScope(msg, printfn):
        return fn()
