"""Starts a command on several machines, watches it, and ends it: what ``torch_xla.distributed.xla_dist`` does."""
