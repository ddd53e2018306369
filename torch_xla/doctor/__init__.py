"""``python -m torch_xla.doctor``: check the installation and print the facts for a bug report; see command.py."""
