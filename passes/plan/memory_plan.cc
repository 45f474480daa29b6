#include "passes/plan/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "passes/graph/error.h"
#include "passes/graph/stream_order.h"
#include "passes/plan/vector_clock.h"

namespace tvm_interop {
namespace {

// Tells for two buffers whether the last use of the first always ends before the second is written.
class Lifetimes {
 public:
  Lifetimes(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
            const std::vector<std::vector<int>>& waits, const std::vector<Buffer>& buffers)
      : buffers_(buffers),
        places_(StreamPlaces(graph, streams)),
        finished_before_(graph.num_ops(), streams.size()),
        last_touch_(buffers.size()) {
    // When an operator starts, its predecessors have finished. All operators that finished before a
    // predecessor started have finished too.
    const auto successors = OrderSuccessors(graph, streams, WaitEdges(graph, waits));
    for (int op : OrderOrThrow(graph, successors)) {
      for (int next : successors[op]) {
        finished_before_.Join(next, op);
        uint32_t& count = finished_before_.of(next)[places_[op].stream];
        count = std::max(count, static_cast<uint32_t>(places_[op].position) + 1);
      }
    }
    for (size_t b = 0; b < buffers.size(); ++b) {
      for (int producer : buffers[b].producers) Touch(b, producer);
      for (int user : buffers[b].users) Touch(b, user);
    }
  }

  bool MayShare(size_t a, size_t b) const { return Precedes(a, b) || Precedes(b, a); }

 private:
  void Touch(size_t buffer, int op) {
    for (StreamPlace& last : last_touch_[buffer]) {
      if (last.stream == places_[op].stream) {
        last.position = std::max(last.position, places_[op].position);
        return;
      }
    }
    last_touch_[buffer].push_back(places_[op]);
  }

  bool Precedes(size_t a, size_t b) const {
    for (int producer : buffers_[b].producers) {
      const uint32_t* finished = finished_before_.of(producer);
      for (const StreamPlace& last : last_touch_[a]) {
        if (finished[last.stream] <= static_cast<uint32_t>(last.position)) return false;
      }
    }
    return true;
  }

  const std::vector<Buffer>& buffers_;
  const std::vector<StreamPlace> places_;
  VectorClocks finished_before_;
  // For each buffer, the last operator that touches it on each stream.
  std::vector<std::vector<StreamPlace>> last_touch_;
};

int64_t RoundUp(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

void CheckBuffers(const OpGraph& graph, const std::vector<Buffer>& buffers, int64_t alignment) {
  if (alignment < 1) {
    throw PlanError("the alignment is " + std::to_string(alignment) + "; it must be 1 or more");
  }
  int64_t left = std::numeric_limits<int64_t>::max();
  for (size_t b = 0; b < buffers.size(); ++b) {
    const std::string which = "buffer " + std::to_string(b);
    if (buffers[b].producers.empty()) {
      throw PlanError(which + " is written by no operator; name at least one producer");
    }
    std::vector<int> ops = buffers[b].users;
    ops.insert(ops.end(), buffers[b].producers.begin(), buffers[b].producers.end());
    for (int op : ops) {
      if (op >= 0 && op < graph.num_ops()) continue;
      throw PlanError(which + " names operator " + std::to_string(op) + ", but the graph has " +
                      std::to_string(graph.num_ops()) + " operators, numbered from 0");
    }
    if (buffers[b].nbytes < 0) {
      throw PlanError(which + ", written by `" + graph.name(buffers[b].producers[0]) + "`, has " +
                      std::to_string(buffers[b].nbytes) + " bytes; it must have 0 or more");
    }
    if (buffers[b].nbytes == 0) continue;
    // At worst, the buffers lie one after the other, and each is rounded up to the alignment.
    if (buffers[b].nbytes > left - (alignment - 1)) {
      throw PlanError("the buffers up to " + std::to_string(b) +
                      " have more bytes than can be addressed; make them smaller");
    }
    left -= buffers[b].nbytes + (alignment - 1);
  }
}

MemoryPlan PlanMemory(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                      const std::vector<std::vector<int>>& waits,
                      const std::vector<Buffer>& buffers, int64_t alignment) {
  CheckBuffers(graph, buffers, alignment);
  const Lifetimes lifetimes(graph, streams, waits, buffers);
  std::vector<size_t> by_size(buffers.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return buffers[a].nbytes > buffers[b].nbytes; });

  MemoryPlan plan;
  plan.offsets.resize(buffers.size());
  // The buffers placed so far, by ascending offset. The search below ends at the first gap that is
  // large enough.
  std::vector<size_t> placed;
  for (size_t b : by_size) {
    const int64_t nbytes = buffers[b].nbytes;
    if (nbytes == 0) break;  // only empty buffers are left, and they fit anywhere
    int64_t offset = 0;
    for (size_t other : placed) {
      if (plan.offsets[other] >= offset + nbytes) break;
      const int64_t other_end = plan.offsets[other] + buffers[other].nbytes;
      if (other_end <= offset || lifetimes.MayShare(b, other)) continue;
      offset = RoundUp(other_end, alignment);
    }
    plan.offsets[b] = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, offset + nbytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), b,
                         [&](size_t x, size_t y) { return plan.offsets[x] < plan.offsets[y]; }),
        b);
  }
  return plan;
}

}  // namespace tvm_interop
