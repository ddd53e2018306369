"""The end of a process: threads that launch programs end first, then the programs in flight, then executables go."""

from __future__ import annotations

from helpers import run_script

#: A loader of which a part is read, and a program that is in flight when the last line has run.
LAST_LINES = """
import atexit, gc
import torch, torch_xla
from torch_xla._engine.diagnostics import under_way
from torch_xla._engine.feed import prefetch
from torch_xla.distributed.parallel_loader import MpDeviceLoader
gc.unfreeze()
order = []
close, wait = prefetch.Feed.close, under_way._Watcher.stop
prefetch.Feed.close = lambda feed, *args: (order.append("feed"), close(feed, *args))[1]
under_way._Watcher.stop = lambda watcher: (order.append("programs"), wait(watcher))[1]
module = torch_xla._engine.recorder.module()
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
done = under_way._watchers[0]
atexit._run_exitfuncs()
assert order.index("programs") > max(i for i, what in enumerate(order) if what == "feed"), order
assert not done._thread.is_alive()
"""


def test_programs_in_flight_end_after_the_threads_that_launch_them() -> None:
    run_script(LAST_LINES)
