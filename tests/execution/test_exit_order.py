"""The end of a process: threads that launch programs end first, then the programs in flight, then executables go."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.support.helpers import run_script

#: How often each way to end is tried: a fault at exit may show once in several runs only.
RUNS = 20

#: A loader of which a part is read, and a program that is in flight when the last line has run.
LAST_LINES = """
import atexit, gc
import torch, torch_xla
from torch_xla._engine.diagnostics import completion
from torch_xla._engine.data_loading import prefetch
from torch_xla.distributed.parallel_loader import MpDeviceLoader
gc.unfreeze()
order = []
close, wait = prefetch.PrefetchFeed.close, completion._CompletionThread.stop
prefetch.PrefetchFeed.close = lambda feed, *args: (order.append("feed"), close(feed, *args))[1]
completion._CompletionThread.stop = lambda thread: (order.append("programs"), wait(thread))[1]
module = torch_xla._engine.recorder.bindings()
batches = [(torch.randn(64, 256), torch.randn(64, 256)) for _ in range(40)]
weight = torch.randn(256, 256, device="xla")
batches = iter(MpDeviceLoader(batches, torch.device("xla")))  # alive at the end
for step, (x, y) in enumerate(batches):
    for _ in range(20):
        x = torch.tanh(x @ weight)
    weight = weight - (x - y).mean() * 0.1
    if step == 3:
        break
torch_xla.sync()
done = completion._threads[0]
atexit._run_exitfuncs()
assert order.index("programs") > max(i for i, what in enumerate(order) if what == "feed"), order
assert not done._thread.is_alive()
"""


def test_programs_in_flight_end_after_the_threads_that_launch_them() -> None:
    run_script(LAST_LINES)


#: A loader of which a part is read. {ending} is what the last step does, {last} the last line of the program.
PARTLY_READ = """
import faulthandler, gc, sys
import torch, torch_xla
from torch_xla.distributed.parallel_loader import MpDeviceLoader
gc.unfreeze()
faulthandler.enable()
data = [(torch.randn(64, 256), torch.randn(64, 256)) for _ in range(400)]
devices = [torch.device(f"xla:{{i}}") for i in range({devices})]
loaders = [iter(MpDeviceLoader(data, device)) for device in devices]  # alive at the end
weights = [torch.randn(256, 256, device=device) for device in devices]
for step, pairs in enumerate(zip(*loaders)):
    for i, (x, y) in enumerate(pairs):
        for _ in range(20):
            x = torch.tanh(x @ weights[i])
        weights[i] = weights[i] - (x - y).mean() * 0.1
    if step == 3:
        {ending}
{last}
"""


@dataclass(frozen=True)
class Exit:
    """One way to end; ``code`` is the exit code that it asks for."""

    ending: str = "break"
    last: str = "torch_xla.sync()"
    code: int = 0
    devices: int = 1
    variables: dict[str, str] = field(default_factory=dict)


EXITS = {
    "after a barrier": Exit(),
    "without a barrier": Exit(last=""),
    "sys.exit": Exit(ending="sys.exit(7)", code=7),
    "exception": Exit(ending="raise ValueError('in the loop')", code=1),
    "two devices": Exit(devices=2, variables={"CPU_NUM_DEVICES": "2"}),
    "two devices, sys.exit": Exit(ending="sys.exit(7)", code=7, devices=2, variables={"CPU_NUM_DEVICES": "2"}),
    "freed memory is filled": Exit(variables={"MALLOC_PERTURB_": "173"}),
    "freed memory is filled, no barrier": Exit(last="", variables={"MALLOC_PERTURB_": "173"}),
    "more threads than cores": Exit(variables={"PJRT_NPROC": "8"}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXITS)
def test_a_partly_read_loader_ends_without_a_signal(name: str) -> None:
    case = EXITS[name]
    code = PARTLY_READ.format(ending=case.ending, last=case.last, devices=case.devices)
    codes = [run_script(code, check=False, **case.variables) for _ in range(RUNS)]
    failed = [done for done in codes if done.returncode != case.code]
    assert not failed, f"{len(failed)} of {RUNS} ended with {failed[0].returncode}:\n{failed[0].stderr[-3000:]}"
