// What the buffers of each device take, and which they are: the numbers behind xm.get_memory_info.
//
// A Buffer is counted from its making to its death, or until its memory is given to a result (donate). `peak` is the
// most that was counted at once since take_peak() was last called. What made a buffer is a number that means
// something to the Python side only: set_provenance() before buffers are made, on the same thread.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/node.h"

namespace torch_xla {

struct MemoryUse {
  int64_t bytes = 0;
  int64_t peak = 0;     // since take_peak()
  int64_t highest = 0;  // peak of the process
  int64_t buffers = 0;
};

MemoryUse memory_use(int8_t device);

// A program has started that needs `bytes` on top of what is counted: that counts as having been in use.
void add_workspace_peak(int8_t device, int64_t bytes);

// The peak since the last call; from now on it counts from what is there now.
int64_t take_peak(int8_t device);

// The provenance of the buffers that this thread makes, until take_provenance(); 0 stands for unknown.
void set_provenance(uint32_t provenance);
uint32_t take_provenance();

struct BufferEntry {
  _object* array;  // a new reference
  int64_t bytes;
  uint32_t provenance;
};

// Every buffer that is counted, oldest first. GIL held.
std::vector<BufferEntry> list_buffers(int8_t device);

}  // namespace torch_xla
