#include "runtime/cuda/workspace_limit.h"

#include <atomic>

namespace tvm_interop {
namespace {

std::atomic<size_t>& TheLimit() {
  static std::atomic<size_t> limit{size_t{64} << 20};
  return limit;
}

}  // namespace

size_t WorkspaceLimit() { return TheLimit(); }

void SetWorkspaceLimit(size_t nbytes) { TheLimit() = nbytes; }

}  // namespace tvm_interop
