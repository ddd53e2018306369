#include "support/fork_safe_lock.h"

#include <pthread.h>

#include <vector>

namespace torch_xla {
namespace {

std::vector<ForkHandlers>& all_handlers() {
  static auto* handlers = new std::vector<ForkHandlers>;
  return *handlers;
}

void before() {
  for (const ForkHandlers& h : all_handlers()) {
    h.before(h.what);
  }
}

void in_parent() {
  for (auto h = all_handlers().rbegin(); h != all_handlers().rend(); ++h) {
    h->in_parent(h->what);
  }
}

void in_child() {
  for (auto h = all_handlers().rbegin(); h != all_handlers().rend(); ++h) {
    h->in_child(h->what);
  }
}

}  // namespace

void at_fork(const ForkHandlers& handlers) {
  if (all_handlers().empty()) {
    pthread_atfork(&before, &in_parent, &in_child);
  }
  all_handlers().push_back(handlers);
}

}  // namespace torch_xla
