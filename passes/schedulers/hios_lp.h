#ifndef PASSES_SCHEDULERS_HIOS_LP_H_
#define PASSES_SCHEDULERS_HIOS_LP_H_

#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"

namespace tvm_interop {

struct LongestPath {
  std::vector<int> ranks;  // ascending

  // The length of the path in microseconds. It includes the path's operators and edges. It also
  // includes two edges to taken operators (operators of earlier paths): the longest edge from a
  // taken operator to the first operator, and the longest edge from the last operator to a taken
  // operator.
  double us;
};

// Finds the longest valid path among the operators that are not taken yet; see MapLongestPaths. It
// uses a recurrence over these operators from the last to the first, which takes O(n + edges).
class PathSearch {
 public:
  explicit PathSearch(const GpuCosts& costs);

  bool done() const { return left_.empty(); }
  // Returns the longest valid path, and marks its operators as taken.
  LongestPath TakeLongest();

 private:
  bool IsEarlier(int a, int b) const;
  void Take(const std::vector<int>& path);

  const GpuCosts& costs_;
  std::vector<int> left_;  // ranks, ascending

  // The next six members have an entry for each rank. An operator is taken if it is on an earlier
  // longest path.
  std::vector<char> is_taken_;
  std::vector<char> is_clean_;   // whether no neighbour of the operator is taken
  std::vector<double> in_us_;    // the longest edge from a taken operator to this operator
  std::vector<double> out_us_;   // the longest edge from this operator to a taken operator
  std::vector<double> tail_us_;  // the longest rest of a path that reaches the operator
  std::vector<int> next_;        // the next operator on the longest path from here, or -1
};

// HIOS-LP's mapping (HIOS, Algorithm 1 without line 11). In each step, it takes the longest valid
// path of operators that are not mapped yet. This path goes to the GPU on which the latency is
// lowest.
//
// A path is valid if none of its inner operators has an edge to or from a mapped operator. The
// length of a path is the sum over its operators and the edges between them, plus an edge at each
// end. At the front, this is the longest edge from a mapped operator to the first operator. At the
// back, it is the longest edge from the last operator to a mapped operator. Ties go to the path
// whose first operator is earliest in topological order. If a path can end at an operator or go on
// to the same length, it ends. If it can go on to the same length in several ways, the earliest
// next operator is taken. Ties between GPUs go to the lowest.
//
// Takes O(paths * gpus * (operators + edges)). For each path, only the operators from its first
// operator on are computed again.
GpuOrders MapLongestPaths(const GpuCosts& costs, int gpus);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_HIOS_LP_H_
