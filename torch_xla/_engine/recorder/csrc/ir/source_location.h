// Source location of a Node: the Python stack that recorded it, and the torch.nn module scope.
//
//  Node.origin -> table: id -> SourceLocation (scope, code objects and instructions)
//
// Equal locations share one id; 0 is "unknown". Ids and code objects live as long as the process: a Node may outlive
// the code that recorded it. Source locations are not part of a graph's key. Off by default; when on, recording takes
// the GIL (0.2 us, plus 12 ns per Python frame). Line numbers are computed only when a location is printed.
#pragma once

#include <c10/macros/Macros.h>

#include <atomic>
#include <cstdint>
#include <vector>

struct PyCodeObject;

namespace torch_xla {

struct Frame {
  PyCodeObject* code;  // a reference that is never released
  int instruction;     // byte offset in the code
};

constexpr uint32_t kBackward = 1u << 31;  // flag in a scope: recorded by the backward pass of that scope

struct SourceLocation {
  uint32_t scope;             // the id passed to set_scope, 0: none; may include kBackward
  std::vector<Frame> frames;  // innermost first
};

inline std::atomic<bool> capturing_origins{false};

// Captures the current source location. Takes the GIL: call it without holding a recorder lock.
uint32_t capture_origin();

// Returns the source location id for a Node recorded now; 0 if capture is off.
inline uint32_t current_origin() {
  return C10_UNLIKELY(capturing_origins.load(std::memory_order_relaxed)) ? capture_origin() : 0;
}

// Returns the source location of an id, null for 0. Requires the GIL.
const SourceLocation* find_origin(uint32_t number);

// Sets the module scope of what this thread records from now on; returns the previous one. Operations of a backward
// pass get the scopes of their forward operations.
uint32_t set_scope(uint32_t scope);

}  // namespace torch_xla
