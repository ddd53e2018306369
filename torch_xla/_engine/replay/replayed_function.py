"""torch_xla.compile(step, replay=True): records a step until two recordings agree, then launches its program directly.

    unknown ──record──► one recording ──an equal one──► replayed ──a guard fails──► recorded again (a miss)
                            │                               ▲                              │
                            └──three lasting problems, or   └───────agrees with an earlier─┘
                               16 recordings in a row──► rejected: torch_xla.compile without replay, one warning

The ReplayedFunction owns its last recordings and up to eight ReplayedSteps, the most recently used first: one per
structure of arguments, training mode and so on. They own references to the tensors and guarded objects of the step,
which live as long as the function. Only the thread that recorded a step replays it. An exception in any state leaves
all tensors as they were: a failing step keeps its pending operations, as torch_xla.compile does, and a failing launch
has assigned nothing.

What a replay requires, and what a difference leads to:

    guarded                                                     difference
    structure, shapes, dtypes, device of arguments; their       recorded again
      other values by equality or identity
    float arguments, floats of param_groups, step counts        another number, once they have differed; before,
                                                                recorded again
    grad and inference mode, autocast, default dtype and        recorded again
      device, determinism, anomaly mode, thread, precision
    attributes, items, closures and globals that the step       recorded again
      can reach: training flags, modules, optimizers, hooks
    requires_grad, hooks and presence of gradients of tensors   recorded again
    values of tensors                                           read at each launch
    tensors that share a value that is to be overwritten        recorded again
    a mode of torch, a tracer, eager or op-by-op execution,     run as torch_xla.compile does
      a listener that sees each graph, an outer region
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo_hooks, messages
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.base.tracebacks import hide_engine_frames
from torch_xla._engine.compat import call_state
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import metrics, observer, sync_reasons
from torch_xla._engine.diagnostics.recompilation_tracker import tracker
from torch_xla._engine.execution import barrier, eager_mode, step_closures, value_errors
from torch_xla._engine.execution.compile_region import CompileContext
from torch_xla._engine.replay.agreement import RecordingsDiffer
from torch_xla._engine.replay.problem import Problem
from torch_xla._engine.replay.recording import Recording
from torch_xla._engine.replay.replayed_step import ReplayedStep, ambient_state
from torch_xla._engine.replay.step_arguments import StepArguments

_MOST_STEPS = 8
_MOST_RECORDINGS = 4  # to compare a new one with
_MOST_LASTING = 3  # recordings in a row with a lasting problem
_MOST_IN_A_ROW = 16  # recordings in a row without a replay


class ReplayedFunction:
    """A step of ``torch_xla.compile(replay=True)``; see the module. Called like the function that it wraps."""

    def __init__(self, function: Callable[..., Any], name: str, context: CompileContext) -> None:
        functools.update_wrapper(self, function)
        self._function, self._name, self._context = function, name, context
        self._lock = fork_safe_lock()
        self._recorder_thread: int | None = None
        self._recordings: deque[Recording] = deque(maxlen=_MOST_RECORDINGS)
        self._steps: list[ReplayedStep] = []
        self._in_a_row = self._lasting = 0
        self._missed = ""  # what the last call since a replay missed
        self._rejected = False

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @hide_engine_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._rejected or dynamo_hooks.is_tracing() or not self._applies():
            return self._run(args, kwargs)
        arguments = StepArguments(args, kwargs)
        device = recorder.bindings().current_device()
        if recorder.bindings().pending_count(device):
            with sync_reasons.sync_reason(sync_reasons.BEFORE_COMPILED):
                barrier.mark_step()
        ambient, missed = ambient_state(), None
        for i, step in enumerate(self._steps):
            reason = step.mismatch(arguments, ambient)
            if reason is None:
                reason, result = self._replay(step, arguments.leaves)
                if reason is None:
                    self._in_a_row, self._lasting, self._missed = 0, 0, ""
                    if i:
                        self._steps.insert(0, self._steps.pop(i))
                    return result
            missed = missed or reason
        if missed is not None:
            self._missed = missed
            metrics.count("ReplayMisses")
            tracker.note_replay_miss(self._name, missed)
        return self._record_alone(Recording(self._function, self._name, arguments, device), arguments, ambient)

    @staticmethod
    def _applies() -> bool:
        """Whether this call may be recorded or replayed, rather than run as torch_xla.compile does."""
        return not (
            eager_mode.in_region()
            or observer.listeners
            or settings.XLA_SYNC_TENSORS_OPBYOP
            or settings.XLA_SYNC_WAIT
            or settings.XLA_SAVE_TENSORS_FILE is not None
            or call_state.active_modes()
        )

    def _run(self, args: Any, kwargs: Any) -> Any:
        with self._context:
            return self._function(*args, **kwargs)

    def _replay(self, step: ReplayedStep, leaves: Sequence[Any]) -> tuple[str | None, Any]:
        devices.check_not_forked()
        with sync_reasons.sync_reason(sync_reasons.REPLAYED):
            reason, result = recorder.bindings().with_execution_lock(step.device, step.launch, leaves)
        if reason is None:
            metrics.count("ReplayedSteps")
            observer.on_step_end(step.device)
            step_closures.run_step_closures(step.device)
            value_errors.raise_ready(step.device)
        return reason, result

    def _record_alone(self, recording: Recording, arguments: StepArguments, ambient: Any) -> Any:
        """Record the call, unless another thread is recording this function."""
        with self._lock:
            is_free = self._recorder_thread is None
            if is_free:
                self._recorder_thread = threading.get_ident()
        if not is_free:
            args, kwargs = arguments.unflatten(arguments.originals)
            return self._run(args, kwargs)
        try:
            return self._record(recording, ambient)
        finally:
            self._recorder_thread = None

    def _record(self, recording: Recording, ambient: Any) -> Any:
        metrics.count("ReplayRecordings")
        others = [d for d in range(devices.count()) if d != recording.device]
        before = [recorder.bindings().pending_count(d) for d in others]
        with self._context:
            recording.prepare()
            region = self._context.innermost_region()
            region.on_launch = lambda run, program, _: self._observe(recording, region, run, program)
            result = recording.run()
            if region.early_run is not None:
                recording.problem = Problem(
                    f"it reads a value, or ends a step, at {region.early_run}",
                    "move this line out of the step: return the tensor, and read it after the call",
                )
        if before != [recorder.bindings().pending_count(d) for d in others]:
            recording.fail("it records operations of another device than the current one", "use one device")
        self._learn(recording, ambient)
        return result

    @staticmethod
    def _observe(recording: Recording, region: eager_mode.OpenRegion, run: Any, program: Any) -> None:
        if region.ended and recording.observation is None:  # step closures may launch others
            recording.observe(run, program)

    def _learn(self, recording: Recording, ambient: Any) -> None:
        """Compare a recording with earlier ones: make a step of it, or stop recording."""
        self._in_a_row += 1
        if ambient_state() != ambient:
            recording.fail("it changes a mode, such as the grad mode", "restore the mode before it returns")
        if recording.observation is None:
            recording.fail("it runs no program on the current device", "replay functions that compute on the device")
        problem, reason = recording.problem, ""
        if problem is None:
            step, problem, reason = self._agreeing_step(recording, ambient)
            recording.release_call()
            self._recordings.append(recording)
            if step is not None:
                self._steps.insert(0, step)
                del self._steps[_MOST_STEPS:]
                self._lasting = 0
                if self._missed and self._in_a_row >= _MOST_IN_A_ROW:
                    fix = "keep what changes in an object that the step does not reach, or pass it as an argument"
                    self._reject(Problem(f"{self._missed} has changed before each call", fix))
                return
        self._lasting += problem is not None and problem.lasting
        if self._lasting >= _MOST_LASTING or self._in_a_row >= _MOST_IN_A_ROW:
            fix = "pass what changes as tensors of equal shapes on the device"
            self._reject(problem or Problem(reason or "each call differs from those before it", fix))

    def _agreeing_step(self, recording: Recording, ambient: Any) -> tuple[ReplayedStep | None, Problem | None, str]:
        """Return the step that an earlier recording agrees on, or (None, a problem or None, what differs)."""
        problem, reason = None, ""
        for earlier in reversed(self._recordings):
            try:
                return ReplayedStep(earlier, recording, ambient), None, ""
            except RecordingsDiffer as error:
                problem, reason = problem or error.problem, reason or str(error)
        return None, problem, reason

    def _reject(self, problem: Problem) -> None:
        self._rejected = True
        self._recordings.clear()
        self._steps.clear()
        metrics.count("ReplayRejections")
        tracker.note_replay_miss(self._name, f"rejected: {problem.cause}")
        headline = f"torch_xla.compile: {self._name} cannot be replayed, and is recorded in each call"
        messages.warn(messages.compose(headline, problem.cause, problem.fix, "replay"))
