// The part of compat/torch_internal.h that needs torch.profiler's headers.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/csrc/profiler/orchestration/observer.h>

namespace torch_xla::compat {

// Which profiler watches this thread: only torch.profiler's (KINETO) takes spans.
using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::profilerType;

// A span with times of its own, in microseconds of the Unix epoch: torch's door for backends that run by themselves.
using torch::autograd::profiler::reportBackendEventToActiveKinetoProfiler;

}  // namespace torch_xla::compat
