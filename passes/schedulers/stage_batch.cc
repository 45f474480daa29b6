#include "passes/schedulers/stage_batch.h"

#include <algorithm>
#include <string>

#include "passes/graph/error.h"
#include "passes/schedulers/pack_groups.h"

namespace tvm_interop {
namespace {

double GroupUs(const StageBatch& batch, size_t group, const std::vector<double>& op_us) {
  double sum = 0;
  for (int64_t i = group == 0 ? 0 : batch.group_ends[group - 1]; i < batch.group_ends[group]; ++i) {
    sum += op_us[batch.ops[i]];
  }
  return sum;
}

void CheckEnds(const std::vector<int64_t>& ends, size_t size, const char* what) {
  int64_t previous = 0;
  for (int64_t end : ends) {
    if (end < previous || static_cast<size_t>(end) > size) {
      throw LatencyError(std::string("a batch of stages has a ") + what + " that ends at " +
                         std::to_string(end) + "; ends ascend, up to " + std::to_string(size));
    }
    previous = end;
  }
}

}  // namespace

std::vector<std::vector<int>> StageBatch::GroupsOf(size_t stage) const {
  std::vector<std::vector<int>> groups;
  for (int64_t g = stage == 0 ? 0 : stage_ends[stage - 1]; g < stage_ends[stage]; ++g) {
    const int64_t begin = g == 0 ? 0 : group_ends[g - 1];
    groups.emplace_back(ops.begin() + begin, ops.begin() + group_ends[g]);
  }
  return groups;
}

void StageBatch::Append(const StageBatch& other) {
  const int64_t first_op = static_cast<int64_t>(ops.size());
  const int64_t first_group = static_cast<int64_t>(group_ends.size());
  ops.insert(ops.end(), other.ops.begin(), other.ops.end());
  for (int64_t end : other.group_ends) group_ends.push_back(first_op + end);
  for (int64_t end : other.stage_ends) stage_ends.push_back(first_group + end);
}

StageBatch StageBatch::Select(const std::vector<size_t>& stages) const {
  StageBatch selected;
  for (size_t stage : stages) {
    for (int64_t g = stage == 0 ? 0 : stage_ends[stage - 1]; g < stage_ends[stage]; ++g) {
      const int64_t begin = g == 0 ? 0 : group_ends[g - 1];
      selected.ops.insert(selected.ops.end(), ops.begin() + begin, ops.begin() + group_ends[g]);
      selected.group_ends.push_back(static_cast<int64_t>(selected.ops.size()));
    }
    selected.stage_ends.push_back(static_cast<int64_t>(selected.group_ends.size()));
  }
  return selected;
}

void CheckBatch(const StageBatch& batch, size_t num_ops) {
  CheckEnds(batch.group_ends, batch.ops.size(), "group");
  CheckEnds(batch.stage_ends, batch.group_ends.size(), "stage");
  int64_t begin = 0;
  for (int64_t end : batch.stage_ends) {
    if (end == begin)
      throw LatencyError(
          "a batch of stages has a stage without groups; give each one group or more");
    begin = end;
  }
  for (int64_t op : batch.ops) {
    if (op >= 0 && static_cast<size_t>(op) < num_ops) continue;
    throw LatencyError("a stage holds operator " + std::to_string(op) + ", but latencies of " +
                       std::to_string(num_ops) + " operators are known, numbered from 0");
  }
}

std::vector<int> PackGroupsOfStages(const StageBatch& batch, const std::vector<double>& op_us,
                                    int num_streams) {
  std::vector<int> streams;
  streams.reserve(batch.group_ends.size());
  std::vector<double> group_us;
  int64_t group = 0;
  for (const int64_t end : batch.stage_ends) {
    group_us.clear();
    for (; group < end; ++group) group_us.push_back(GroupUs(batch, group, op_us));
    const std::vector<int> of_stage = PackGroups(group_us, num_streams);
    streams.insert(streams.end(), of_stage.begin(), of_stage.end());
  }
  return streams;
}

StageBatch PackStages(const StageBatch& batch, const std::vector<double>& op_us, int num_streams) {
  const std::vector<int> stream_of = PackGroupsOfStages(batch, op_us, num_streams);
  StageBatch packed;
  packed.ops.reserve(batch.ops.size());
  packed.stage_ends.reserve(batch.num_stages());
  int64_t first_group = 0;
  for (const int64_t end_group : batch.stage_ends) {
    const auto begin_streams = stream_of.begin() + first_group;
    const auto end_streams = stream_of.begin() + end_group;
    const int used =
        begin_streams == end_streams ? 0 : *std::max_element(begin_streams, end_streams);
    for (int stream = 0; stream <= used; ++stream) {
      for (int64_t g = first_group; g < end_group; ++g) {
        if (stream_of[g] != stream) continue;
        const int64_t begin = g == 0 ? 0 : batch.group_ends[g - 1];
        packed.ops.insert(packed.ops.end(), batch.ops.begin() + begin,
                          batch.ops.begin() + batch.group_ends[g]);
      }
      packed.group_ends.push_back(static_cast<int64_t>(packed.ops.size()));
    }
    packed.stage_ends.push_back(static_cast<int64_t>(packed.group_ends.size()));
    first_group = end_group;
  }
  return packed;
}

std::vector<double> PriceStages(const StageBatch& batch, const std::vector<double>& op_us) {
  std::vector<double> prices;
  prices.reserve(batch.num_stages());
  int64_t group = 0;
  for (const int64_t end : batch.stage_ends) {
    double longest = 0;
    for (; group < end; ++group) longest = std::max(longest, GroupUs(batch, group, op_us));
    prices.push_back(longest);
  }
  return prices;
}

}  // namespace tvm_interop
