// The part of compat/torch_internal.h that requires torch.profiler's headers.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

namespace torch_xla::compat {

// The profiler that is active on this thread: only torch.profiler (KINETO) accepts spans.
using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::profilerType;

// Adds a span with explicit times, in microseconds of the Unix epoch: torch's entry point for asynchronous backends.
using torch::autograd::profiler::reportBackendEventToActiveKinetoProfiler;

}  // namespace torch_xla::compat
