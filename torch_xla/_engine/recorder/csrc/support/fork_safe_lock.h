// Locks across fork(). A child has the forking thread only: a lock that another thread held would stay taken for good.
#pragma once

#include <new>

namespace torch_xla {

// Called by the forking thread: before the fork, after it in the parent, and after it in the child.
struct ForkHandlers {
  void* what;
  void (*before)(void*);
  void (*in_parent)(void*);
  void (*in_child)(void*);
};

// Only while the library is being loaded: nothing guards the list. Never undone.
void at_fork(const ForkHandlers& handlers);

// Takes a lock of the life of the process for each fork, so that what it guards is whole in the child, where the lock
// is made anew: waiters of the parent would be counted in the old one. Locks are taken in the order in which they were
// named here, and all are leaf locks: whoever holds one waits for nothing, neither for another one nor for the GIL.
template <typename Lock>
struct ForkSafeLock {
  explicit ForkSafeLock(Lock& lock) {
    at_fork({&lock, [](void* l) { static_cast<Lock*>(l)->lock(); }, [](void* l) { static_cast<Lock*>(l)->unlock(); },
             [](void* l) { new (l) Lock(); }});
  }
};

}  // namespace torch_xla
