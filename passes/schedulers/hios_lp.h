#ifndef PASSES_SCHEDULERS_HIOS_LP_H_
#define PASSES_SCHEDULERS_HIOS_LP_H_

#include <vector>

#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/list_on_gpus.h"

namespace tvm_interop {

struct LongestPath {
  std::vector<int> ranks;  // ascending
  double us;               // its operators, its edges, and the longest edge at either end
};

// Finds the longest valid path among the operators that are not taken yet, by a recurrence over
// them from the last to the first: O(n + edges).
class PathSearch {
 public:
  explicit PathSearch(const GpuCosts& costs);

  bool done() const { return left_.empty(); }
  // The longest valid path; its operators are taken.
  LongestPath TakeLongest();

 private:
  bool IsEarlier(int a, int b) const;
  void Take(const std::vector<int>& path);

  const GpuCosts& costs_;
  std::vector<int> left_;        // ranks, ascending
  std::vector<char> is_taken_;   // by rank, as the rest
  std::vector<char> is_clean_;   // whether no neighbour is taken
  std::vector<double> in_us_;    // the longest edge from one that is taken
  std::vector<double> out_us_;   // the longest edge to one that is taken
  std::vector<double> tail_us_;  // the longest way on within a path, or at its end
  std::vector<int> next_;        // where the longest way leads; -1 where it ends
};

// HIOS-LP's mapping (HIOS, Algorithm 1 without line 11): again and again the longest valid path of
// operators that are not mapped yet goes to the GPU on which the latency is lowest.
//
// A path is valid where no operator within it, its ends apart, has an edge to or from a mapped
// one. Its length is that of its operators, of the edges between them, and of the longest edge by
// which a mapped operator leads to its first one, and its last one to a mapped one. Ties: the first
// operator that comes first in topological order; from there on ending before going on, then the
// next operator that comes first; the lowest GPU.
//
// O(paths * gpus * (operators + edges)), of which only what lies behind a path's first operator is
// computed anew.
GpuOrders MapLongestPaths(const GpuCosts& costs, int gpus);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_HIOS_LP_H_
