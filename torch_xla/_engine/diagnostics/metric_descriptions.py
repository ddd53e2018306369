"""What each counter and metric means: the table of docs/reference/metrics.md. Imports nothing of the package."""

from __future__ import annotations

from typing import NamedTuple


class Description(NamedTuple):
    """When a counter grows, or what a sample of a metric is."""

    group: str
    unit: str
    meaning: str


#: Prefixes of counters with one name per operator.
PREFIXES = {
    "aten::": Description("Operators", "calls", "an operator ran on the CPU, for example `aten::linalg_eig`"),
    "xla::": Description("Operators", "calls", "an operator was traced, for example `xla::linear`"),
}

COUNTERS = {
    "MarkStep": Description("Steps", "steps", "`torch_xla.sync()`, `xm.mark_step()` or a loader ended a step"),
    "UncachedSyncTensors": Description("Steps", "graphs", "a graph was new: no program for it was in memory"),
    "CachedSyncTensors": Description("Steps", "graphs", "a graph was found again, and its program reused"),
    "ExecuteComputation": Description("Steps", "launches", "a compiled program was launched"),
    "InterpretedGraphs": Description("Steps", "graphs", "a graph ran op by op instead of being compiled"),
    "UnexpectedRecompile": Description("Steps", "graphs", "a line of the script produced another graph than before"),
    "ReplayedSteps": Description(
        "Steps", "calls", "a function of `torch_xla.compile(replay=True)` did not run; its program did"
    ),
    "ReplayRecordings": Description("Steps", "calls", "such a function ran in Python, and was recorded"),
    "ReplayMisses": Description("Steps", "calls", "it was recorded again, because something it reads had changed"),
    "ReplayRejections": Description("Steps", "functions", "it cannot be replayed; a warning says why"),
    "BucketFills": Description(
        "Steps", "buckets", "a replayed step moved its small values to one array, because something had read or set one"
    ),
    "BucketSplits": Description("Steps", "buckets", "its small values became single arrays, because one was read"),
    "GraphFlush": Description("Steps", "graphs", "a graph ran before a sync because it had XLA_TRIM_GRAPH_SIZE ops"),
    "aten::_local_scalar_dense": Description(
        "Operators", "calls", "Python read a value: `.item()`, `float(t)`, `if t`"
    ),
    "InterpreterFallbackOps": Description("Operators", "calls", "an op of an interpreted graph was compiled by XLA"),
    "InterpreterUnsupportedGraphs": Description("Operators", "graphs", "a graph had to be compiled, not interpreted"),
    "CpuKernelCalls": Description("Operators", "calls", "a compiled CPU program contains a call of an ATen kernel"),
    "ShapeInference": Description("Operators", "calls", "shape and dtype of an op were computed, not found in a cache"),
    "CreateCompileHandles": Description("Programs", "programs", "a program was compiled, or loaded from the cache"),
    "DestroyCompileHandles": Description("Programs", "programs", "a program left the cache in memory"),
    "OpByOpCompileCacheHit": Description("Programs", "ops", "eager mode or op-by-op runs reused a program of one op"),
    "OpByOpCompileCacheMiss": Description(
        "Programs", "ops", "eager mode or op-by-op runs compiled a program of one op"
    ),
    "OpByOpGraphEvicted": Description("Programs", "graphs", "an op-by-op graph left the cache in memory"),
    "PersistentCacheHit": Description("Persistent cache", "programs", "a program was loaded from disk"),
    "PersistentCacheGraphHit": Description("Persistent cache", "programs", "loaded without tracing the graph in jax"),
    "PersistentCachePrefetchHit": Description("Persistent cache", "programs", "loaded in the background at startup"),
    "PersistentCacheMiss": Description(
        "Persistent cache", "programs", "a program was not on disk: compiled, or fetched"
    ),
    "PersistentCacheWrite": Description("Persistent cache", "programs", "a compiled program was written to disk"),
    "PersistentCacheWriteFailure": Description("Persistent cache", "programs", "a program could not be written"),
    "PersistentCacheDeserializeFailure": Description("Persistent cache", "programs", "a file could not be loaded"),
    "PersistentCacheEvicted": Description("Persistent cache", "programs", "a program was removed by the size limit"),
    "PersistentCacheSourcesUnknown": Description(
        "Persistent cache", "graphs", "a graph has no key: a source is unknown"
    ),
    "JobProgramsCompiled": Description("Persistent cache", "programs", "this process compiled a program for the job"),
    "JobProgramsFetched": Description("Persistent cache", "programs", "another process of the job had compiled it"),
    "JobCompilersReplaced": Description(
        "Persistent cache", "processes", "a process of the job died while it compiled; another compiled the program"
    ),
    "CreateXlaTensor": Description("Memory", "tensors", "a tensor was created; alive: minus `DestroyXlaTensor`"),
    "DestroyXlaTensor": Description("Memory", "tensors", "a tensor was freed"),
    "CreateDataHandles": Description(
        "Memory", "buffers", "a device buffer was created; alive: minus `DestroyDataHandles`"
    ),
    "DestroyDataHandles": Description("Memory", "buffers", "a device buffer was freed"),
    "CheckpointReadsLocal": Description("Checkpoints", "files", "a file of a snapshot was read on this host"),
    "CheckpointReadsPeer": Description("Checkpoints", "files", "a part of one was received from another process"),
    "CheckpointReadsRemote": Description("Checkpoints", "files", "a file of a checkpoint was read under its `path`"),
    "CheckpointSnapshotFailures": Description(
        "Checkpoints", "snapshots", "a snapshot was dropped: a process could not write its files"
    ),
}

METRICS = {
    "CompileTime": Description("Time", "time", "lowering and compiling one program"),
    "ExecuteTime": Description("Time", "time", "one run of a compiled program, from its start to its results"),
    "InterpretTime": Description("Time", "time", "one run of an interpreted graph"),
    "PersistentCacheLoad": Description("Time", "time", "loading one program from disk"),
    "JobProgramFetch": Description("Time", "time", "waiting for a program that another process of the job compiles"),
    "TransferToServerTime": Description("Time", "time", "copying tensors from the host to the device"),
    "TransferFromServerTime": Description("Time", "time", "reading values: waiting for them, and copying to the host"),
    "TransferDeviceToDeviceTime": Description("Time", "time", "copying a tensor between devices"),
    "EagerOpCompileTime": Description("Time", "time", "eager mode: compiling one op"),
    "EagerOpExecuteTime": Description("Time", "time", "eager mode: running one op"),
    "ExecuteChainedTime": Description("Time", "time", "op-by-op runs: running the ops of one graph"),
    "TensorsGraphSize": Description("Size", "ops", "number of operations of one graph"),
    "OpByOpGraphSize": Description("Size", "ops", "number of operations of one op-by-op graph"),
    "InputOutputAliasCount": Description("Size", "buffers", "inputs that one compiled program updates in place"),
    "OutboundData": Description("Size", "bytes", "size of one transfer to the device"),
    "InboundData": Description("Size", "bytes", "size of one transfer to the host"),
}


def describe(name: str) -> Description | None:
    """Return the description of a counter or metric, or None if it has none."""
    known = COUNTERS.get(name) or METRICS.get(name)
    return known or next((text for prefix, text in PREFIXES.items() if name.startswith(prefix)), None)
