"""Random programs that combine features: xla computes, rejects and allows what the CPU does, step by step.

A program is a list of steps on a pool of tensors. Each step is done on the CPU first: what it gives has to be given on
xla (shape, dtype, whether it needs a gradient), what it rejects has to be rejected there, with an exception
of the same type, and in the end all tensors are compared. Steps bring lazy conjugates and negatives, ``out=`` of all
kinds, empty and 0-dimensional shapes, every dtype and its conversions, expanded and strided operands, modes, deep
copies, transforms, gradients, hooks and threads.

    python -m tests.fuzz.cross_feature FIRST COUNT      programs by number, each with its own seed; prints diffs

``values`` (dtypes, shapes, numbers), ``steps`` (what a program may do), ``machine`` (a pool on a device), ``compare``
(tolerances, and what the CPU leaves undefined), ``running`` (a program on both).
"""

from tests.fuzz.cross_feature.compare import CLOSE
from tests.fuzz.cross_feature.running import Difference, Program, program, run, shortened
from tests.fuzz.cross_feature.values import default_dtype

__all__ = ["CLOSE", "Difference", "Program", "default_dtype", "program", "run", "shortened"]
