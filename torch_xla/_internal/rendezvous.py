"""The rendezvous of ``init_method="xla://"`` under upstream's name."""

from torch_xla.distributed.xla_backend import _xla_rendezvous_handler as pjrt_rendezvous_handler

__all__ = ["pjrt_rendezvous_handler"]
