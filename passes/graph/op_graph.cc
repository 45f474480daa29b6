#include "passes/graph/op_graph.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "passes/graph/error.h"
#include "passes/graph/matching.h"
#include "passes/graph/topological.h"

namespace tvm_interop {
namespace {

void CheckNames(const std::vector<std::string>& names) {
  std::unordered_map<std::string, size_t> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) {
      throw GraphError("operator " + std::to_string(i) + " has an empty name; give it one");
    }
    const auto [entry, is_new] = seen.emplace(names[i], i);
    if (!is_new) {
      throw GraphError("operators " + std::to_string(entry->second) + " and " + std::to_string(i) +
                       " are both named `" + names[i] + "`; names must be unique");
    }
  }
}

void CheckEdge(const Edge& edge, const std::vector<std::string>& names) {
  const int n = static_cast<int>(names.size());
  for (int op : {edge.first, edge.second}) {
    if (op < 0 || op >= n) {
      throw GraphError("edge (" + std::to_string(edge.first) + ", " + std::to_string(edge.second) +
                       ") names operator " + std::to_string(op) + ", but the graph has " +
                       std::to_string(n) + " operators, numbered from 0");
    }
  }
  if (edge.first == edge.second) {
    throw GraphError("operator `" + names[edge.first] +
                     "` has an edge to itself; an operator cannot read its own output");
  }
}

}  // namespace

OpGraph::OpGraph(std::vector<std::string> names, std::vector<Edge> edges)
    : names_(std::move(names)), edges_(std::move(edges)), closure_(std::make_unique<Closure>()) {
  CheckNames(names_);
  predecessors_.resize(names_.size());
  successors_.resize(names_.size());
  for (const Edge& edge : edges_) {
    CheckEdge(edge, names_);
    successors_[edge.first].push_back(edge.second);
    predecessors_[edge.second].push_back(edge.first);
  }
  for (auto* lists : {&successors_, &predecessors_}) {
    for (auto& list : *lists) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  }
  order_ = TopologicalOrder(successors_);
  if (order_.size() < names_.size()) {
    std::string path;
    const std::vector<int> cycle = FindCycle(successors_);
    for (int op : cycle) path += "`" + names_[op] + "` -> ";
    throw GraphError("the graph has a cycle: " + path + "`" + names_[cycle.front()] +
                     "`; remove one of these edges");
  }
  positions_.resize(names_.size());
  for (size_t i = 0; i < order_.size(); ++i) positions_[order_[i]] = static_cast<int>(i);
}

const BitSet& OpGraph::descendants(int op) const {
  std::call_once(closure_->down_once, [this] {
    auto& sets = closure_->descendants;
    sets.assign(names_.size(), EmptyBitSet(num_ops()));
    for (auto v = order_.rbegin(); v != order_.rend(); ++v) {
      for (int next : successors_[*v]) {
        sets[*v] |= sets[next];
        sets[*v].Set(next);
      }
    }
  });
  return closure_->descendants[op];
}

const BitSet& OpGraph::ancestors(int op) const {
  std::call_once(closure_->up_once, [this] {
    auto& sets = closure_->ancestors;
    sets.assign(names_.size(), EmptyBitSet(num_ops()));
    for (int v : order_) {
      for (int previous : predecessors_[v]) {
        sets[v] |= sets[previous];
        sets[v].Set(previous);
      }
    }
  });
  return closure_->ancestors[op];
}

int OpGraph::Width() const {
  if (names_.empty()) return 0;
  std::call_once(closure_->width_once, [this] {
    descendants(0);
    // The graph has fewer edges than its closure, so a matching of the graph is quicker to find
    // than a matching of the closure. Start from the matching of the graph: it already has most
    // edges of the matching of the closure.
    const std::vector<int> along_edges = MaximumMatching(successors_, num_ops());
    int unmatched = 0;
    for (int partner : GrowMatching(closure_->descendants, num_ops(), along_edges)) {
      unmatched += partner < 0;
    }
    closure_->width = unmatched;
  });
  return closure_->width;
}

}  // namespace tvm_interop
