// Decides how the threads of the kernels' OpenMP team wait for each other: OMP_WAIT_POLICY, chosen while the process runs.
//
// A team that waits actively spins. If other processes want the same cores, one of its threads is often preempted while
// the others spin, so that a loop of microseconds takes time slices of milliseconds. The operating system tells how long
// the kernel thread waited for a core: a few percent of the time on a quiet machine, up to half of it beside a process of
// the same kind.
//
//  policy   time of kernels with it  waiting for a core  next policy
//  active   less than a window       any                 active
//  active   a window                 little              active; the next pause is the shortest again
//  active   a window                 much                passive for a pause; the next pause is twice as long
//  passive  less than the pause      any                 passive
//  passive  the pause                any                 active
#pragma once

#include <algorithm>
#include <chrono>

namespace torch_xla::handlers {

// Owned by the kernel thread, for its life. Times are those that kernels run, without the time between kernels.
class WaitPolicy {
 public:
  using Duration = std::chrono::nanoseconds;

  static constexpr Duration kWindow = std::chrono::milliseconds(50);
  static constexpr double kMuch = 0.3;  // of the time
  static constexpr Duration kShortestPause = std::chrono::milliseconds(250);
  static constexpr Duration kLongestPause = std::chrono::seconds(4);

  bool is_passive() const { return is_passive_; }

  // Adds a kernel that took `time`, of which the kernel thread waited for a core for `waiting`.
  void add(Duration time, Duration waiting) {
    time_ += time;
    waiting_ += waiting;
    if (time_ < (is_passive_ ? pause_ : kWindow)) {
      return;
    }
    if (is_passive_) {
      is_passive_ = false;
    } else if (waiting_ >= kMuch * time_) {
      is_passive_ = true;
      pause_ = next_pause_;
      next_pause_ = std::min(2 * next_pause_, kLongestPause);
    } else {
      next_pause_ = kShortestPause;
    }
    time_ = Duration(0);
    waiting_ = Duration(0);
  }

 private:
  bool is_passive_ = false;
  Duration time_{0};
  Duration waiting_{0};
  Duration pause_ = kShortestPause;
  Duration next_pause_ = kShortestPause;
};

}  // namespace torch_xla::handlers
