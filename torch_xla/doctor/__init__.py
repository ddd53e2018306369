"""``python -m torch_xla.doctor``: what a bug report needs, and what is wrong here; see command.py."""
