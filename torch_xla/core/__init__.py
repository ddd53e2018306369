"""The classic interface: ``import torch_xla.core.xla_model as xm``."""
