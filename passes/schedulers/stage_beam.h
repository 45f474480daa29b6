#ifndef PASSES_SCHEDULERS_STAGE_BEAM_H_
#define PASSES_SCHEDULERS_STAGE_BEAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/schedulers/endings.h"
#include "passes/schedulers/stage_batch.h"

namespace tvm_interop {

// A function that returns the price of each stage of a batch: the latency of the stage as it will
// run. A price of infinity marks a stage that must not be chosen.
using AskPrices = std::function<std::vector<double>(const StageBatch&)>;

struct BeamOptions {
  size_t width = 1;       // how many states are kept for each number of operators left
  bool backward = false;  // whether to search from the last stage to the first

  // The search drops a sequence of stages once the sequence cannot cost less than `below_us`.
  double below_us = 0;
  // The average number of operators that a good schedule runs at once. To rank states, the search
  // assumes that the remaining operators take at least the sum of their latencies divided by this
  // number.
  double parallelism = 1;
  // Every schedule takes at least this share of the longest path through the remaining operators.
  // The share is less than 1 if a stage may take less time than its longest group, for example
  // because its operators are merged.
  double certain = 1;
  int64_t max_transitions = 0;
  // A function that says whether the search must end early. The search calls it again and again.
  std::function<bool()> is_over = [] { return false; };
};

struct BeamResult {
  StageBatch stages;  // the stages in running order; none if no sequence costs less than `below_us`
  std::vector<double> price_us;  // the price of each stage
  int64_t transitions = 0;
  bool is_through = false;  // whether the search ran to its end
};

// Looks for a cheap sequence of stages in a part of a graph that is too large to enumerate. A state
// is the set of operators that are left. States with the same number of operators left are
// compared. Their rank is the price of their stages so far plus an estimate for the operators that
// are left. The best `width` of these states are kept. The result need not be optimal. A larger
// width gives better sequences.
//
// From a state, the search tries only some stages. For each length that a group can have, it lists
// the groups of at most this length. Groups with the longest path from them to the end come first,
// with ties to the longest group. A group that overlaps an earlier group in the list is skipped.
// The search tries the first group as a stage, then the first two groups, and so on, up to the
// number of groups that a stage may hold. A group is a connected set of operators that depends on
// no operator left outside the set. If all edges of the graph are reversed, such a group is a group
// of an ending.
//
// The search also tries stages of operators that can be merged. Among such operators that are
// ready, it takes the two operators with the longest paths, then the three operators with the
// longest paths, and so on.
//
// Ties go to the state found first. The same options find the same stages, unless `is_over` ends
// the search.
class StageBeam {
 public:
  // Makes a search of `ops`, which must be in topological order and include every operator on a
  // path between two of them. `op_us` holds the latency of each operator of the graph. Operators
  // that can be merged with each other form a set. `set_of` holds the number of the set of each
  // operator of the graph, or -1 if the operator cannot be merged. `set_of` is empty if no operator
  // can be merged. The graph must outlive the search.
  static std::unique_ptr<StageBeam> Make(const OpGraph& graph, const std::vector<int>& ops,
                                         const std::vector<double>& op_us,
                                         const EndingLimits& limits,
                                         const std::vector<int>& set_of = {});
  virtual ~StageBeam() = default;

  // Runs a search with these options. `ask` is called for a few large batches, and never twice for
  // the same stage.
  virtual BeamResult Run(const BeamOptions& options, const AskPrices& ask) = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_BEAM_H_
