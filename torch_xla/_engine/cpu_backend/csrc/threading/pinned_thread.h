// Threads that may be bound to cores, one each, as long as the cores are theirs.
//
// Linux often has a thread run on the core of the one that woke it while another is idle, until it balances its queues:
// longer than many a program takes, in which two threads take twice as long. (Above all in virtual machines, to which a
// core that sleeps looks taken.) So the threads that compute are bound to cores. But where others use the cores as
// well, a thread that may not go elsewhere keeps all that wait for it:
//
//   OMP_PROC_BIND, GOMP_CPU_AFFINITY or KMP_AFFINITY is set    the user decides: nothing is done
//   fewer threads than the process has cores                   all anywhere: there are others to share the cores with
//   as many: bound      each on its core; -> free, when one waited for its core more than half as long as it ran
//   as many: free       all anywhere; -> bound, after a while, which doubles each time that it was too short
//
// Off Linux nothing is done.
#pragma once

#include <cstdint>
#include <vector>

namespace torch_xla::handlers {

// The numbers of the cores that the process may use; none where the user decides. First asked for by a thread that is
// not bound.
const std::vector<int>& allowed_cores();

// From now on the calling thread runs on that core alone, unless the kernel refuses; or where the process may.
void pin_current_thread(int core);
void unpin_current_thread();

// A thread of this process, by the system's number of it. Moved, never copied: it holds a file.
class PinnedThread {
 public:
  explicit PinnedThread(int id);
  PinnedThread(PinnedThread&& other) noexcept;
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;
  PinnedThread& operator=(PinnedThread&&) = delete;

  // Binds it to the core with that place among the allowed ones, or lets it go; the system is asked only where that
  // changes.
  void place(size_t number, bool bound);
  // Whether it was bound, and waited for its core more than half as long as it ran.
  bool is_starved();

 private:
  struct Spent {
    int64_t ran = 0, waited = 0;  // ns since the thread began
  };
  Spent spent() const;

  int id_;
  int statistics_;
  Spent before_;
  bool bound_ = false;
};

// For how many looks threads stay free after others were in their way.
class Backoff {
 public:
  bool over() { return left_ == 0 || --left_ == 0; }
  void begin();
  void not_needed();  // the threads were looked at, and nobody was in their way

 private:
  int left_ = 0;
  int next_ = 0;  // what it will be after the next time; 0 when nobody was in the way for twice as long
  int calm_ = 0;  // looks since somebody was
};

}  // namespace torch_xla::handlers
