"""``xu``: utilities for scripts: synthetic data, nested containers, environment variables, timing."""

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

# --- synthetic data


class SampleGenerator:
    """A data loader that yields the same ``data`` ``sample_count`` times per iteration.

    Use it to measure a model without its input pipeline: ``SampleGenerator((images, labels), 100)``.

    Args:
      data: the batch.
      sample_count: the number of batches.
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
        """Return the data. Raises StopIteration after ``sample_count`` calls."""
        if self._given >= self._sample_count:
            raise StopIteration
        self._given += 1
        return self._data


class FnDataGenerator:
    """A data loader that yields ``count`` pairs ``(data, func(data))``; data is ``gen_tensor(batch_size, *dims)``.

    ``dims`` defaults to (1,).

    Args:
      func: computes the targets from the data.
      batch_size: the size of dimension 0.
      gen_tensor: creates the data from sizes.
      dims: the other sizes of the data; default: (1,).
      count: the number of batches.
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
        """Return the next pair. Raises StopIteration after ``count`` pairs."""
        if self._given >= self._count:
            raise StopIteration
        self._given += 1
        data = self._gen_tensor(self._batch_size, *self._dims)
        return data, self._func(data)


# --- cleanup and lazy values


class Cleaner:
    """Calls a function once, when the Cleaner is garbage-collected or at process exit.

    Args:
      func: a function without arguments.
    """

    def __init__(self, func: Callable[[], object]) -> None:
        self.func = weakref.finalize(self, func)


class TmpFolder:
    """A temporary folder, ``.name``, that is deleted when this object is garbage-collected or at process exit."""

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp()
        self.cleaner = Cleaner(lambda name=self.name: shutil.rmtree(name, ignore_errors=True))  # type: ignore[misc]


class LazyProperty:
    """A value that one thread computes on first access.

    Args:
      gen_fn: a function without arguments that computes the value.
    """

    def __init__(self, gen_fn: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = gen_fn
        self._value: Any = None
        self._lock = threading.Lock()

    @property
    def value(self) -> Any:
        """The value. Raises the error of computing it; the next access then computes it again."""
        with self._lock:
            if self._make is not None:
                self._value, self._make = self._make(), None
            return self._value


# --- nested containers


def as_list(t: Any) -> Any:
    """Return a list or tuple unchanged; anything else in a list.

    Args:
      t: any object.
    """
    return t if isinstance(t, (list, tuple)) else [t]


def list_copy_append(ilist: Iterable[Any], item: Any) -> list[Any]:
    """Return a new list of the items and one more item.

    Args:
      ilist: the list; unchanged.
      item: the additional item.
    """
    return [*ilist, item]


def shape(inputs: Any) -> list[int]:
    """Return the sizes of nested lists and tuples, by their first elements: ``shape([[1, 2, 3]])`` is ``[1, 3]``.

    Args:
      inputs: nested lists and tuples, each level of one length.
    """
    sizes = []
    while isinstance(inputs, (list, tuple)):
        sizes.append(len(inputs))
        if not inputs:
            break
        inputs = inputs[0]
    return sizes


def flatten_nested_tuple(inputs: Any) -> tuple[Any, ...]:
    """Return the elements of nested tuples and lists, in order, as one tuple.

    Args:
      inputs: nested tuples and lists.
    """
    if not isinstance(inputs, (tuple, list)):
        return (inputs,)
    return tuple(item for part in inputs for item in flatten_nested_tuple(part))


Select = Callable[[Any], bool] | type | tuple[type, ...]


def _selects(select_fn: Select) -> Callable[[Any], bool]:
    if isinstance(select_fn, (type, tuple)):  # a class, as in releases until 2019
        kinds = select_fn
        return lambda value: isinstance(value, kinds)
    return select_fn


def for_each_instance(value: Any, select_fn: Select, fn: Callable[[Any], object]) -> None:
    """Call ``fn`` once with each selected object in nested lists, tuples, sets, dicts and attributes.

    Args:
      value: the root object.
      select_fn: a predicate or a class. Selected objects are not searched further.
      fn: the function.
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
    """Return ``value`` with each selected object, as found by for_each_instance, replaced by ``fn(object)``.

    Containers are copied with the same type; other objects that contain a selected object are copied shallowly.

    Args:
      value, select_fn: as for for_each_instance.
      fn: called with each selected object; returns the replacement.
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


# --- process, environment variables, threads


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """Read an environment variable and convert it: ``getenv_as("STEPS", int, 10)``.

    Args:
      name: name of the variable.
      type: conversion function; ``bool`` accepts 0, 1, true and false.
      defval: result if the variable is unset or empty.

    Raises:
      ValueError: the value cannot be converted; the message names the variable.
    """
    text = os.environ.get(name, "")
    if not text:
        return defval
    try:
        return _bool(text) if type is bool else type(text)
    except ValueError as error:
        raise ValueError(f"environment variable {name}={text!r} is not a valid {type.__name__}") from error


def _bool(text: str) -> bool:
    words = {"true": True, "false": False}
    return words[text.lower()] if text.lower() in words else bool(int(text))


def check_env_flag(name: str, default: str = "") -> bool:
    """Return whether an environment variable is ``true`` or a number above 0; ``default`` if it is unset.

    Args:
      name: the name of the variable.
      default: the result if it is unset.
    """
    text = os.environ.get(name, default).strip()
    return text.lower() == "true" or (text.isdecimal() and int(text) > 0)


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Return ``n`` different TCP port numbers that are currently unused.

    Args:
      n: the number of ports.
    """
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """Compute ``list(map(fn, *args))`` on ``num_workers`` threads.

    Args:
      num_workers: number of threads.
      fn: the function.
      args: iterables of arguments, as for map.

    Raises:
      Exception: the error of the first call that failed.
    """
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        return list(pool.map(fn, *args))


# --- printing and timing


def null_print(*args: Any, **kwargs: Any) -> None:
    """Print nothing.

    Args:
      args, kwargs: ignored.
    """


def eprint(*args: Any, **kwargs: Any) -> None:
    """Print to stderr.

    Args:
      args, kwargs: those of print.
    """
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: bool | None = None) -> Print:
    """Return ``eprint`` if ``debug``, else ``null_print``; default: whether the environment has DEBUG=1.

    Args:
      debug: whether to print; None: as the environment says.
    """
    return eprint if (getenv_as("DEBUG", bool, False) if debug is None else debug) else null_print


class TimedScope:
    """Print the duration of a block: ``with TimedScope("Loading: "): ...`` prints ``Loading: 12.345ms``.

    Args:
      msg: text before the duration.
      printfn: called with the text; None: print nothing.
    """

    def __init__(self, msg: str = "", printfn: Print | None = eprint) -> None:
        self._msg, self._print, self._error = msg, printfn, ""

    def set_error(self, error: object) -> None:
        """Print ``error`` after the duration.

        Args:
          error: the text or the exception.
        """
        self._error = f", {error}"

    def __enter__(self) -> TimedScope:
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._print is not None:
            self._print(f"{self._msg}{1000 * (time.perf_counter() - self._start):.3f}ms{self._error}")


def timed(fn: Callable[[], Any], msg: str = "", printfn: Print | None = eprint) -> Any:
    """Call ``fn()``, print its duration as TimedScope does, and return its result.

    Args:
      fn: the function, without arguments.
      msg, printfn: as for TimedScope.
    """
    with TimedScope(msg, printfn):
        return fn()
