#include "threading/pinned_thread.h"

#include <algorithm>

namespace torch_xla::handlers {
namespace {

constexpr int kFirstBackoff = 16, kLongestBackoff = 4096;

}  // namespace

void Backoff::start() {
  next_ = std::clamp(next_ * 2, kFirstBackoff, kLongestBackoff);
  left_ = next_;
  calm_ = 0;
}

void Backoff::note_calm() {
  if (++calm_ > 2 * next_) {
    next_ = 0;
  }
}

}  // namespace torch_xla::handlers

#ifndef __linux__

namespace torch_xla::handlers {

const std::vector<int>& allowed_cores() {
  static const std::vector<int> none;
  return none;
}

void pin_current_thread(int) {}
void unpin_current_thread() {}

PinnedThread::PinnedThread(int id) : id_(id), statistics_(-1) {}
PinnedThread::PinnedThread(PinnedThread&& other) noexcept : id_(other.id_), statistics_(-1) {}
PinnedThread::~PinnedThread() = default;
void PinnedThread::place(size_t, bool) {}
bool PinnedThread::is_starved() { return false; }

}  // namespace torch_xla::handlers

#else

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace torch_xla::handlers {
namespace {

constexpr int64_t kMinSample = 20'000'000;  // ns of run and wait time needed for a decision

struct Allowed {
  cpu_set_t all;           // the process's affinity mask, as the first caller found it
  std::vector<int> cores;  // the core numbers in it; empty if the user controls affinity
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

void pin(int thread, int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(thread, sizeof one, &one);
}

void unpin(int thread) {
  if (!allowed().cores.empty()) {
    sched_setaffinity(thread, sizeof(cpu_set_t), &allowed().all);
  }
}

}  // namespace

const std::vector<int>& allowed_cores() { return allowed().cores; }

void pin_current_thread(int core) { pin(0, core); }

void unpin_current_thread() { unpin(0); }

PinnedThread::PinnedThread(int id)
    : id_(id),
      statistics_(open(("/proc/self/task/" + std::to_string(id) + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC)) {}

PinnedThread::PinnedThread(PinnedThread&& other) noexcept
    : id_(other.id_),
      statistics_(std::exchange(other.statistics_, -1)),
      before_(other.before_),
      pinned_(other.pinned_) {}

PinnedThread::~PinnedThread() {
  if (statistics_ >= 0) {
    close(statistics_);
  }
}

void PinnedThread::place(size_t number, bool pinned) {
  if (pinned == pinned_) {
    return;
  }
  pinned_ = pinned;
  if (pinned) {
    pin(id_, allowed_cores()[number]);
  } else {
    unpin(id_);
  }
}

bool PinnedThread::is_starved() {
  const Spent now = spent();
  const int64_t ran = now.ran - before_.ran, waited = now.waited - before_.waited;
  if (ran + waited < kMinSample) {
    return false;
  }
  before_ = now;
  return pinned_ && waited * 2 > ran;
}

PinnedThread::Spent PinnedThread::spent() const {
  char text[96];
  const ssize_t length = statistics_ < 0 ? -1 : pread(statistics_, text, sizeof text - 1, 0);
  long long ran = 0, waited = 0;  // 0 if the system has no statistics
  text[std::max<ssize_t>(length, 0)] = '\0';
  std::sscanf(text, "%lld %lld", &ran, &waited);
  return {ran, waited};
}

}  // namespace torch_xla::handlers

#endif
