#ifndef PASSES_SCHEDULERS_STAGE_BATCH_H_
#define PASSES_SCHEDULERS_STAGE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_interop {

// Many stages, stored in three flat lists. In this form, even a hundred thousand stages are passed
// quickly to Python and to a vectorised latency model.
struct StageBatch {
  std::vector<int64_t> ops;         // the operators of all groups, one group after the other
  std::vector<int64_t> group_ends;  // where each group ends in `ops`
  std::vector<int64_t> stage_ends;  // where each stage ends in `group_ends`

  size_t num_stages() const { return stage_ends.size(); }
  std::vector<std::vector<int>> GroupsOf(size_t stage) const;
  void Append(const StageBatch& other);
  // Returns a batch of the stages with the indices `stages`, in the order of this list.
  StageBatch Select(const std::vector<size_t>& stages) const;
};

// Throws LatencyError if an entry of the batch points outside the batch, or if an operator is not
// one of `num_ops`. The message names the entry or the operator. The functions below expect a batch
// that has passed this check.
void CheckBatch(const StageBatch& batch, size_t num_ops);

// The stream of each group, stage after stage. Every stage runs on at most `num_streams` streams,
// which PackGroups chooses. The length of a group is the sum of the `op_us` of its operators.
std::vector<int> PackGroupsOfStages(const StageBatch& batch, const std::vector<double>& op_us,
                                    int num_streams);

// Returns the stages of `batch`, each packed onto at most `num_streams` streams. PackGroupsOfStages
// chooses the streams. Groups that share a stream become one group, in their old order.
StageBatch PackStages(const StageBatch& batch, const std::vector<double>& op_us, int num_streams);

// The latency of each stage in microseconds. A stage takes as long as its longest group, and a
// group takes the sum of the `op_us` of its operators.
std::vector<double> PriceStages(const StageBatch& batch, const std::vector<double>& op_us);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_STAGE_BATCH_H_
