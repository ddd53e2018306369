"""Guards on the Python objects that a step can reach: modules, optimizers, trainers, closures, globals, containers.

``ObjectWalk`` lists what the step's code may read: each item of a dictionary or list, each cell of a closure, each
global that its functions name. A replay requires that every one is the same object, or an equal number or text. The
recorder compares the flat lists in C++ (csrc/graph/object_guards.h).

    object                                     guarded                            entered
    number, text, None, dtype                  equal, by its holder               -
    dict, list                                 size, items as stored              yes; of the user's: attributes, too
    tuple                                      identity (a plain tuple: equal)    the same
    set, deque                                 items                              the same
    numpy array, array, bytearray              bytes, up to 64 KB                 -
    nn.Module, Optimizer, LRScheduler          __dict__                           yes
    object of a class in the user's files      __dict__, __slots__, and           yes, and its methods
                                               attributes of the class
    namespace, dataclass, configuration        __dict__, __slots__                yes
    function of the user's files               cells, globals that it names       yes
    other function                             identity                           what it wraps
    tensor                                     identity, requires_grad, hooks     -
    generator of random numbers                that the call does not draw        -
    generator, iterator of Python              that the call does not read        -
    any other                                  identity                           -
"""

from __future__ import annotations

import argparse
import array
import dataclasses
import functools
import gc
import sys
import types
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.replay import code_names, host_reads, number_calls
from torch_xla._engine.replay.iterator_reads import is_plain_iterator

_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format,
    torch.layout, range,
)  # fmt: skip
_WALKED = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
#: Classes of libraries whose objects hold values that a step reads; see also ``_is_record_class``.
_RECORDS = (argparse.Namespace, types.SimpleNamespace, UserDict, UserList, ChainMap)
_CONFIGURATIONS = "Config", "ConfigDict", "Arguments"  # how the names of such classes end
_MOST = 200_000  # guards: more take longer to check than most steps to record
_MOST_BYTES = 1 << 16  # of an array that is compared: microseconds


class TooManyObjects(Exception):
    """The step reaches more objects than a replay can check."""


def is_plain(value: Any) -> bool:
    """Whether a value is compared by value: a number, a text, a dtype, or a tuple of these."""
    return isinstance(value, _PLAIN) or (type(value) is tuple and all(map(is_plain, value)))


@dataclass
class ObjectGuards:
    """Flat lists of guards, and the names of what they guard.

    Owns the recorder's table of them, which refers to the items of the lists: the first check makes it, and the next
    ``add`` drops it.
    """

    kinds: bytearray = field(default_factory=bytearray)
    containers: list[Any] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    expected: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _table: Any = None

    def add(self, kind: str, container: Any, key: Any, expected: Any, name: str) -> None:
        """Add one guard; see csrc/graph/object_guards.h for the kinds."""
        if len(self.names) >= _MOST:
            raise TooManyObjects
        self._table = None
        self.kinds.append(ord(kind))
        self.containers.append(container)
        self.keys.append(key)
        self.expected.append(expected)
        self.names.append(name)

    def failed(self) -> str | None:
        """Return the name of the first thing that has changed; None if nothing has."""
        if self._table is None:
            self._table = recorder.bindings().GuardTable(
                kinds=bytes(self.kinds), containers=self.containers, keys=self.keys, expected=self.expected
            )
        found = self._table.failed()
        return None if found < 0 else self.names[found]

    def without(self, is_left_out: Callable[[Any, Any], bool]) -> ObjectGuards:
        """Return the guards but those on the items (container, key) for which ``is_left_out``."""
        left = ObjectGuards()
        for i, kind in enumerate(self.kinds):
            if not is_left_out(self.containers[i], self.keys[i]):
                left.add(chr(kind), self.containers[i], self.keys[i], self.expected[i], self.names[i])
        return left


class ObjectWalk:
    """One walk over what a step can reach. ``guards`` and the lists of tensors are complete after it.

    ``skipped``: functions that are not entered, because a replay calls them; nor is what only they use, if the step
    defines them.
    """

    def __init__(self, roots: Iterable[tuple[str, Any]], skipped: Sequence[Any] = ()) -> None:
        self.guards = ObjectGuards()
        self.tensors: dict[int, tuple[torch.Tensor, str]] = {}  # on xla, by id
        self.host_tensors: dict[int, tuple[torch.Tensor, str]] = {}
        self.optimizers: list[tuple[str, torch.optim.Optimizer]] = []
        self.number_holders: list[number_calls.Holder] = []  # what refers to a function that reads numbers in C
        self.generators: dict[str, Any] = {}  # of random numbers on the host, by name
        self.iterators: list[tuple[number_calls.Holder, str]] = []  # what refers to one, and its name
        self._seen: dict[int, Any] = {id(function): function for function in skipped}
        codes = (getattr(function, "__code__", None) for function in skipped)
        self._skipped_codes = frozenset(code for code in codes if code is not None)
        self._left: deque[tuple[str, Any]] = deque(roots)
        while self._left:
            self._enter(*self._left.popleft())

    def _enter(self, name: str, value: Any) -> None:
        if is_plain(value) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, dict | list | tuple | set | frozenset | deque) and _is_user_class(type(value)):
            self._enter_object(name, value)
        if isinstance(value, torch.Tensor):
            self._enter_tensor(name, value)
        elif isinstance(value, dict):
            self._enter_dict(name, value)
        elif isinstance(value, list):
            self.guards.add("n", value, None, list.__len__(value), f"len({name})")
            for i, item in enumerate(list.__iter__(value)):
                self._hold("E" if is_plain(item) else "I", value, i, item, f"{name}[{i}]")
        elif isinstance(value, tuple | set | frozenset | deque):
            if isinstance(value, set):
                self.guards.add("s", value, None, frozenset(value), name)
            elif isinstance(value, deque):
                self.guards.add("d", value, None, tuple(value), name)
            self._left.extend((f"{name}[...]", item) for item in value)
        elif isinstance(value, np.ndarray | array.array | bytearray):
            self._enter_array(name, value)
        elif isinstance(value, types.MappingProxyType):
            self._left.extend((name, mapping) for mapping in gc.get_referents(value))
        elif isinstance(value, types.FunctionType):
            self._enter_function(name, value)
        elif host_reads.is_host_generator(value):
            self.generators[name] = value
        elif isinstance(value, types.BuiltinMethodType):  # such as random.Random(0).random
            self._left.append((name, value.__self__))
        elif isinstance(value, types.MethodType):
            self._left.extend([(f"{name}.__self__", value.__self__), (name, value.__func__)])
        elif isinstance(value, functools.partial):
            self._left.extend([(name, value.func), (f"{name}.args", value.args), (f"{name}.keywords", value.keywords)])
        elif isinstance(value, type):
            self._enter_class(name, value)
        elif isinstance(value, _WALKED) or _is_user_class(type(value)) or _is_record_class(type(value)):
            self._enter_object(name, value)

    def _hold(self, kind: str, container: Any, key: Any, value: Any, name: str) -> None:
        self.guards.add(kind, container, key, value, name)
        if number_calls.is_replaced(value):
            self.number_holders.append((container, key))
        elif is_plain_iterator(value):
            self.iterators.append(((container, key), name))
        self._left.append((name, value))

    def _enter_tensor(self, name: str, value: torch.Tensor) -> None:
        found = self.tensors if value.device.type == "xla" else self.host_tensors
        found[id(value)] = (value, name)
        for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(value, attribute, None)
            if isinstance(hooks, dict):
                self.guards.add("n", hooks, None, len(hooks), f"the hooks of {name}")

    def _enter_array(self, name: str, value: np.ndarray[Any, Any] | array.array[Any] | bytearray) -> None:
        try:
            view = memoryview(value)  # type: ignore[arg-type]
        except ValueError:  # a dtype without a buffer format, such as dates
            return
        if view.nbytes <= _MOST_BYTES and view.c_contiguous:
            self.guards.add("b", value, None, view.tobytes(), name)

    def _enter_dict(self, name: str, value: dict[Any, Any]) -> None:
        # The items that dict itself stores, as the recorder compares them: those that a class loads on demand are none.
        self.guards.add("n", value, None, dict.__len__(value), f"len({name})")
        for key, item in dict.items(value):
            label = f"{name}[{key!r}]" if isinstance(key, str | int) else f"{name}[{type(key).__name__}]"
            self._hold("e" if is_plain(item) else "i", value, key, item, label)

    def _enter_object(self, name: str, value: Any) -> None:
        if isinstance(value, torch.optim.Optimizer):
            self.optimizers.append((name, value))
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self.guards.add("n", attributes, None, len(attributes), f"the attributes of {name}")
            for key, item in attributes.items():
                inner = "_modules", "_parameters", "_buffers"
                label = name if key in inner else f"{name}.{key}"
                self._hold("e" if is_plain(item) else "i", attributes, key, item, label)
        for key in _slots(type(value)):
            if hasattr(value, key):
                item = getattr(value, key)
                self._hold("a" if is_plain(item) else "A", value, key, item, f"{name}.{key}")
        self._left.append((type(value).__name__, type(value)))

    def _enter_class(self, name: str, value: type) -> None:
        for cls in value.__mro__:
            if not _is_user_class(cls):
                continue
            for key, item in list(vars(cls).items()):
                if isinstance(item, types.FunctionType):
                    self._left.append((f"{name}.{key}", item))
                elif is_plain(item) and not key.startswith("__"):
                    self.guards.add("a", cls, key, item, f"{name}.{key}")

    def _enter_function(self, name: str, value: types.FunctionType) -> None:
        if not user_frames.is_user_file(value.__code__.co_filename):
            self._left.append((name, getattr(value, "__wrapped__", None)))  # torch.no_grad() and other decorators
            return
        used = code_names.cells_in(value.__code__, self._skipped_codes)
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            if variable not in used:
                continue
            try:
                contents = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._hold("C" if is_plain(contents) else "c", cell, None, contents, variable)
        self._left.append((f"the defaults of {name}", value.__defaults__))
        self._left.append((f"the defaults of {name}", value.__kwdefaults__))
        names = code_names.names_in(value.__code__, self._skipped_codes)
        for variable in names:
            if variable in value.__globals__:
                item = value.__globals__[variable]
                kind = "e" if is_plain(item) else "i"
                self._hold(kind, value.__globals__, variable, item, variable)
                if isinstance(item, types.ModuleType) and _is_user_module(item):
                    self._enter_module(item, names)

    def _enter_module(self, module: types.ModuleType, names: frozenset[str]) -> None:
        for name in names & vars(module).keys():
            item = vars(module)[name]
            kind = "e" if is_plain(item) else "i"
            self._hold(kind, vars(module), name, item, f"{module.__name__}.{name}")


def _is_record_class(cls: type) -> bool:
    """Whether objects of a library's class are records of values, such as options."""
    return (
        issubclass(cls, _RECORDS)
        or dataclasses.is_dataclass(cls)
        or hasattr(cls, "__attrs_attrs__")
        or any(base.__name__.endswith(_CONFIGURATIONS) for base in cls.__mro__)
    )


def _slots(cls: type) -> list[str]:
    """Return the attributes of a class's objects that are not in their ``__dict__``, as Python names them."""
    return [
        key
        for base in cls.__mro__
        for key, item in vars(base).items()
        if isinstance(item, types.MemberDescriptorType) and not key.startswith("__")
    ]


def _is_user_module(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return module is not None and (file is None or user_frames.is_user_file(file)) and module.__name__ != "builtins"


def _is_user_class(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__ in sys.builtin_module_names:
        return False
    file = getattr(module, "__file__", None)
    return cls.__module__ == "__main__" or (file is not None and user_frames.is_user_file(file))
