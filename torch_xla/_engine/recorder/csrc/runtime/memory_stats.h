// Device memory accounting: how much memory the buffers of each device use, and which buffers exist
// (xm.get_memory_info).
//
// A Buffer counts from construction to destruction, or until it is donated to a result. `peak` is the largest total
// since the last take_peak(). The provenance of a buffer is an id that only the Python side interprets: call
// set_provenance() before making buffers on the same thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/buffer.h"

namespace torch_xla {

struct MemoryUse {
  int64_t bytes = 0;
  int64_t peak = 0;     // since take_peak()
  int64_t highest = 0;  // peak of the process
  int64_t buffers = 0;
};

MemoryUse memory_use(int8_t device);

// Accounts for a launched program that needs `bytes` in addition to the counted buffers: raises the peak.
void add_workspace_peak(int8_t device, int64_t bytes);

// Returns the peak since the last call, and resets it to the current use.
int64_t take_peak(int8_t device);

// Sets the provenance of the buffers that this thread makes until take_provenance(); 0 means unknown.
void set_provenance(uint32_t provenance);
uint32_t take_provenance();

struct BufferEntry {
  _object* array;  // a new reference
  int64_t bytes;
  uint32_t provenance;
};

// Returns a bucket that has values of counted buffers; null if there is none. Requires the GIL.
BucketPtr find_filled_bucket(int8_t device);

// Returns every counted buffer, oldest first. Requires the GIL, and that no bucket is filled.
std::vector<BufferEntry> list_buffers(int8_t device);

}  // namespace torch_xla
