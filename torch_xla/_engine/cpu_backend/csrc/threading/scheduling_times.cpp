#include "threading/scheduling_times.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>

namespace torch_xla::handlers {
namespace {

// The start of a file, of which the caller needs no more; empty if it cannot be read.
std::array<char, 200> read_start(int file) {
  std::array<char, 200> text{};
  if (file < 0 || pread(file, text.data(), text.size() - 1, 0) < 0) {
    text[0] = '\0';
  }
  return text;
}

}  // namespace

RunQueueTime::RunQueueTime() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}

RunQueueTime::~RunQueueTime() {
  if (file_ >= 0) {
    close(file_);
  }
}

std::chrono::nanoseconds RunQueueTime::read() const {
  long long running = 0;  // time on a core, time in the queue, number of time slices
  long long waiting = 0;
  if (std::sscanf(read_start(file_).data(), "%lld %lld", &running, &waiting) != 2) {
    waiting = 0;
  }
  return std::chrono::nanoseconds(waiting);
}

std::optional<std::chrono::nanoseconds> read_cpu_time_of_others() {
  const int file = open("/proc/stat", O_RDONLY | O_CLOEXEC);
  const auto text = read_start(file);
  if (file >= 0) {
    close(file);
  }
  long long user = 0;
  long long nice = 0;
  long long system = 0;
  long long interrupts = 0;
  long long soft_interrupts = 0;
  long long stolen = 0;
  timespec own{};
  if (std::sscanf(text.data(), "cpu %lld %lld %lld %*d %*d %lld %lld %lld", &user, &nice, &system, &interrupts,
                  &soft_interrupts, &stolen) != 6 ||
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0) {
    return std::nullopt;
  }
  const auto ticks = user + nice + system + interrupts + soft_interrupts + stolen;
  const auto busy = std::chrono::nanoseconds(std::chrono::seconds(ticks)) / sysconf(_SC_CLK_TCK);
  return busy - std::chrono::seconds(own.tv_sec) - std::chrono::nanoseconds(own.tv_nsec);
}

}  // namespace torch_xla::handlers
