"""Start a command on several hosts, monitor it, and terminate it: the code of ``torch_xla.distributed.xla_dist``."""
