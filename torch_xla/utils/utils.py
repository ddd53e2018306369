"""``xu``: made-up data for trying out a training script."""

from __future__ import annotations

from typing import Any


class SampleGenerator:
    """A loader that gives the same ``data`` ``sample_count`` times, each time it is iterated.

    For measuring a model without its input pipeline: ``SampleGenerator((images, labels), 100)``.
    """

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data = data
        self._sample_count = sample_count
        self._given = 0

    def __iter__(self) -> SampleGenerator:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        return self.next()

    def next(self) -> Any:
        """The data once more. Raises StopIteration when it was given ``sample_count`` times."""
        if self._given >= self._sample_count:
            raise StopIteration
        self._given += 1
        return self._data
