#include "passes/schedulers/stage_book.h"

#include <limits>

namespace tvm_interop {
namespace {

// Calls `visit(stage, ops)` for each stage of the batch.
template <typename Visit>
void ForEachStage(const StageBatch& stages, Visit visit) {
  std::vector<int64_t> ops;
  int64_t begin = 0;
  for (size_t i = 0; i < stages.num_stages(); ++i) {
    const int64_t end = stages.group_ends[stages.stage_ends[i] - 1];
    ops.assign(stages.ops.begin() + begin, stages.ops.begin() + end);
    visit(i, ops);
    begin = end;
  }
}

}  // namespace

size_t StageBook::Hash::operator()(const std::vector<int64_t>& ops) const {
  uint64_t hash = 0;
  for (int64_t op : ops) {
    hash = (hash ^ static_cast<uint64_t>(op)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return static_cast<size_t>(hash);
}

void StageBook::Write(const StageBatch& stages, const std::vector<double>& price_us) {
  ForEachStage(stages, [&](size_t i, const auto& ops) { price_us_[ops] = price_us[i]; });
}

std::vector<double> StageBook::Read(const StageBatch& stages) const {
  std::vector<double> price_us(stages.num_stages(), std::numeric_limits<double>::quiet_NaN());
  if (price_us_.empty()) return price_us;
  ForEachStage(stages, [&](size_t i, const auto& ops) {
    const auto found = price_us_.find(ops);
    if (found != price_us_.end()) price_us[i] = found->second;
  });
  return price_us;
}

}  // namespace tvm_interop
