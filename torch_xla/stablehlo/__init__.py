"""Models as StableHLO: programs that run without Python's torch, and, where wanted, without this package.

    exported_program_to_stablehlo       an ExportedProgram of torch.export as a StableHLOGraphModule
    save_as_stablehlo                   the same, written to a folder
    save_torch_model_as_stablehlo       the same for a module and example arguments
    StableHLOGraphModule.load           reads such a folder; the module is called like the model

Sizes that torch.export knows as dynamic stay so: ``dynamic_shapes={"x": {0: torch.export.Dim("batch")}}``. The folder:

    data/NAME               parameters and buffers, as numpy files (.npy without the ending)
    constants/I             tensors that the program holds, where they are not inlined
    functions/forward.mlir, forward.bytecode        StableHLO, as text and as a portable artifact
    functions/forward.jax   what ``jax.export.deserialize`` reads: needs jax alone
    functions/forward.meta  JSON: which argument or file each input is, shapes, dtypes, structures
"""

from torch_xla.stablehlo.bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOJSONSerializer,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
    stablehlo_obj_hook,
)
from torch_xla.stablehlo.export import (
    StableHLOExportOptions,
    exported_program_to_stablehlo,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)
from torch_xla.stablehlo.module import StableHLOGraphModule

__all__ = [
    "InputLocation",
    "StableHLOExportOptions",
    "StableHLOFunc",
    "StableHLOFunctionMeta",
    "StableHLOGraphModule",
    "StableHLOJSONSerializer",
    "StableHLOModelBundle",
    "VariableSignature",
    "VariableType",
    "exported_program_to_stablehlo",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "stablehlo_obj_hook",
]
