#include "passes/check_plan.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "passes/bit_set.h"
#include "passes/error.h"
#include "passes/stream_order.h"

namespace tvm_interop {
namespace {

// Which operators a plan makes finish before which others start.
class HappensBefore {
 public:
  HappensBefore(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                const std::vector<std::vector<int>>& waits) {
    StreamPlaces(graph, streams);
    successors_ = OrderSuccessors(graph, streams, WaitEdges(graph, waits));
    OrderOrThrow(graph, successors_);
    after_.resize(graph.num_ops());
  }

  bool operator()(int first, int second) {
    if (after_[first].words().empty()) Search(first);
    return after_[first].Test(second);
  }

 private:
  void Search(int start) {
    BitSet& reached = after_[start] = EmptyBitSet(static_cast<int>(successors_.size()));
    std::vector<int> open = {start};
    while (!open.empty()) {
      const int op = open.back();
      open.pop_back();
      for (int next : successors_[op]) {
        if (reached.Test(next)) continue;
        reached.Set(next);
        open.push_back(next);
      }
    }
  }

  std::vector<std::vector<int>> successors_;
  std::vector<BitSet> after_;
};

bool IsDoneBefore(const Buffer& first, const Buffer& second, HappensBefore* happens_before) {
  std::vector<int> touching = first.producers;
  touching.insert(touching.end(), first.users.begin(), first.users.end());
  for (int op : touching) {
    for (int producer : second.producers) {
      if (!(*happens_before)(op, producer)) return false;
    }
  }
  return true;
}

std::string Describe(const OpGraph& graph, const std::vector<Buffer>& buffers, size_t b) {
  return "buffer " + std::to_string(b) + ", written by `" + graph.name(buffers[b].producers[0]) +
         "`,";
}

}  // namespace

void CheckSync(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
               const std::vector<std::vector<int>>& waits, const std::vector<Edge>& extra_edges) {
  HappensBefore happens_before(graph, streams, waits);
  for (const auto& [from, to] : graph.edges()) {
    if (happens_before(from, to)) continue;
    throw PlanError("`" + graph.name(to) + "` reads the output of `" + graph.name(from) +
                    "` but does not wait for it; add a wait");
  }
  for (const auto& [from, to] : extra_edges) {
    if (happens_before(from, to)) continue;
    throw PlanError("`" + graph.name(to) + "` must come after `" + graph.name(from) +
                    "` but does not wait for it; add a wait");
  }
}

void CheckMemory(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                 const std::vector<std::vector<int>>& waits, const std::vector<Buffer>& buffers,
                 int64_t alignment, const MemoryPlan& plan) {
  CheckBuffers(graph, buffers, alignment);
  if (plan.offsets.size() != buffers.size()) {
    throw PlanError("the memory plan places " + std::to_string(plan.offsets.size()) + " of " +
                    std::to_string(buffers.size()) + " buffers; it must place each");
  }
  for (size_t b = 0; b < buffers.size(); ++b) {
    const int64_t offset = plan.offsets[b];
    if (offset < 0 || buffers[b].nbytes > plan.arena_bytes - offset) {
      throw PlanError(Describe(graph, buffers, b) + " does not lie within the arena of " +
                      std::to_string(plan.arena_bytes) + " bytes");
    }
    if (offset % alignment != 0) {
      throw PlanError(Describe(graph, buffers, b) + " lies at " + std::to_string(offset) +
                      ", which is no multiple of " + std::to_string(alignment));
    }
  }
  HappensBefore happens_before(graph, streams, waits);
  std::vector<size_t> by_offset(buffers.size());
  std::iota(by_offset.begin(), by_offset.end(), 0);
  std::sort(by_offset.begin(), by_offset.end(),
            [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; });
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const size_t a = by_offset[i];
    const int64_t end = plan.offsets[a] + buffers[a].nbytes;
    for (size_t j = i + 1; j < by_offset.size() && plan.offsets[by_offset[j]] < end; ++j) {
      const size_t b = by_offset[j];
      if (buffers[b].nbytes == 0 || IsDoneBefore(buffers[a], buffers[b], &happens_before) ||
          IsDoneBefore(buffers[b], buffers[a], &happens_before)) {
        continue;
      }
      throw PlanError(Describe(graph, buffers, a) + " shares bytes with " +
                      Describe(graph, buffers, b) +
                      " but neither is done with before the other is written; move one of them");
    }
  }
}

}  // namespace tvm_interop
