"""The API reference documents what users see: the names in guides, and the public names of the modules it covers."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import ROOT

PAGES = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
GUIDES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in PAGES)]

#: Names by which guides import modules.
ALIASES = {
    "dp": "torch_xla.distributed.data_parallel",
    "met": "torch_xla.debug.metrics",
    "pl": "torch_xla.distributed.parallel_loader",
    "torch_xla": "torch_xla",
    "xb": "torch_xla.core.xla_builder",
    "xf": "torch_xla.core.functions",
    "xm": "torch_xla.core.xla_model",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "xp": "torch_xla.debug.profiler",
    "xr": "torch_xla.runtime",
    "xs": "torch_xla.distributed.spmd",
    "xu": "torch_xla.utils.utils",
}

#: Public names that are not documented, by module: upstream's own helpers, which exist for old scripts only.
LEFT_OUT = {
    "torch_xla.distributed.data_parallel": {"ThreadResult"},
    "torch_xla.distributed.spmd": {"XLAPatchedLinear", "xla_patched_nn_linear_forward"},
    "torch_xla.distributed.spmd.api": {"auto_policy"},
    "torch_xla.experimental.splash_attention": {
        "sa_custom_backward", "sa_custom_backward_fake", "sa_custom_forward", "sa_custom_forward_fake",
        "tpu_splash_attention_jax_call_wrapper",
    },
    "torch_xla.experimental.stablehlo_custom_call": {
        "extract_custom_call_outputs_shape_dtype", "to_device_backward", "to_host_backward",
    },
    "torch_xla.utils.keyd_queue": {"QueueBase"},
}  # fmt: skip

_DIRECTIVE = re.compile(r"^::: (\S+)$((?:\n    .*)*)", re.MULTILINE)
_PYTHON = re.compile(r"```python\n((?:.*\n)*?)```$", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_DOTTED = re.compile(rf"(?<![\w./-])({'|'.join(ALIASES)})((?:\.[A-Za-z]\w*)+)")


def directives() -> list[tuple[Path, str, str]]:
    """Return (page, documented name, options) of each directive."""
    return [(page, found[1], found[2]) for page in PAGES for found in _DIRECTIVE.finditer(page.read_text())]


DOCUMENTED = [name for _, name, _ in directives()]


@functools.cache
def resolve(name: str) -> Any:
    """Return the object of a dotted name. Raises AttributeError if it does not exist."""
    found: Any = importlib.import_module("torch_xla")
    path = "torch_xla"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if isinstance(found, types.ModuleType) and not hasattr(found, part):
            try:
                found = importlib.import_module(path)
            except ImportError:
                raise AttributeError(name) from None
        else:
            found = getattr(found, part)
    return found


def first_object(name: str) -> Any:
    """Return the first function or class on the path of a name; None for modules, constants and unknown names."""
    parts = name.split(".")
    for count in range(2, len(parts) + 1):
        try:
            found = resolve(".".join(parts[:count]))
        except AttributeError:
            return None
        if not isinstance(found, types.ModuleType):
            return found if inspect.isroutine(found) or inspect.isclass(found) else None
    return None


def is_public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


def names_in_program(program: str) -> Iterator[str]:
    """Yield the full names that a program imports from torch_xla, and those that it reads from such modules."""
    try:
        tree = ast.parse(program)
    except SyntaxError:  # a fragment
        return
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "torch_xla":
                    known[one.asname or "torch_xla"] = one.name if one.asname else "torch_xla"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch_xla":
            for one in node.names:
                known[one.asname or one.name] = f"{node.module}.{one.name}"
    yield from known.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            if first in known:
                yield ".".join((known[first], *rest))


def names_in_guide(path: Path) -> set[str]:
    text = path.read_text()
    found = {name for block in _PYTHON.findall(text) for name in names_in_program(block)}
    for code in _INLINE.findall(_PYTHON.sub("", text)):
        found |= {ALIASES[alias] + rest for alias, rest in _DOTTED.findall(code)}
    return {name for name in found if is_public(name)}


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in GUIDES])
def test_names_in_guides_are_documented(path: Path) -> None:
    known = {id(resolve(name)) for name in DOCUMENTED}
    used = {name: first_object(name) for name in names_in_guide(path)}
    left_out = {id(resolve(f"{module}.{name}")) for module, names in LEFT_OUT.items() for name in names}
    assert not sorted(name for name, found in used.items() if found is not None and id(found) not in known | left_out)


def test_guides_use_names() -> None:
    """Check the patterns above: guides without names would pass."""
    names = set().union(*map(names_in_guide, GUIDES))
    assert {"torch_xla.sync", "torch_xla.runtime.use_spmd", "torch_xla.aot.compile"} <= names


def test_documented_names_are_public_and_described() -> None:
    assert [name for name in DOCUMENTED if not is_public(name)] == []
    plain = [name for name in DOCUMENTED if not (inspect.getdoc(resolve(name)) or "").strip()]
    assert plain == []


def test_each_name_is_documented_once() -> None:
    assert sorted({name for name in DOCUMENTED if DOCUMENTED.count(name) > 1}) == []


def test_listed_members_exist_and_are_described() -> None:
    for _, name, options in directives():
        listed = re.search(r" members: \[(.*)\]", options)
        for member in listed[1].split(", ") if listed else ():
            assert is_public(member), f"{name}.{member}"
            assert inspect.getdoc(getattr(resolve(name), member)), f"{name}.{member}"


def _belongs_to(value: Any, module: str) -> bool:
    """Return whether the module defines an object, or (xla_model) offers it from a private module."""
    where = getattr(value, "__module__", None) or ""
    return where == module or (module == "torch_xla.core.xla_model" and where.startswith("torch_xla.core._"))


@pytest.mark.parametrize("module", sorted({name.rpartition(".")[0] for name in DOCUMENTED} - {"torch_xla"}))
def test_modules_are_covered(module: str) -> None:
    """Every public function and class that a module defines or lists in ``__all__`` is documented, or left out."""
    found = resolve(module)
    listed = getattr(found, "__all__", None)
    names = [name for name, value in vars(found).items() if _belongs_to(value, module)]
    public = {name for name in (listed or names) if is_public(name)}
    objects = {name: getattr(found, name) for name in public}
    known = {id(resolve(name)) for name in DOCUMENTED}
    missing = {
        name
        for name, value in objects.items()
        if (inspect.isfunction(value) or inspect.isclass(value)) and id(value) not in known and name != "main"
    }
    assert missing == LEFT_OUT.get(module, set())


_SECTION = re.compile(r"^(Args|Attributes):$", re.MULTILINE)


def documented_functions() -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of the documented functions, and of the methods that the reference shows."""
    for name in DOCUMENTED:
        found = resolve(name)
        if inspect.isclass(found):
            for method, function in vars(found).items():
                inner = getattr(function, "__func__", function)
                if is_public(method) and inspect.isroutine(inner) and inner.__doc__:
                    yield f"{name}.{method}", inner
        elif inspect.isroutine(found):
            yield name, found


def argument_names(function: Any) -> list[str]:
    names = inspect.signature(inspect.unwrap(function)).parameters
    return [name for name in names if name not in ("self", "cls", "_")]


def test_functions_document_their_arguments() -> None:
    lacking = []
    for name, function in documented_functions():
        names, text = argument_names(function), inspect.getdoc(function) or ""
        if names and not _SECTION.search(text) and not text.startswith("See "):
            lacking.append(name)
    assert not lacking


def test_documented_arguments_exist() -> None:
    """Every name before a colon in an Args section is an argument of the function."""
    unknown = []
    for name, function in documented_functions():
        text = inspect.getdoc(function) or ""
        section = re.search(r"^Args:\n((?:  .*\n?|\n(?=  ))*)", text, re.MULTILINE)
        if section is None:
            continue
        described = re.findall(r"^  (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", section[1], re.MULTILINE)
        names = {part.strip("* ") for row in described for part in row.split(",")}
        unknown += [f"{name}: {one}" for one in sorted(names - set(argument_names(function)))]
    assert not unknown
