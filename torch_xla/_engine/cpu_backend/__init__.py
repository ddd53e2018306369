"""The CPU backend: ATen kernels as XLA FFI handlers (csrc), XLA:CPU compile options, and malloc tuning."""
