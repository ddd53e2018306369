"""Select a matrix multiplication of XLA:CPU that signals may interrupt, for jaxlib before 0.11.

XLA's Eigen multiplies float32 matrices with a kernel of oneDNN. If a signal handler runs on a thread inside it, the
heap is corrupt afterwards, within seconds with a signal per millisecond. Linux delivers the signals of a process to its
main thread, but those of a timer of CPU time to the thread that computes: ``signal.setitimer`` with ITIMER_PROF or
ITIMER_VIRTUAL, as sampling profilers use it. So programs use Eigen's own kernel if such a timer is active when the
backend starts. Other processes keep oneDNN's, because Eigen's is slower for some models
(``TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL=false python -m benchmarks.guest --only VAE --conditions quiet``).

Checked on a CPU with AVX-512: memory is corrupted with jaxlib 0.10.2, and is not with Eigen's kernel, jaxlib 0.11.0 or
0.12.0.1.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import warnings

from torch_xla._engine.compat import versions

#: Read by XLA at the first matrix multiplication of a process.
VARIABLE = "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL"
_has_warned = False


def disable_if_profiled() -> None:
    """Set VARIABLE if a timer of CPU time is active and the user has not set it. Call it before the first program."""
    if has_active_timer() and not is_signal_safe():
        os.environ.setdefault(VARIABLE, "false")


def warn_of_late_timer() -> None:
    """Warn, once, of a timer of CPU time that was started after the backend."""
    global _has_warned
    if _has_warned or not has_active_timer() or is_signal_safe() or VARIABLE in os.environ:
        return
    _has_warned = True
    warnings.warn(
        f"torch_xla: a timer of CPU time (setitimer, as of a sampling profiler) was started after the first use of a "
        f"device. With jaxlib {importlib.metadata.version('jaxlib')}, its signals can corrupt memory while matrices "
        f"are multiplied. Start the profiler first, set {VARIABLE}=false before the process starts, or install "
        "jaxlib 0.11 or later.",
        UserWarning,
        stacklevel=2,
    )


def has_active_timer() -> bool:
    """Return whether a timer of CPU time is active in this process."""
    if not hasattr(signal, "getitimer"):  # Windows
        return False
    return any(signal.getitimer(timer)[0] > 0 for timer in (signal.ITIMER_PROF, signal.ITIMER_VIRTUAL))


def is_signal_safe() -> bool:
    """Return whether signals may interrupt the matrix multiplications of the installed jaxlib."""
    return not versions.is_before("0.11", "jaxlib")
