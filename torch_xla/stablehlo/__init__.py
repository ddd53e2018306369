"""Export models to StableHLO: programs that run without Python torch and, if desired, without this package.

    exported_program_to_stablehlo       convert an ExportedProgram of torch.export to a StableHLOGraphModule
    save_as_stablehlo                   convert an ExportedProgram and write it to a folder
    save_torch_model_as_stablehlo       trace a module with example arguments and write it to a folder
    StableHLOGraphModule.load           read such a folder; call the module like the model

Dynamic sizes of torch.export stay dynamic: ``dynamic_shapes={"x": {0: torch.export.Dim("batch")}}``. The folder has:

    data/NAME               parameters and buffers, as numpy files (.npy without the suffix)
    constants/I             tensors that are constants of the program, unless they are inlined
    functions/forward.mlir, forward.bytecode        StableHLO, as text and as a portable artifact
    functions/forward.jax   input of ``jax.export.deserialize``; needs only jax
    functions/forward.meta  JSON: the argument or file of each input, shapes, dtypes, pytree structures
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
