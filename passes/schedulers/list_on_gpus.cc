#include "passes/schedulers/list_on_gpus.h"

#include <algorithm>

namespace tvm_interop {

ListOnGpus::ListOnGpus(const GpuCosts& costs, int gpus)
    : costs_(costs),
      gpu_of_(costs.num_ops(), -1),
      finish_us_(costs.num_ops()),
      on_gpu_(gpus),
      visited_us_(costs.num_ops()) {}

double ListOnGpus::Try(const std::vector<int>& ranks, int gpu, double limit_us) {
  const double latency_us = Visit(ranks, gpu, limit_us);
  for (int rank : ranks) gpu_of_[rank] = -1;
  return latency_us;
}

void ListOnGpus::Map(const std::vector<int>& ranks, int gpu) {
  Visit(ranks, gpu, kNoLower);
  for (int rank : visited_) finish_us_[rank] = visited_us_[rank];
  const auto begin = std::lower_bound(mapped_.begin(), mapped_.end(), ranks.front());
  mapped_.erase(begin, mapped_.end());
  mapped_.insert(mapped_.end(), visited_.begin(), visited_.end());
  std::vector<int>& here = on_gpu_[gpu];
  const auto middle = static_cast<std::ptrdiff_t>(here.size());
  here.insert(here.end(), ranks.begin(), ranks.end());
  std::inplace_merge(here.begin(), here.begin() + middle, here.end());
  latest_us_.resize(mapped_.size());
  for (size_t i = mapped_.size() - visited_.size(); i < mapped_.size(); ++i) {
    latest_us_[i] = std::max(i > 0 ? latest_us_[i - 1] : 0.0, finish_us_[mapped_[i]]);
  }
}

double ListOnGpus::Visit(const std::vector<int>& ranks, int gpu, double limit_us) {
  const int first = ranks.front();
  std::vector<double> free_us(on_gpu_.size());
  for (size_t g = 0; g < on_gpu_.size(); ++g) {
    const auto behind = std::lower_bound(on_gpu_[g].begin(), on_gpu_[g].end(), first);
    if (behind != on_gpu_[g].begin()) free_us[g] = finish_us_[*(behind - 1)];
  }
  for (int rank : ranks) gpu_of_[rank] = gpu;
  auto old = std::lower_bound(mapped_.begin(), mapped_.end(), first);
  double latest_us = old == mapped_.begin() ? 0 : latest_us_[old - mapped_.begin() - 1];
  visited_.clear();
  if (latest_us >= limit_us) return kNoLower;
  auto added = ranks.begin();
  while (old != mapped_.end() || added != ranks.end()) {
    const bool is_old = added == ranks.end() || (old != mapped_.end() && *old < *added);
    const int rank = is_old ? *old++ : *added++;
    double& free = free_us[gpu_of_[rank]];
    double start_us = free;
    for (const Arc& source : costs_.sources(rank)) {
      if (gpu_of_[source.rank] < 0) continue;
      const double end_us =
          source.rank < first ? finish_us_[source.rank] : visited_us_[source.rank];
      const bool is_here = gpu_of_[source.rank] == gpu_of_[rank];
      start_us = std::max(start_us, is_here ? end_us : end_us + source.us);
    }
    free = visited_us_[rank] = start_us + costs_.us(rank);
    visited_.push_back(rank);
    latest_us = std::max(latest_us, free);
    if (latest_us >= limit_us) return kNoLower;
  }
  return latest_us;
}

GpuOrders ListOnGpus::Orders() const {
  GpuOrders orders;
  for (const auto& ranks : on_gpu_) {
    orders.emplace_back();
    for (int rank : ranks) orders.back().push_back(costs_.op(rank));
  }
  return orders;
}

}  // namespace tvm_interop
