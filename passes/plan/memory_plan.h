#ifndef PASSES_PLAN_MEMORY_PLAN_H_
#define PASSES_PLAN_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// A tensor that needs storage while the model runs.
struct Buffer {
  int64_t nbytes = 0;
  std::vector<int> producers;  // the operators that write the tensor; each one writes a part of it
  std::vector<int> users;      // the operators that read the tensor
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  // the offset of each buffer in the arena, in bytes
  int64_t arena_bytes = 0;
};

// Places the buffers in one arena. Two buffers share bytes only if the streams and waits order
// their uses: every operator that reads or writes one buffer has finished before any producer of
// the other buffer starts. So an operator never overwrites its own inputs. Buffers are placed by
// descending size, with ties to the lowest index. Each buffer goes to the lowest aligned offset
// that is free. Throws PlanError for a malformed buffer.
MemoryPlan PlanMemory(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                      const std::vector<std::vector<int>>& waits,
                      const std::vector<Buffer>& buffers, int64_t alignment);

// Throws PlanError for an alignment below 1, for a malformed buffer, and if the sum of the sizes of
// all buffers does not fit an int64. A buffer is malformed if it has no producer, names an unknown
// operator or has a negative size.
void CheckBuffers(const OpGraph& graph, const std::vector<Buffer>& buffers, int64_t alignment);

}  // namespace tvm_interop

#endif  // PASSES_PLAN_MEMORY_PLAN_H_
