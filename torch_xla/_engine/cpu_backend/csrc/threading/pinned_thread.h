// Pins threads to cores, one each, while the cores are not contended.
//
// Linux often schedules a thread on the core of the thread that woke it while another core is idle, until it balances
// its queues. That takes longer than many programs run, so two threads take twice as long (especially in virtual
// machines, where a sleeping core appears busy). Pinning compute threads avoids it. But if other processes use the
// cores as well, a pinned thread cannot move away and delays all threads that wait for it:
//
//  OMP_PROC_BIND, GOMP_CPU_AFFINITY or KMP_AFFINITY is set    the user controls affinity: nothing is pinned
//  fewer threads than the process has cores                   unpinned: other threads may use the cores
//  one thread per core, pinned      each on its core; -> unpinned when one waited more than half as long as it ran
//  one thread per core, unpinned    anywhere; -> pinned after a backoff, which doubles each time it was too short
//
// Does nothing on systems other than Linux.
#pragma once

#include <cstdint>
#include <vector>

namespace torch_xla::handlers {

// Returns the numbers of the cores that the process may use; empty if the user controls affinity. The first caller must
// be unpinned.
const std::vector<int>& allowed_cores();

// Pins the calling thread to a core, unless the kernel denies it; or restores the process's affinity mask.
void pin_current_thread(int core);
void unpin_current_thread();

// A thread of this process, by its system id. Move-only: it owns a file descriptor.
class PinnedThread {
 public:
  explicit PinnedThread(int id);
  PinnedThread(PinnedThread&& other) noexcept;
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;
  PinnedThread& operator=(PinnedThread&&) = delete;

  // Pins it to the core at this index of allowed_cores(), or unpins it; makes a system call only if that changes.
  void place(size_t number, bool pinned);
  // Returns whether it was pinned, and waited for its core more than half as long as it ran.
  bool is_starved();

 private:
  struct Spent {
    int64_t ran = 0, waited = 0;  // ns since the thread started
  };
  Spent spent() const;

  int id_;
  int statistics_;
  Spent before_;
  bool pinned_ = false;
};

// Counts the updates for which threads stay unpinned after contention.
class Backoff {
 public:
  bool is_over() { return left_ == 0 || --left_ == 0; }
  void start();
  void note_calm();  // an update found no contention

 private:
  int left_ = 0;
  int next_ = 0;  // length of the last backoff; 0 after twice as many updates without contention
  int calm_ = 0;  // updates since the last contention
};

}  // namespace torch_xla::handlers
