// A pointer to an object of a table, looked up by name at its first use.
#pragma once

#include <atomic>
#include <string>

namespace torch_xla {

// For function statics. A static that is initialized at run time has a guard, which stays locked in a forked child if
// another thread was initializing it. This one is initialized at compile time and needs none. Threads may look up the
// same object twice; null is looked up again.
template <typename T, T* (*kLookup)(const std::string&)>
class LazyPointer {
 public:
  constexpr explicit LazyPointer(const char* name) : name_(name) {}
  LazyPointer(const LazyPointer&) = delete;
  LazyPointer& operator=(const LazyPointer&) = delete;

  operator T*() const {
    T* found = pointer_.load(std::memory_order_acquire);
    if (found == nullptr) {
      found = kLookup(name_);
      pointer_.store(found, std::memory_order_release);
    }
    return found;
  }
  T& operator*() const { return *static_cast<T*>(*this); }
  T* operator->() const { return *this; }

 private:
  const char* const name_;
  mutable std::atomic<T*> pointer_{nullptr};
};

}  // namespace torch_xla
