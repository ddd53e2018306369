"""The channel between the loader threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from torch_xla._engine.data_loading.channel import Channel, ChannelClosed


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def expect_end(channel: Channel[int]) -> None:
    with pytest.raises(ChannelClosed):
        channel.get()


def test_items_in_order_and_the_end() -> None:
    channel: Channel[str] = Channel(2)
    assert channel.put("a") and channel.put("b")
    channel.end()
    assert [channel.get(), channel.get()] == [(0, "a"), (1, "b")]
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            channel.get()


def test_full_channel_holds_the_producer() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(0)
    thread, results = in_thread(lambda: channel.put(1))
    thread.join(0.05)
    assert thread.is_alive()
    assert channel.get() == (0, 0)
    thread.join()
    assert results == [True] and channel.get() == (1, 1)


def test_parallel_producers_keep_the_order() -> None:
    channel: Channel[int] = Channel(8)
    threads = [in_thread(lambda place=place: channel.put(place, place))[0] for place in (3, 1, 2)]
    channel.put(0, 0)
    assert [channel.get()[1] for _ in range(4)] == [0, 1, 2, 3]
    for thread in threads:
        thread.join()


def test_the_earliest_end_wins_and_what_is_before_it_is_delivered() -> None:
    channel: Channel[int] = Channel(4)
    channel.end(KeyError("late"), 3)
    channel.end(ValueError("early"), 1)
    channel.end(None, 2)
    channel.put(0, 0)
    assert channel.get() == (0, 0)
    for _ in range(2):
        with pytest.raises(ValueError, match="early"):
            channel.get()


@pytest.mark.parametrize("waiting", ["put", "get", "turn"])
def test_close_frees_whoever_waits(waiting: str) -> None:
    channel: Channel[int] = Channel(1)
    if waiting == "get":
        thread, results = in_thread(lambda: expect_end(channel))
    else:
        channel.put(0)
        thread, results = in_thread(lambda: channel.put(1, 5 if waiting == "turn" else None))
    thread.join(0.05)
    assert thread.is_alive()
    channel.close()
    thread.join()
    assert len(results) == 1 and channel.closed and not channel.put(2)
    with pytest.raises(ChannelClosed):
        channel.get()
