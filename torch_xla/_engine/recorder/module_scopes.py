"""Module scopes: the path of the ``torch.nn`` module whose forward is running, such as ``Net/layers.0/attention``.

A root module contributes its class name, a submodule its qualified name relative to the calling module. torch's global
forward hooks track the modules; they are registered only while tracking is on (track_modules). Each thread has a stack
of scopes, and the recorder stores the id of the innermost one.

    stack of a thread:  [] -> [Net] -> [Net, layers.0] -> [Net] -> []      a forward that raises leaves as well
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo_hooks
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock


@dataclass(slots=True)
class _Scope:
    outer_id: int  # the id of the enclosing scope
    module: torch.nn.Module | None
    qualified: str  # the module's name in its root
    path: str
    names: dict[int, str]  # id of each module of the root -> qualified name


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes: list[_Scope] = []
        self.session = 0  # the tracking session that the scopes belong to; see track_modules


_stack = _Stack()
_lock = fork_safe_lock()
_numbers: dict[str, int] = {"": 0}
_paths: list[str] = [""]
_BACKWARD = 1 << 31  # kBackward of csrc/ir/source_location.h
_handles: list[RemovableHandle] = []
_session = 0


def scope_id(path: str) -> int:
    """Return the id of a path, assigned on first use; 0 for the empty path."""
    with _lock:
        found = _numbers.setdefault(path, len(_paths))
        if found == len(_paths):
            _paths.append(path)
        return found


def scope_name(number: int) -> str:
    """Return the path of an id; ``backward/<path>`` if the id has the flag of a backward pass."""
    path = _paths[number & ~_BACKWARD]
    return "/".join(part for part in ("backward", path) if part) if number & _BACKWARD else path


def _innermost() -> _Scope | None:
    if _stack.session != _session:  # scopes of a session that ended inside a forward
        _stack.session = _session
        _stack.scopes.clear()
        recorder.bindings().set_scope(0)
    return _stack.scopes[-1] if _stack.scopes else None


def _enter(path: str, module: torch.nn.Module | None, qualified: str, names: dict[int, str]) -> None:
    before = recorder.bindings().set_scope(scope_id(path))
    _stack.scopes.append(_Scope(before, module, qualified, path, names))


def _leave() -> None:
    recorder.bindings().set_scope(_stack.scopes.pop().outer_id)


@dynamo_hooks.dynamo_disable
def _before_forward(module: torch.nn.Module, args: Any) -> None:
    if dynamo_hooks.is_tracing():  # the compiled graph has no modules
        return
    outer = _innermost()
    if outer is not None and id(module) in outer.names:
        qualified = outer.names[id(module)]
        inside = outer.qualified and qualified.startswith(f"{outer.qualified}.")
        relative = qualified[len(outer.qualified) + 1 :] if inside else qualified
        _enter(f"{outer.path}/{relative or type(module).__name__}", module, qualified, outer.names)
        return
    path = type(module).__name__ if outer is None else f"{outer.path}/{type(module).__name__}"
    _enter(path, module, "", {id(m): name for name, m in module.named_modules()})


@dynamo_hooks.dynamo_disable
def _after_forward(module: torch.nn.Module, args: Any, result: Any) -> None:
    if dynamo_hooks.is_tracing():
        return
    # Modules above it on the stack exited with an exception, which torch caught before it called our hook.
    if any(scope.module is module for scope in _stack.scopes):
        while True:
            last = _stack.scopes[-1].module is module
            _leave()
            if last:
                return


def track_modules(on: bool) -> None:
    """Start or stop tracking modules. Each call starts a new session, which discards earlier scopes."""
    global _session
    _session += 1
    if on and not _handles:
        # torch.compile warns that global hooks also run for the compiled module; these hooks do not change it.
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks", UserWarning)
        _handles.append(register_module_forward_pre_hook(_before_forward))
        _handles.append(register_module_forward_hook(_after_forward, always_call=True))
    elif not on:
        while _handles:
            _handles.pop().remove()


@contextmanager
def push_scope(part: str) -> Iterator[None]:
    """Append ``part`` to the scope of what this thread records in the block."""
    outer = _innermost()
    path = f"{outer.path}/{part}" if outer else part
    _enter(path, None, outer.qualified if outer else "", outer.names if outer else {})
    depth = len(_stack.scopes)
    try:
        yield
    finally:
        while len(_stack.scopes) >= depth:
            _leave()


def hook_count() -> int:
    """Return the number of global forward hooks that tracking has registered."""
    return len(_handles)
