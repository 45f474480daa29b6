#ifndef PASSES_PLAN_MEMORY_PLAN_H_
#define PASSES_PLAN_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// A tensor that needs storage while the model runs.
struct Buffer {
  int64_t nbytes = 0;
  std::vector<int> producers;  // the operators that write it, each a part of it
  std::vector<int> users;      // the operators that read it
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // of each buffer, in bytes
  int64_t arena_bytes = 0;
};

// Lays the buffers into one arena. Two share bytes only where, in these streams with these waits,
// every operator that touches the one has finished before any of the other's producers starts; so
// an operator never writes over what it reads. Largest first, ties by lowest index, each at the
// lowest aligned offset that is free. Throws PlanError for a buffer that is malformed.
MemoryPlan PlanMemory(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                      const std::vector<std::vector<int>>& waits,
                      const std::vector<Buffer>& buffers, int64_t alignment);

// Throws PlanError for an alignment or a buffer that is no such thing.
void CheckBuffers(const OpGraph& graph, const std::vector<Buffer>& buffers, int64_t alignment);

}  // namespace tvm_interop

#endif  // PASSES_PLAN_MEMORY_PLAN_H_
