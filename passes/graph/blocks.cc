#include "passes/graph/blocks.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tvm_interop {
namespace {

// Grows a prefix of the topological order operator by operator, and says whether there is a cut
// right after the prefix.
//
// There is a cut if every operator in the prefix reaches every operator after the prefix. Call an
// operator in the prefix a last operator if none of its readers is in the prefix. Call an operator
// after the prefix a first operator if it reads only operators in the prefix. If a last operator
// reaches a first operator, it does so by a single edge. So there is a cut if and only if every
// last operator has an edge to every first operator. So the edges from last operators to first
// operators are counted. Each operator becomes a first operator once and a last operator once, so
// all steps together take O(n + edges).
class Prefix {
 public:
  explicit Prefix(const OpGraph& graph) : graph_(graph), unread_(graph.num_ops()) {
    is_last_.resize(graph.num_ops());
    is_first_.resize(graph.num_ops());
    for (int op = 0; op < graph.num_ops(); ++op) {
      unread_[op] = graph.predecessors(op).size();
      if (unread_[op] == 0) SetFirst(op, true);
    }
  }

  // Adds the next operator in topological order to the prefix.
  void Add(int op) {
    SetFirst(op, false);
    for (int source : graph_.predecessors(op)) {
      if (is_last_[source]) SetLast(source, false);
    }
    SetLast(op, true);
    for (int reader : graph_.successors(op)) {
      if (--unread_[reader] == 0) SetFirst(reader, true);
    }
  }

  bool EndsInCut() const { return edges_ == lasts_ * firsts_; }

 private:
  void SetFirst(int op, bool is_one) {
    is_first_[op] = is_one;
    firsts_ += is_one ? 1 : -1;
    for (int source : graph_.predecessors(op)) {
      if (is_last_[source]) edges_ += is_one ? 1 : -1;
    }
  }
  void SetLast(int op, bool is_one) {
    is_last_[op] = is_one;
    lasts_ += is_one ? 1 : -1;
    for (int reader : graph_.successors(op)) {
      if (is_first_[reader]) edges_ += is_one ? 1 : -1;
    }
  }

  const OpGraph& graph_;
  // For each operator, how many of its predecessors are not in the prefix yet.
  std::vector<size_t> unread_;
  std::vector<char> is_last_, is_first_;
  int64_t lasts_ = 0, firsts_ = 0;
  int64_t edges_ = 0;  // the number of edges from last operators to first operators
};

}  // namespace

std::vector<std::vector<int>> FindBlocks(const OpGraph& graph) {
  // The operators before a cut come before all other operators in any topological order. So the
  // operators before each cut are a prefix of this order.
  Prefix prefix(graph);
  std::vector<std::vector<int>> blocks;
  std::vector<int> component;
  bool previous_has_no_exit = false;
  for (int op : graph.topological_order()) {
    component.push_back(op);
    prefix.Add(op);
    if (!prefix.EndsInCut()) continue;
    if (component.size() == 1 && previous_has_no_exit) {
      blocks.back().push_back(component.front());
      previous_has_no_exit = false;
    } else {
      previous_has_no_exit = component.size() > 1;
      blocks.push_back(std::move(component));
    }
    component.clear();
  }
  return blocks;
}

}  // namespace tvm_interop
