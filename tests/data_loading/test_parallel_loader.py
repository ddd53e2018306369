"""Prefetching loaders: order, step barriers, shutdown, and no leaked thread."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import torch_xla
from tests.support.helpers import counts, run_script
from torch_xla._engine.diagnostics import metrics
from torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader
from torch_xla.utils.utils import SampleGenerator

DATA = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))


def loader(**options: Any) -> DataLoader:
    return DataLoader(DATA, batch_size=2, **options)


def loading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("torch_xla loader")]


def none_left() -> bool:
    deadline = time.monotonic() + 30  # for a machine under load; the threads themselves need no time
    while loading_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not loading_threads()


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    assert none_left(), loading_threads()


def values(batches: Any) -> list[Any]:
    return [[part.tolist() for part in batch] for batch in batches]


def test_batches_are_those_of_the_loader_on_the_device_and_again() -> None:
    device_loader = MpDeviceLoader(loader(), "xla")
    for _ in range(2):
        batches = list(device_loader)
        assert {part.device for batch in batches for part in batch} == {torch.device("xla:0")}
        assert [part.dtype for part in batches[0]] == [torch.float32, torch.int64]
        assert values(batches) == values(loader())
    assert len(device_loader) == 5 and len(iter(device_loader)) == 5


@pytest.mark.usefixtures("cold")
def test_each_next_is_a_barrier() -> None:
    w = torch.ones(2, device="xla")
    torch_xla.sync()
    with counts() as moved:
        for x, _ in MpDeviceLoader(loader(), torch.device("xla")):
            w = w + x.sum(0)
    assert moved["MarkStep"] == 6 and moved.executions == 5 and moved.compilations == 1 and not moved.fallbacks
    assert w.tolist() == (1 + DATA.tensors[0].sum(0)).tolist()


def test_barrier_after_several_batches() -> None:
    with counts() as moved:
        assert len(list(MpDeviceLoader(loader(), "xla", batches_per_execution=2))) == 5
    assert moved["MarkStep"] == 4  # before batches 0, 2, 4, and at the end of the unfinished last two


def test_shuffling_takes_the_same_random_numbers_as_without() -> None:
    torch.manual_seed(7)
    expected, after = values(loader(shuffle=True)), torch.rand(1)
    torch.manual_seed(7)
    device_loader = MpDeviceLoader(loader(shuffle=True), "xla")
    batches = iter(device_loader)
    first = next(batches)
    assert torch.rand(1) == after  # whatever the threads do, the main program's numbers are its own
    assert values([first, *batches]) == expected


def test_loader_with_worker_processes() -> None:
    expected = values(loader())
    device_loader = MpDeviceLoader(loader(num_workers=2), "xla")
    assert values(device_loader) == expected
    for _ in device_loader:
        break


def test_several_transfer_threads_keep_the_order() -> None:
    many = [torch.full((1,), float(i)) for i in range(100)]
    device_loader = MpDeviceLoader(many, "xla", host_to_device_transfer_threads=4, device_prefetch_size=2)
    assert [batch.item() for batch in device_loader] == list(range(100))


def test_loading_runs_ahead_up_to_its_limits() -> None:
    taken: list[int] = []

    def source() -> Iterator[torch.Tensor]:
        for i in range(100):
            taken.append(i)
            yield torch.tensor([i])

    batches = iter(MpDeviceLoader(source(), "xla", loader_prefetch_size=3, device_prefetch_size=2))
    assert next(batches).item() == 0
    # One with the consumer, two on the device, one being sent, three on the host, one that has just been read.
    limit = 1 + 2 + 1 + 3 + 1
    deadline = time.monotonic() + 30
    while len(taken) < limit and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(taken) == limit


def test_break_and_garbage_collection_end_the_threads() -> None:
    device_loader = MpDeviceLoader(loader(), "xla", loader_prefetch_size=1, device_prefetch_size=1)
    for _ in device_loader:
        assert loading_threads()
        break
    assert none_left()
    batches: Any = iter(device_loader)
    next(batches)
    batches.cycle = batches
    del batches
    gc.collect()
    assert none_left()


def test_close_ends_the_pass() -> None:
    parallel = ParallelLoader(loader(), ["xla:0"], loader_prefetch_size=1, device_prefetch_size=1)
    batches = parallel.per_device_loader("xla:0")
    next(batches)
    parallel.close()
    assert not loading_threads()  # close() waits for them
    with pytest.raises(StopIteration):
        next(batches)
    assert parallel.next_item("xla:0") is None


def test_a_loader_that_is_never_asked_starts_nothing() -> None:
    ParallelLoader(iter(()), ["xla:0"]).per_device_loader("xla:0")
    ParallelLoader(loader(), ["xla:0"]).close()
    assert not loading_threads()


class Broken(Exception):
    pass


@pytest.mark.parametrize("good", [0, 1, 3])
def test_error_in_the_loader_reaches_the_consumer_after_the_good_batches(good: int) -> None:
    def source() -> Iterator[torch.Tensor]:
        yield from (torch.ones(1) for _ in range(good))
        raise Broken("in the dataset")

    batches = iter(MpDeviceLoader(source(), "xla"))
    seen = 0
    with pytest.raises(Broken, match="in the dataset") as caught:  # noqa: PT012
        for _ in batches:
            seen += 1
    assert seen == good
    assert caught.traceback[-1].name == "source"  # the line that failed is in the traceback
    with pytest.raises(StopIteration):
        next(batches)


def test_error_when_the_loader_starts() -> None:
    class Unready:
        def __iter__(self) -> Iterator[torch.Tensor]:
            raise Broken("no file")

    with pytest.raises(Broken, match="no file"):
        list(MpDeviceLoader(Unready(), "xla"))


def test_error_on_the_way_to_the_device() -> None:
    source = [torch.ones(2), torch.empty(2, dtype=torch.float8_e8m0fnu), torch.ones(2)]
    batches = iter(MpDeviceLoader(source, "xla", host_to_device_transfer_threads=2))
    assert next(batches).tolist() == [1, 1]
    with pytest.raises(TypeError, match="float8_e8m0fnu is not supported on xla"):
        next(batches)


class Point(NamedTuple):
    x: torch.Tensor
    y: int


@dataclasses.dataclass(frozen=True)
class Record:
    image: torch.Tensor
    name: str


class Batch:
    """As in PyTorch's own documentation of custom batches."""

    def __init__(self) -> None:
        self.inputs, self.rows = torch.ones(2), [torch.zeros(1)]


def test_any_structure_keeps_its_types() -> None:
    factory = collections.defaultdict(list, a=torch.ones(1))
    batch = {
        "tuple": (torch.ones(1), "text", None), "point": Point(torch.ones(1), 3), "record": Record(torch.ones(1), "n"),
        "ordered": collections.OrderedDict(k=[torch.ones(1)]), "default": factory, "object": Batch(), 5: 2.5,
        "packed": torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]),
    }  # fmt: skip
    (moved,) = MpDeviceLoader([batch], "xla")
    assert [type(moved[key]) for key in batch] == [type(batch[key]) for key in batch]
    assert moved["tuple"][0].is_xla and moved["tuple"][1:] == ("text", None) and moved["point"].y == 3
    assert moved["record"].image.is_xla and moved["record"].name == "n" and moved["ordered"]["k"][0].is_xla
    assert moved["default"]["a"].is_xla and moved["default"]["new"] == []
    assert moved["object"].inputs.is_xla and moved["object"].rows[0].is_xla and moved["packed"].data.is_xla
    assert not batch["object"].inputs.is_xla and not factory["a"].is_xla and "new" not in factory  # type: ignore[union-attr]


def test_attributes_are_the_wrapped_loaders_but_can_be_set() -> None:
    plain = loader()
    device_loader: Any = MpDeviceLoader(plain, "xla:0", device_prefetch_size=2)
    assert device_loader.dataset is DATA and device_loader.batch_sampler is plain.batch_sampler
    assert device_loader._loader is plain and device_loader._device == torch.device("xla:0")
    assert device_loader._parallel_loader_kwargs == {"device_prefetch_size": 2}
    device_loader.dataset = "mine"
    assert device_loader.dataset == "mine" and plain.dataset is DATA
    with pytest.raises(AttributeError, match="no_such"):
        _ = device_loader.no_such
    for twin in (copy.copy(device_loader), copy.deepcopy(device_loader), pickle.loads(pickle.dumps(device_loader))):
        assert len(twin) == 5 and values(twin) == values(plain)


def test_subclass() -> None:
    class Doubled(MpDeviceLoader):
        def __init__(self, plain: DataLoader) -> None:
            super().__init__(plain, torch_xla.device())
            self.ended = 0

        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                yield batch[0] * 2
            self.ended += 1

    doubled = Doubled(loader())
    assert [x.tolist() for x in doubled] == [(x * 2).tolist() for x, _ in loader()]
    assert doubled.ended == 1 and isinstance(doubled, MpDeviceLoader)


def test_tqdm_and_loaders_without_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(tqdm(MpDeviceLoader(loader(), "xla")))) == 5
    assert "5/5" in capsys.readouterr().err
    endless = MpDeviceLoader((torch.ones(1) for _ in range(3)), "xla")
    with pytest.raises(TypeError, match="has no len"):
        len(endless)
    assert len(list(tqdm(endless))) == 3


def test_fixed_batch_size_ends_at_the_first_other_one() -> None:
    odd = DataLoader(DATA, batch_size=4)  # 4, 4, 2
    parallel = ParallelLoader(odd, ["xla:0"], fixed_batch_size=True)
    assert [len(x) for x, _ in parallel.per_device_loader("xla:0")] == [4, 4]
    turned = [torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 2)]
    assert len(list(ParallelLoader(turned, ["xla:0"], 1, fixed_batch_size=True).per_device_loader("xla:0"))) == 2


@pytest.mark.parametrize(
    ("devices", "options", "error", "message"),
    [
        (["cpu"], {}, ValueError, "expected distinct xla devices, got cpu"),
        ([], {}, ValueError, "got none"),
        (["xla:0", "xla:0"], {}, ValueError, "got xla:0, xla:0"),
        (["xla:0"], {"loader_prefetch_size": 0}, ValueError, "loader_prefetch_size must be at least 1, got 0"),
        (["xla:0"], {"input_sharding": "x"}, TypeError, "input_sharding must be a ShardingSpec"),
    ],
)
def test_errors_in_arguments(devices: list[str], options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^ParallelLoader: .*{message}"):
        ParallelLoader(loader(), devices, **options)


def test_error_for_a_device_that_is_not_the_loaders() -> None:
    with pytest.raises(ValueError, match=r"^ParallelLoader: xla:3 is not one of the loader's devices \(xla:0\)"):
        ParallelLoader(loader(), ["xla:0"]).per_device_loader("xla:3")


def test_three_devices_and_the_end_of_the_process() -> None:
    """Dealt out in turn, the last group dropped; a device that is left does not starve the others; a quiet end."""
    out = run_script(
        """
        import threading
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.parallel_loader as pl
        devices = xm.get_xla_supported_devices()
        source = [torch.full((1,), float(i)) for i in range(11)]
        def everywhere(function):
            results = {}
            threads = [threading.Thread(target=lambda d=d: results.update({d: function(d)})) for d in devices]
            [t.start() for t in threads]
            [t.join() for t in threads]
            return [results[d] for d in devices]
        parallel = pl.ParallelLoader(source, devices)
        print(parallel.per_device_samples(), len(parallel.per_device_loader("xla:1")))
        print(everywhere(lambda d: [(str(x.device), x.item()) for x in parallel.per_device_loader(d)]))
        parallel = pl.ParallelLoader(source, devices, loader_prefetch_size=1, device_prefetch_size=1)
        def leave_early(d):
            batches = parallel.per_device_loader(d)
            if d == "xla:1":
                next(batches)
                return batches.close()
            return [x.item() for x in batches]
        print(everywhere(leave_early))
        def broken():
            yield from source[:4]
            raise KeyError("all of them")
        parallel = pl.ParallelLoader(broken(), devices)
        def count(d):
            seen = []
            try:
                for x in parallel.per_device_loader(d):
                    seen.append(x.item())
            except KeyError as error:
                return seen, str(error)
        print(everywhere(count))
        endless = pl.MpDeviceLoader((torch.ones(64, 64) @ torch.ones(64, 64) for _ in iter(int, 1)), "xla:2")
        left = iter(endless)
        print(next(left).device, xm.xla_device())
        """,
        CPU_NUM_DEVICES="3",
        PJRT_DEVICE="CPU",
    )
    assert out.stderr == ""
    assert out.stdout.splitlines() == [
        "3 3",
        str([[(f"xla:{d}", float(d + 3 * i)) for i in range(3)] for d in range(3)]),
        "[[0.0, 3.0, 6.0], None, [2.0, 5.0, 8.0]]",
        str([([float(d)], "'all of them'") for d in range(3)]),
        "xla:2 xla:0",
    ]


def test_sample_generator() -> None:
    generator = SampleGenerator((torch.ones(2), torch.zeros(2)), 3)
    assert len(generator) == 3 and generator.next() is next(generator)
    device_loader = MpDeviceLoader(generator, "xla")
    for _ in range(2):
        assert values(device_loader) == [[[1.0, 1.0], [0.0, 0.0]]] * 3
    assert next(generator) and next(generator, None) is None


class Counting:
    """A loader that says how far it has been read, and whether that was the last: as those of accelerate do."""

    def __init__(self, count: int) -> None:
        self.count, self.read, self.at_the_end = count, 0, False

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.read, self.at_the_end = 0, False
        for i in range(self.count):
            self.read, self.at_the_end = i + 1, i + 1 == self.count
            yield torch.tensor([i])


@pytest.mark.parametrize("options", [{}, {"batches_per_execution": 2}, {"fixed_batch_size": True}], ids=str)
def test_what_a_loader_says_of_itself_belongs_to_the_batch(options: Any) -> None:
    device_loader: Any = MpDeviceLoader(Counting(5), "xla", **options)
    for _ in range(2):
        seen = []
        for batch in device_loader:
            time.sleep(0.01)
            seen.append((batch.item(), device_loader.read, device_loader.at_the_end))
        assert seen == [(i, i + 1, i == 4) for i in range(5)]


def test_state_of_a_subclass_of_the_data_loader() -> None:
    class Stateful(DataLoader):
        given = 0

        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                self.given += 1
                yield batch

    device_loader: Any = MpDeviceLoader(Stateful(DATA, batch_size=2), "xla")
    assert [device_loader.given for _ in device_loader] == [1, 2, 3, 4, 5]


def test_the_device_works_while_a_loader_is_read_as_asked() -> None:
    """A step is on its way when the next batch is read."""
    before: list[int] = []

    def source() -> Iterator[torch.Tensor]:
        for _ in range(3):
            before.append(metrics.metrics()["ExecuteTime"].data()[0])
            yield torch.ones(2)

    w = torch.ones(2, device="xla")
    torch_xla.sync()
    for x in MpDeviceLoader(source(), "xla"):
        w = w * x
    assert [count - before[0] for count in before] == [0, 1, 2]


def test_without_a_device_it_is_the_current_one() -> None:
    assert [x.device for x in MpDeviceLoader([torch.ones(1)], None)] == [torch.device("xla:0")]
