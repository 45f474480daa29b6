#ifndef PASSES_SCHEDULERS_HIOS_LP_H_
#define PASSES_SCHEDULERS_HIOS_LP_H_

#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"

namespace tvm_interop {

struct LongestPath {
  std::vector<int> ranks;  // ascending

  // The length of the path in microseconds. It includes the path's operators and edges. Call the
  // operators of earlier paths taken. The length also includes the longest edge from a taken
  // operator to the first operator, and the longest edge from the last operator to a taken
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

  // The next six members have an entry for each operator, by rank. An operator is taken if it is on
  // a longest path that was found before.
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
// length of a path is the sum over its operators and the edges between them, plus two more edges:
// the longest edge from a mapped operator to the path's first operator, and the longest edge from
// the path's last operator to a mapped operator. Ties go to the path whose first operator is
// earliest in topological order. If a continuation does not make a path longer, the path ends
// without it. If several continuations are equally long, the continuation whose next operator is
// earliest is taken. Ties between GPUs go to the lowest.
//
// Takes O(paths * gpus * (operators + edges)). For each path, only the operators from its first
// operator on are computed again.
GpuOrders MapLongestPaths(const GpuCosts& costs, int gpus);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_HIOS_LP_H_
