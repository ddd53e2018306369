// Decides how the threads of the kernels' OpenMP team wait for each other: OMP_WAIT_POLICY, chosen while the process runs.
//
// A team that waits actively spins. If other processes want the same cores, one of its threads is often preempted while
// the others spin, so that a loop of microseconds takes time slices of milliseconds. The operating system tells how long
// the kernel thread waited for a core: a few percent of the time on a quiet machine, up to half of it beside a process of
// the same kind.
//
//  policy   time of kernels with it  waiting for a core  others had a core   next policy
//  active   less than a window       any                 any                 active
//  active   a window                 little              any                 active; the next pause is the shortest again
//  active   a window                 much                not measured        active; others are measured from now on
//  active   a window                 much                little              active: the process waits for itself
//  active   a window                 much                much, or not known  passive for a pause; the next is twice as long
//  passive  less than the pause      any                 any                 passive
//  passive  the pause                any                 any                 active
//
// Threads of XLA's pool that compute or spin make the kernel thread wait as well. Sleeping does not help then.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "threading/scheduling_times.h"

namespace torch_xla::handlers {

// Owned by the kernel thread, for its life. Times are those that kernels run, without the time between kernels.
class WaitPolicy {
 public:
  using Duration = std::chrono::nanoseconds;

  static constexpr Duration kWindow = std::chrono::milliseconds(50);
  static constexpr double kMuch = 0.3;  // of the time; others: of one core
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
    const bool has_waited = waiting_ >= kMuch * time_;
    time_ = Duration(0);
    waiting_ = Duration(0);
    if (is_passive_) {
      is_passive_ = false;
    } else if (has_waited) {
      become_passive_if_loaded();
    } else {
      measured_.reset();
      next_pause_ = kShortestPause;
    }
  }

 private:
  struct Load {
    std::chrono::steady_clock::time_point time;
    std::optional<Duration> others;  // CPU time of other processes until then
  };

  void become_passive_if_loaded() {
    const Load now{std::chrono::steady_clock::now(), read_cpu_time_of_others()};
    if (measured_ && is_loaded(*measured_, now)) {
      is_passive_ = true;
      pause_ = next_pause_;
      next_pause_ = std::min(2 * next_pause_, kLongestPause);
    }
    measured_ = now;
  }

  static bool is_loaded(const Load& before, const Load& now) {
    return !before.others || !now.others || *now.others - *before.others >= kMuch * (now.time - before.time);
  }

  bool is_passive_ = false;
  Duration time_{0};
  Duration waiting_{0};
  Duration pause_ = kShortestPause;
  Duration next_pause_ = kShortestPause;
  std::optional<Load> measured_;  // at the end of the last window with much waiting
};

}  // namespace torch_xla::handlers
