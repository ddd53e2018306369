"""Data classes and files of a StableHLO folder. Does not import torch's exporter or run programs."""

from __future__ import annotations

import enum
import json
import os
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers the numpy dtypes bfloat16 and float8_*
import numpy as np

from torch_xla._engine.base import atomic_file


class VariableType(enum.Enum):
    """Source of an input of a function."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass
class VariableSignature:
    """Shape and dtype (numpy's name) of an input or output; ``dynamic_dims`` have any size, and are 0 in ``shape``."""

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = field(default_factory=list)


@dataclass
class InputLocation:
    """The flat argument (by ``position``), parameter (by ``name``) or constant (by ``position``) of an input."""

    type_: VariableType
    position: int = -1
    name: str = ""

    @classmethod
    def parameter(cls, name: str) -> InputLocation:
        return cls(VariableType.PARAMETER, name=name)

    @classmethod
    def input_arg(cls, position: int) -> InputLocation:
        return cls(VariableType.INPUT_ARG, position=position)

    @classmethod
    def constant(cls, position: int) -> InputLocation:
        return cls(VariableType.CONSTANT, position=position)


@dataclass
class StableHLOFunctionMeta:
    """Metadata that a caller of a function needs.

    ``unused_inputs`` are (location, signature) of arguments that the program does not read; its inputs are the others.
    The pytree structures are encoded by ``pytree_json.encode``; None if they cannot be encoded, and then the function
    takes and returns flat tensors. ``mutated`` names the buffers whose new values precede the results.
    ``constant_args`` are [position, value] of flat arguments that are not tensors and are constants of the program.
    """

    name: str
    stablehlo_version: str
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    unused_inputs: list[tuple[InputLocation, VariableSignature]]
    input_pytree_spec: Any = None
    output_pytree_spec: Any = None
    mutated: list[str] = field(default_factory=list)
    constant_args: list[list[Any]] = field(default_factory=list)


@dataclass
class StableHLOFunc:
    """A function: its metadata, StableHLO as a portable artifact and as text, and jax.export's serialization."""

    meta: StableHLOFunctionMeta
    bytecode: bytes
    text: str
    exported: bytes = b""


@dataclass
class StableHLOModelBundle:
    """A model: parameters by name, constants, and functions that use them."""

    stablehlo_funcs: list[StableHLOFunc]
    state_dict: dict[str, np.ndarray] = field(default_factory=dict)
    additional_constants: list[np.ndarray] = field(default_factory=list)


_CLASSES = {c.__name__: c for c in (VariableSignature, InputLocation, StableHLOFunctionMeta)}


class StableHLOJSONSerializer(json.JSONEncoder):
    """Encodes the dataclasses of this module as JSON; ``stablehlo_obj_hook`` decodes them."""

    def default(self, obj: Any) -> Any:
        if isinstance(obj, VariableType):
            return {"__class__": "VariableType", "value": obj.value}
        if is_dataclass(obj) and not isinstance(obj, type):
            fields = {name: getattr(obj, name) for name in asdict(obj)}
            return {"__class__": type(obj).__name__, **fields}
        return super().default(obj)


def stablehlo_obj_hook(dct: dict[str, Any]) -> Any:
    """Decode an object of StableHLOJSONSerializer's output: the ``object_hook`` of json.load.

    Args:
      dct: a decoded object of JSON.

    Raises:
      ValueError: the object is of an unknown class.
    """
    if "__class__" not in dct:
        return dct
    fields = dict(dct)
    name = fields.pop("__class__")
    if name == "VariableType":
        return VariableType(fields["value"])
    if name not in _CLASSES:
        raise ValueError(f"stablehlo: unexpected class {name!r} in the file of a function")
    return _CLASSES[name](**fields)


def save(bundle: StableHLOModelBundle, folder: str | os.PathLike[str], weights: bool = True) -> None:
    """Write a bundle into a folder, which is created; existing files are replaced atomically.

    Args:
      bundle: the functions, parameters and metadata.
      folder: the folder.
      weights: whether to write the parameters.
    """
    root = Path(folder)
    for name in ("data", "constants", "functions"):
        (root / name).mkdir(parents=True, exist_ok=True)
    if weights:
        for name, array in bundle.state_dict.items():
            _save_array(root / "data" / name, array)
    for place, array in enumerate(bundle.additional_constants):
        _save_array(root / "constants" / str(place), array)
    for function in bundle.stablehlo_funcs:
        base = root / "functions" / function.meta.name
        meta = json.dumps(function.meta, cls=StableHLOJSONSerializer, indent=1)
        contents = {".mlir": function.text.encode(), ".bytecode": function.bytecode, ".jax": function.exported}
        for ending, content in {**contents, ".meta": meta.encode()}.items():
            if content:
                _write(base.with_name(base.name + ending), content)


def load(folder: str | os.PathLike[str]) -> StableHLOModelBundle:
    """Read what ``save`` wrote.

    Args:
      folder: the folder.

    Raises:
      FileNotFoundError: there are no functions.
      ValueError: a corrupt file.
    """
    root = Path(folder)
    metas = sorted((root / "functions").glob("*.meta"))
    if not metas:
        raise FileNotFoundError(f"{root}: found no functions/*.meta; save_as_stablehlo writes such folders")
    functions = [_load_function(path) for path in metas]
    state = {str(p.relative_to(root / "data")): _load_array(p) for p in _files(root / "data")}
    constants = sorted(_files(root / "constants"), key=lambda p: int(p.name))
    return StableHLOModelBundle(functions, state, [_load_array(p) for p in constants])


def _load_function(path: Path) -> StableHLOFunc:
    try:
        meta = json.loads(path.read_text(), object_hook=stablehlo_obj_hook)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not valid metadata of a function: {error}") from error
    base, jax_file = path.with_suffix(""), path.with_suffix(".jax")
    exported = jax_file.read_bytes() if jax_file.exists() else b""
    return StableHLOFunc(meta, base.with_name(base.name + ".bytecode").read_bytes(),
                         base.with_name(base.name + ".mlir").read_text(), exported)  # fmt: skip


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


def _write(path: Path, content: bytes) -> None:
    with atomic_file.atomic_write(path) as file:
        file.write(content)


#: Prefix of the numpy file for a dtype that numpy's format cannot name: its bytes are stored as unsigned integers.
_NAMES = {"bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}


def _save_array(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    named = array.dtype.name if array.dtype.name in _NAMES else ""
    # A structured dtype with one field stores the name.
    plain = np.asarray(array, order="C")
    stored = plain.view(np.dtype([(named, f"u{array.dtype.itemsize}")])) if named else plain
    with atomic_file.atomic_write(path) as file:
        np.save(file, stored, allow_pickle=False)


def _load_array(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            array: np.ndarray = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: not a complete numpy file: {error}") from error
    return array.view(np.dtype(array.dtype.names[0])) if array.dtype.names else array
