// What Linux tells of the time that threads and processes had cores.
#pragma once

#include <chrono>
#include <optional>

namespace torch_xla::handlers {

// How long the calling thread was ready to run while others had the cores; 0 where the operating system does not tell.
class RunQueueTime {
 public:
  RunQueueTime();
  ~RunQueueTime();
  RunQueueTime(const RunQueueTime&) = delete;
  RunQueueTime& operator=(const RunQueueTime&) = delete;

  std::chrono::nanoseconds read() const;

 private:
  const int file_;
};

// CPU time that this process did not have since the machine started: of other processes, the kernel and, in a virtual
// machine, its neighbours. In steps of 10 ms; empty where the operating system does not tell.
std::optional<std::chrono::nanoseconds> read_cpu_time_of_others();

}  // namespace torch_xla::handlers
