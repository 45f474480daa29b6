#include "passes/plan/memory_order.h"

#include <algorithm>

namespace tvm_interop {
namespace {

// Counts the bytes that are in use while operators run one after the other.
class Usage {
 public:
  Usage(size_t num_ops, const std::vector<Buffer>& buffers) : buffers_(buffers), touched_(num_ops) {
    for (size_t b = 0; b < buffers.size(); ++b) {
      std::vector<int> ops = buffers[b].users;
      ops.insert(ops.end(), buffers[b].producers.begin(), buffers[b].producers.end());
      std::sort(ops.begin(), ops.end());
      ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
      for (int op : ops) touched_[op].push_back(b);
      touching_.push_back(ops.size());
    }
    left_ = touching_;
  }

  // The bytes in use after the operator's end, minus the bytes in use before its start.
  int64_t Change(int op) const { return Allocated(op) - Freed(op); }

  void Run(int op) {
    live_ += Allocated(op);
    peak_ = std::max(peak_, live_);
    live_ -= Freed(op);
    for (size_t b : touched_[op]) --left_[b];
  }

  int64_t peak() const { return peak_; }

 private:
  int64_t Allocated(int op) const {
    int64_t nbytes = 0;
    for (size_t b : touched_[op]) {
      if (left_[b] == touching_[b]) nbytes += buffers_[b].nbytes;
    }
    return nbytes;
  }
  int64_t Freed(int op) const {
    int64_t nbytes = 0;
    for (size_t b : touched_[op]) {
      if (left_[b] == 1) nbytes += buffers_[b].nbytes;
    }
    return nbytes;
  }

  const std::vector<Buffer>& buffers_;
  // For each operator, the buffers that it writes or reads.
  std::vector<std::vector<size_t>> touched_;
  std::vector<size_t> touching_;  // for each buffer, how many operators write or read it

  // For each buffer, how many of the operators that write or read it have not run yet.
  std::vector<size_t> left_;
  int64_t live_ = 0, peak_ = 0;
};

std::vector<int> GreedyOrder(const OpGraph& graph, const std::vector<Buffer>& buffers) {
  Usage usage(graph.num_ops(), buffers);
  std::vector<size_t> waiting(graph.num_ops());
  std::vector<int> ready, order;
  for (int op = 0; op < graph.num_ops(); ++op) {
    waiting[op] = graph.predecessors(op).size();
    if (waiting[op] == 0) ready.push_back(op);
  }
  while (!ready.empty()) {
    size_t best = 0;
    int64_t least = usage.Change(ready[0]);
    for (size_t i = 1; i < ready.size(); ++i) {
      const int64_t change = usage.Change(ready[i]);
      if (change < least || (change == least && ready[i] < ready[best])) {
        best = i;
        least = change;
      }
    }
    const int op = ready[best];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(best));
    usage.Run(op);
    order.push_back(op);
    for (int target : graph.successors(op)) {
      if (--waiting[target] == 0) ready.push_back(target);
    }
  }
  return order;
}

}  // namespace

std::vector<int> MemoryOrder(const OpGraph& graph, const std::vector<Buffer>& buffers) {
  CheckBuffers(graph, buffers, 1);
  std::vector<int> order = GreedyOrder(graph, buffers);
  const std::vector<int>& plain = graph.topological_order();
  return PeakBytes(plain, buffers) < PeakBytes(order, buffers) ? plain : order;
}

int64_t PeakBytes(const std::vector<int>& order, const std::vector<Buffer>& buffers) {
  Usage usage(order.size(), buffers);
  for (int op : order) usage.Run(op);
  return usage.peak();
}

}  // namespace tvm_interop
