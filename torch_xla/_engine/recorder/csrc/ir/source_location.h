// Where a Node comes from: the Python stack that recorded it, and the torch.nn scope it was recorded in.
//
//   Node.origin -> table: number -> Origin (scope, code objects and instructions)
//
// Equal origins have one number; 0 is "unknown". Numbers and code objects are kept for the life of the process: a Node
// may outlive what recorded it. An Origin is no part of a graph's key. Off unless a setting turns it on: recording then
// takes the GIL (0.2 us, and 12 ns per Python frame), and lines are worked out when somebody asks.
#pragma once

#include <c10/macros/Macros.h>

#include <atomic>
#include <cstdint>
#include <vector>

struct PyCodeObject;

namespace torch_xla {

struct Frame {
  PyCodeObject* code;  // a reference that is never given back
  int instruction;     // offset in the code, in bytes
};

constexpr uint32_t kBackward = 1u << 31;  // in a scope: recorded by the backward pass of what was recorded there

struct SourceLocation {
  uint32_t scope;             // what set_scope was given, 0: none; with kBackward
  std::vector<Frame> frames;  // innermost first
};

inline std::atomic<bool> capturing_origins{false};

// Takes the GIL: no lock of ours may be held.
uint32_t capture_origin();

// The origin of a Node that is recorded now; 0 while nothing captures.
inline uint32_t current_origin() {
  return C10_UNLIKELY(capturing_origins.load(std::memory_order_relaxed)) ? capture_origin() : 0;
}

// The origin of that number, null for 0. GIL held.
const SourceLocation* find_origin(uint32_t number);

// The scope of what this thread records from now on; returns the one before. A backward pass has the scopes of the
// forward operations that it belongs to.
uint32_t set_scope(uint32_t scope);

}  // namespace torch_xla
