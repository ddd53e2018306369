"""Scripts that import torch's functions before torch_xla, and scripts that import torch_xla and nothing else of it."""

from __future__ import annotations

import pytest

from tests.support.helpers import run_script

EARLIER = """
from torch import manual_seed as seed, save
from torch._higher_order_ops import associative_scan
from torch.distributed.fsdp import fully_shard
import torch
originals = seed, save, associative_scan, fully_shard
import torch_xla
now = seed, save, associative_scan, fully_shard
assert not {id(f) for f in originals} & {id(f) for f in now}, now
assert now[:2] == (torch.manual_seed, torch.save)
seed(3)
first = torch.rand(4, device="xla").tolist()
torch.manual_seed(3)
assert torch.rand(4, device="xla").tolist() == first
"""

ALONE = """
import torch
import torch.distributed as dist
import torch_xla
assert torch_xla._internal.tpu.num_available_devices() == 1
assert dist.get_default_backend_for_device("xla") == "xla"
assert dist.get_default_backend_for_device("cpu") == "gloo"
dist.init_process_group({backend}, init_method="{method}")
assert dist.get_backend() == "xla"
x = torch.arange(3.0, device="xla")
dist.all_reduce(x)
assert (x.tolist(), dist.get_rank(), dist.get_world_size()) == ([0.0, 1.0, 2.0], 0, 1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).to("xla"))
model(x).sum().backward()
assert model.module.bias.grad.tolist() == [1.0, 1.0]
dist.destroy_process_group()
"""

CPU_GROUP = """
import torch
import torch.distributed as dist
import torch_xla
from torch_xla._engine.device import devices
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
assert str(dist.get_backend_config()) == "cpu:gloo", dist.get_backend_config()
x = torch.ones(2)
dist.all_reduce(x)
assert x.tolist() == [1.0, 1.0] and not devices.backend_started()
"""


#: The device of a script without a device's name.
NEUTRAL_GROUP = """
import torch
import torch.distributed as dist
import torch_xla
device = {device}
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
assert str(dist.get_backend_config()) == "xla:xla", dist.get_backend_config()
x = torch.arange(3.0, device=device)
dist.all_reduce(x)
dist.barrier()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).to(device))
model(x).sum().backward()
assert (x.tolist(), model.module.bias.grad.tolist()) == ([0.0, 1.0, 2.0], [1.0, 1.0])
dist.destroy_process_group()
"""


def test_names_imported_before_torch_xla_are_replaced() -> None:
    run_script(EARLIER, fresh="torch is used before torch_xla is imported")


def test_process_groups_need_no_other_import() -> None:
    run_script(ALONE.format(backend="'xla'", method="xla://"), PJRT_DEVICE="CPU")
    run_script(ALONE.format(backend="'xla'", method="pjrt://"), PJRT_DEVICE="CPU")


def test_a_bound_device_chooses_the_process_group() -> None:
    run_script(ALONE.format(backend="device_id=torch.device('xla', 0)", method="xla://"), PJRT_DEVICE="CPU")


def test_process_groups_of_cpu_scripts_are_those_of_torch() -> None:
    run_script(CPU_GROUP)


@pytest.mark.parametrize("device", ["torch.accelerator.current_accelerator()", "torch.ones(1, device='xla').device"])
def test_process_groups_without_arguments_are_those_of_the_accelerator(device: str) -> None:
    run_script(NEUTRAL_GROUP.format(device=device), PJRT_DEVICE="CPU")
