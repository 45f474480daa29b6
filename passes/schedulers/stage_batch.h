#ifndef PASSES_SCHEDULERS_STAGE_BATCH_H_
#define PASSES_SCHEDULERS_STAGE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_interop {

// Many stages in three flat lists, so that a hundred thousand of them cross into Python, and into a
// vectorised latency model, as three arrays.
struct StageBatch {
  std::vector<int64_t> ops;         // of all groups, one group after the other
  std::vector<int64_t> group_ends;  // where each group ends in `ops`
  std::vector<int64_t> stage_ends;  // where each stage ends in `group_ends`

  size_t num_stages() const { return stage_ends.size(); }
  std::vector<std::vector<int>> GroupsOf(size_t stage) const;
  // Appends all the stages of another.
  void Append(const StageBatch& other);
  // Some of its stages, in the order given.
  StageBatch Select(const std::vector<size_t>& stages) const;
};

// Throws LatencyError, naming the offender, where an entry of a batch points outside of it, or one
// of its operators is none of `num_ops`. Everything below takes this for granted.
void CheckBatch(const StageBatch& batch, size_t num_ops);

// The stream of each group, stage after stage, if every stage runs on at most `num_streams` streams
// (PackGroups, weighed by the sums of `op_us`).
std::vector<int> PackGroupsOfStages(const StageBatch& batch, const std::vector<double>& op_us,
                                    int num_streams);

// The same stages as they run on at most `num_streams` streams: groups that share a stream
// (PackGroupsOfStages) become one group, in their old order.
StageBatch PackStages(const StageBatch& batch, const std::vector<double>& op_us, int num_streams);

// A stage takes as long as its longest group, a group as long as its operators together.
std::vector<double> PriceStages(const StageBatch& batch, const std::vector<double>& op_us);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_BATCH_H_
