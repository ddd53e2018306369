"""ATen's kernels for programs on the CPU (csrc), as handlers of XLA's foreign function interface."""
