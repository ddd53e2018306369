"""torch_xla.core.dynamo_bridge under its name in later releases of upstream."""

from torch_xla.core.dynamo_bridge import extract_compiled_graph

__all__ = ["extract_compiled_graph"]
