// Locks across fork(). The child has only the forking thread: a lock that another thread held would stay locked
// forever.
#pragma once

#include <new>

namespace torch_xla {

// Callbacks of the forking thread: before the fork, after it in the parent, and after it in the child.
struct ForkHandlers {
  void* what;
  void (*before)(void*);
  void (*in_parent)(void*);
  void (*in_child)(void*);
};

// Registers callbacks for the life of the process. Call it only while the library is being loaded: no lock guards the
// list.
void at_fork(const ForkHandlers& handlers);

// Holds a process-lifetime lock during each fork, so that the data it guards is consistent in the child, and
// reinitializes the lock there, because the old one may count waiters of the parent. Locks are acquired in the order of
// their registration. All must be leaf locks: a holder waits neither for another lock nor for the GIL.
template <typename Lock>
struct ForkSafeLock {
  explicit ForkSafeLock(Lock& lock) {
    at_fork({&lock, [](void* l) { static_cast<Lock*>(l)->lock(); }, [](void* l) { static_cast<Lock*>(l)->unlock(); },
             [](void* l) { new (l) Lock(); }});
  }
};

}  // namespace torch_xla
