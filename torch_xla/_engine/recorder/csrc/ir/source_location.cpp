#include "ir/source_location.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <Python.h>

#include <deque>
#include <unordered_map>

#include "compat/torch_internal.h"
#include "runtime/device.h"
#include "support/hash.h"

namespace torch_xla {
namespace {

constexpr size_t kMaxFrames = 128;           // the innermost ones are stored
constexpr size_t kMaxOrigins = 1 << 20;      // further ones are unknown (0): a program may generate code forever
constexpr size_t kForwardScopes = 1u << 16;  // of the most recent operations with gradients

// Guarded by the GIL.
struct Table {
  std::unordered_map<Key, uint32_t, KeyHash> numbers;
  std::deque<SourceLocation> origins;
};

Table& table() {
  static auto* t = new Table;
  return *t;
}

thread_local uint32_t scope = 0;

// Autograd assigns sequence numbers to a thread's operations with gradients before they reach the recorder; an
// operation's backward node has the same number. `number` is that plus one, so that 0 marks an empty slot.
struct ForwardScope {
  uint64_t number = 0;
  uint32_t scope = 0;
};

ForwardScope& forward_scope(uint64_t number) {
  static thread_local std::vector<ForwardScope> scopes(kForwardScopes);
  return scopes[number % kForwardScopes];
}

uint32_t current_scope_id() {
  if (const auto backward = compat::get_current_node(); backward && scope == 0) {
    const uint64_t number = backward->sequence_nr() + 1;
    const ForwardScope& found = forward_scope(number);
    const bool here = backward->thread_id() == at::RecordFunction::currentThreadId();
    return kBackward | (here && found.number == number ? found.scope : 0);
  }
  const uint64_t number = at::sequence_number::peek();
  ForwardScope& place = forward_scope(number);
  if (place.number != number) {
    place = {number, scope};
  }
  return scope;
}

// Appends the running Python frames, each with a new reference to its code object.
void read_stack(std::vector<Frame>& out, Key& key) {
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr && out.size() < kMaxFrames) {
    const int instruction = PyFrame_GetLasti(frame);
    PyCodeObject* code = PyFrame_GetCode(frame);
    out.push_back({code, instruction});
    key.mix(reinterpret_cast<uint64_t>(code));
    key.mix(static_cast<uint64_t>(instruction));
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
}

void release(const std::vector<Frame>& frames) {
  for (const Frame& frame : frames) {
    Py_DECREF(frame.code);
  }
}

uint32_t intern_location(uint32_t scope) {
  static thread_local std::vector<Frame> frames;
  frames.clear();
  Key key;
  key.mix(static_cast<uint64_t>(scope));
  read_stack(frames, key);
  Table& t = table();
  const auto found = t.numbers.find(key);
  if (found != t.numbers.end() || t.origins.size() >= kMaxOrigins) {
    release(frames);
    return found != t.numbers.end() ? found->second : 0;
  }
  t.origins.push_back({scope, frames});
  const auto number = static_cast<uint32_t>(t.origins.size());
  t.numbers.emplace(key, number);
  return number;
}

}  // namespace

uint32_t capture_origin() {
  const uint32_t now = current_scope_id();
  const PythonReentryScope reentry;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const uint32_t number = intern_location(now);
  PyGILState_Release(gil);
  return number;
}

const SourceLocation* find_origin(uint32_t number) {
  Table& t = table();
  return number == 0 || number > t.origins.size() ? nullptr : &t.origins[number - 1];
}

uint32_t set_scope(uint32_t now) { return std::exchange(scope, now); }

}  // namespace torch_xla
