"""Programs for accelerators that are not here: compiled by the accelerators' own compilers, on any machine.

    python -m torch_xla.aot --target v5e:2x2 train.py           what a script would do on a TPU
    compiled = torch_xla.aot.compile(step, model, batch, target="h100")
    print(compiled.memory.peak, compiled.cost.products)

TPUs need ``pip install "torch_xla[tpu]"``, GPUs ``pip install "torch_xla[cuda]"``; neither needs a chip or a network.
"""

from torch_xla._engine.aot.compiler import TargetError, TooLargeError
from torch_xla._engine.aot.targets import MissingCompilerError, Target, target
from torch_xla.aot.library import Compiled, compile, load

__all__ = [
    "Compiled",
    "MissingCompilerError",
    "Target",
    "TargetError",
    "TooLargeError",
    "compile",
    "load",
    "target",
]
