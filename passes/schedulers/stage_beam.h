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

// What stages take as they will run, one price for each; infinity for one that must not be chosen.
using AskPrices = std::function<std::vector<double>(const StageBatch&)>;

struct BeamOptions {
  size_t width = 1;       // states kept of those with equally many operators left
  bool backward = false;  // from the last stage to the first
  // No way is followed that cannot cost less than this.
  double below_us = 0;
  // How many operators a good schedule runs at once on average: what is left takes at least its
  // work over that many, or so the search guesses when it ranks states.
  double parallelism = 1;
  // The share of the longest path left that no schedule can do without: less than 1 where stages
  // may be cheaper than their operators suggest.
  double certain = 1;
  int64_t max_transitions = 0;
  // Looked at between stages; the search ends early when it is true.
  std::function<bool()> is_over = [] { return false; };
};

struct BeamResult {
  StageBatch
      stages;  // in the order in which they run; none where no way costs less than `below_us`
  std::vector<double> price_us;  // of each stage
  int64_t transitions = 0;
  bool is_through = false;  // neither out of transitions nor over
};

// Looks for a cheap sequence of stages in a part of a graph that is too large to enumerate. A state
// is the set of operators that are left; states with equally many are compared by what they cost so
// far and a guess of what is left costs, and the best `width` are followed. No guarantee: the
// search gives good sequences, and better ones for more width.
//
// From a state it tries these stages only. For each length that a group can have: the groups no
// longer than that, those with the longest path ahead first, the longest of them first, as many as
// there may be, and fewer. A group closed under what is left (any connected set of operators that
// depends on nothing left outside of it) is a group of some ending seen from the other side. And of
// operators that can be merged, those that are ready: all, and fewer, the longest paths first.
//
// Ties go to the state found first; the same options find the same stages, unless `is_over` ends
// it.
class StageBeam {
 public:
  // `ops` are closed under paths between them and in topological order; `op_us` is by operator of
  // the graph, and so is `set_of`, which numbers the sets of operators that can be merged: -1 for
  // one in none; empty where there are none. The graph must outlive it.
  static std::unique_ptr<StageBeam> Make(const OpGraph& graph, const std::vector<int>& ops,
                                         const std::vector<double>& op_us,
                                         const EndingLimits& limits,
                                         const std::vector<int>& set_of = {});
  virtual ~StageBeam() = default;

  // `ask` is called with stages that no earlier call had, in few batches.
  virtual BeamResult Run(const BeamOptions& options, const AskPrices& ask) = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_BEAM_H_
