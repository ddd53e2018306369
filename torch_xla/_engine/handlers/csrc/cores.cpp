#include "cores.h"

#ifndef __linux__

namespace torch_xla::handlers {

void Cores::spread() {}
void Cores::return_owner() const {}

}  // namespace torch_xla::handlers

#else

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "openmp.h"

namespace torch_xla::handlers {
namespace {

constexpr int kFirstRest = 16, kLongestRest = 4096;  // calls of spread()
constexpr int64_t kEnough = 20'000'000;              // ns, to judge by

struct Allowed {
  cpu_set_t all;           // what the process may use, as the team's owner found it
  std::vector<int> cores;  // the numbers of these; none where the user decides
};

bool user_decides() {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  return is_set("OMP_PROC_BIND") || is_set("GOMP_CPU_AFFINITY") || is_set("KMP_AFFINITY");
}

Allowed find_allowed() {
  Allowed found;
  CPU_ZERO(&found.all);
  if (user_decides() || sched_getaffinity(0, sizeof found.all, &found.all) != 0) {
    return found;
  }
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &found.all)) {
      found.cores.push_back(core);
    }
  }
  return found;
}

const Allowed& allowed() {
  static const Allowed found = find_allowed();
  return found;
}

void go_anywhere() { sched_setaffinity(0, sizeof(cpu_set_t), &allowed().all); }

// A thread of the team, as it sees itself.
class Worker {
 public:
  ~Worker() {
    if (statistics_ >= 0) {
      close(statistics_);
    }
  }

  // Binds it, or lets it go; the system is asked only where that changes.
  void place(size_t number, bool bound) {
    if (number == 0 || bound == bound_) {
      return;
    }
    bound_ = bound;
    if (bound) {
      go_to(allowed_cores()[number]);
    } else {
      go_anywhere();
    }
  }

  // Whether it was bound, and waited for its core more than half as long as it ran.
  bool crowded() {
    const Spent now = spent();
    const int64_t ran = now.ran - before_.ran, waited = now.waited - before_.waited;
    if (ran + waited < kEnough) {
      return false;
    }
    before_ = now;
    return bound_ && waited * 2 > ran;
  }

 private:
  struct Spent {
    int64_t ran = 0, waited = 0;  // ns since the thread began
  };

  Spent spent() const {
    char text[96];
    const ssize_t length = statistics_ < 0 ? -1 : pread(statistics_, text, sizeof text - 1, 0);
    long long ran = 0, waited = 0;  // stay 0 where the system does not tell
    text[std::max<ssize_t>(length, 0)] = '\0';
    std::sscanf(text, "%lld %lld", &ran, &waited);
    return {ran, waited};
  }

  int statistics_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  Spent before_;
  bool bound_ = false;
};

}  // namespace

const std::vector<int>& allowed_cores() { return allowed().cores; }

bool one_each() {
  const size_t cores = allowed_cores().size();
  return cores > 1 && static_cast<size_t>(at::get_num_threads()) == cores;
}

void go_to(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
}

bool Cores::place_workers() const {
  std::atomic<bool> crowded{false};
  on_each_thread([&] {
    static thread_local Worker worker;
    if (worker.crowded()) {
      crowded = true;
    }
    worker.place(at::get_thread_num(), bound_);
  });
  return crowded;
}

void Cores::spread() {
  if (rest_ > 0 && --rest_ > 0) {
    return;
  }
  const bool was_bound = bound_;
  bound_ = one_each();
  if (!bound_ && !was_bound) {
    return;
  }
  if (place_workers() && bound_) {
    next_rest_ = std::clamp(next_rest_ * 2, kFirstRest, kLongestRest);
    rest_ = next_rest_;
    calm_ = 0;
    bound_ = false;
    place_workers();
  } else if (++calm_ > 2 * next_rest_) {
    next_rest_ = 0;
  }
  bind_owner(bound_ && allowed_cores().size() == 2);
}

void Cores::bind_owner(bool bound) {
  if (bound && !owner_bound_) {
    go_to(allowed_cores()[0]);
  } else if (!bound && owner_bound_) {
    go_anywhere();
  }
  owner_bound_ = bound;
}

void Cores::return_owner() const {
  if (bound_ && !owner_bound_ && sched_getcpu() != allowed_cores()[0]) {
    go_to(allowed_cores()[0]);
    go_anywhere();
  }
}

}  // namespace torch_xla::handlers

#endif
