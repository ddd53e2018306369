"""Print training progress and write it to TensorBoard; run tests in separate processes."""

from __future__ import annotations

import datetime
import functools
import importlib
import multiprocessing
import pickle
import time
import traceback
import unittest
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from torch_xla._engine.diagnostics.metrics import is_fallback
from torch_xla.core import xla_model as xm
from torch_xla.debug import metrics, metrics_compare_utils

__all__ = [
    "close_summary_writer",
    "get_summary_writer",
    "mp_test",
    "now",
    "print_test_update",
    "print_training_update",
    "write_to_summary",
]


def now(format: str = "%H:%M:%S") -> str:
    """Return the current time, formatted by strftime.

    Args:
      format: a format of time.strftime.
    """
    return datetime.datetime.now().strftime(format)


def get_summary_writer(logdir: str | None) -> Any:
    """Return a torch.utils.tensorboard.SummaryWriter for a folder; None if ``logdir`` is None or empty.

    Args:
      logdir: the folder; None or empty: write nothing.

    Raises:
      ImportError: tensorboard is not installed.
    """
    if not logdir:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(f"get_summary_writer: {error}; install tensorboard, or pass no logdir") from error
    writer = SummaryWriter(log_dir=logdir)
    write_to_summary(writer, 0, {"TensorboardStartTimestamp": time.time()})
    return writer


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Write scalars to TensorBoard; no-op if the writer is None.

    Args:
      summary_writer: as from get_summary_writer.
      global_step: number of the step.
      dict_to_write: scalars by name.
      write_xla_metrics: also write the metrics report, and as ``aten_ops_sum`` the number of operations that ran on
        the CPU instead.
    """
    if summary_writer is None:
        return
    for name, value in (dict_to_write or {}).items():
        summary_writer.add_scalar(name, value, global_step)
    if write_xla_metrics:
        report = metrics_compare_utils.parse_metrics_report(metrics.metrics_report())
        for name, value in report.items():
            summary_writer.add_scalar(name, value, global_step)
        fallbacks = sum(value for name, value in report.items() if is_fallback(name))
        summary_writer.add_scalar("aten_ops_sum", fallbacks, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Flush and close a writer; no-op if it is None.

    Args:
      summary_writer: a SummaryWriter, or None.
    """
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def print_training_update(
    device: torch.device | str,
    step: int,
    loss: torch.Tensor | float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Print a line about a training step and write its rates to TensorBoard; waits for the loss.

    Call it in a step closure (xm.add_step_closure) to avoid splitting the step.

    Args:
      device: the device, as it is printed.
      step, epoch: numbers of the step and the epoch.
      loss: the loss, a one-element tensor or a number.
      rate, global_rate: examples per second, recently and since the start.
      summary_writer: as from get_summary_writer.
    """
    _print_line(
        "Training",
        Device=_name(device),
        Epoch=epoch,
        Step=step,
        Loss=f"{float(loss):.5f}",
        Rate=f"{rate:.2f}",
        GlobalRate=f"{global_rate:.2f}",
    )
    write_to_summary(summary_writer, step, {"examples/sec": rate, "average_examples/sec": global_rate})


def print_test_update(
    device: torch.device | str, accuracy: torch.Tensor | float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """Print a line about an evaluation step, or about the end of the evaluation if the accuracy is given.

    Args:
      device: the device, as it is printed.
      accuracy: the accuracy, a one-element tensor or a number; None during the evaluation.
      epoch, step: numbers of the epoch and the step.
    """
    shown = None if accuracy is None else f"{float(accuracy):.2f}"
    _print_line("Test", Device=_name(device), Step=step, Epoch=epoch, Accuracy=shown)


def _print_line(what: str, **values: object) -> None:
    shown = [f"{name}={value}" for name, value in values.items() if value is not None]
    print("|", what, *shown, f"Time={now()}", flush=True)


def _name(device: torch.device | str) -> str:
    ordinal = xm.get_ordinal(defval=-1)
    return str(device) if ordinal < 0 else f"{device}/{ordinal}"


# --- tests in separate processes

#: Whether this process was started to run one test.
_in_subprocess = False


def mp_test(func: Callable[..., Any]) -> Callable[..., None]:
    """Run a test (a method of a unittest.TestCase, or a function) in a separate process.

    The test can use devices, set environment variables or crash without affecting other tests. The new process imports
    the test, so it must be importable by name. A skip is passed on.

    Args:
      func: the test.

    Raises:
      AssertionError: the test failed (with its traceback), or its process ended early (with the exit code).
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        if _in_subprocess:
            func(*args, **kwargs)
            return
        if args and isinstance(args[0], unittest.TestCase):
            work = functools.partial(_run_case, type(args[0]), func.__name__)
        else:
            work = functools.partial(_run_function, func.__module__, func.__qualname__, args, kwargs)
        _check(func.__qualname__, *_run_in_subprocess(work))

    return wrapper


def _check(name: str, result: tuple[str, str] | None, exit_code: int | None) -> None:
    if result is None:
        raise AssertionError(f"{name}: its process exited early with exit code {exit_code}")
    status, text = result
    if status == "skipped":
        raise unittest.SkipTest(text)
    if status == "failed":
        raise AssertionError(f"{name}: failed in its process\n{text}")


def _run_in_subprocess(work: Callable[[], tuple[str, str]]) -> tuple[tuple[str, str] | None, int | None]:
    """Return the outcome of the work, None if the process ended early, and the exit code."""
    try:
        pickle.dumps(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"mp_test: another process cannot import the test: {error}") from error
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_subprocess_main, args=(work, sender))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        result = None
    process.join()
    return result, process.exitcode


def _subprocess_main(work: Callable[[], tuple[str, str]], pipe: Connection) -> None:
    global _in_subprocess
    _in_subprocess = True
    pipe.send(work())


def _run_case(kind: type[unittest.TestCase], name: str) -> tuple[str, str]:
    result = unittest.TestResult()
    kind(name).run(result)
    for _, text in [*result.errors, *result.failures]:
        return "failed", text
    return ("skipped", result.skipped[0][1]) if result.skipped else ("passed", "")


def _run_function(module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        found(*args, **kwargs)
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except BaseException:
        return "failed", traceback.format_exc()
    return "passed", ""
