#include "passes/schedulers/hios_lp.h"

#include <algorithm>
#include <numeric>

namespace tvm_interop {
PathSearch::PathSearch(const GpuCosts& costs)
    : costs_(costs),
      left_(costs.num_ops()),
      is_taken_(costs.num_ops()),
      is_clean_(costs.num_ops(), 1),
      in_us_(costs.num_ops()),
      out_us_(costs.num_ops()),
      tail_us_(costs.num_ops()),
      next_(costs.num_ops()) {
  std::iota(left_.begin(), left_.end(), 0);
}

LongestPath PathSearch::TakeLongest() {
  LongestPath path = {{-1}, -1};
  int& first = path.ranks.front();
  for (auto rank = left_.rbegin(); rank != left_.rend(); ++rank) {
    double behind_us = out_us_[*rank];
    int next = -1;
    for (const Arc& reader : costs_.readers(*rank)) {
      if (is_taken_[reader.rank]) continue;
      const double us = reader.us + tail_us_[reader.rank];
      if (us > behind_us || (us == behind_us && next >= 0 && IsEarlier(reader.rank, next))) {
        behind_us = us;
        next = reader.rank;
      }
    }
    next_[*rank] = next;
    // An operator is taken if it is on an earlier path. If a neighbour of this operator is taken,
    // this operator cannot be inside a path, so the path ends here.
    tail_us_[*rank] = costs_.us(*rank) + (is_clean_[*rank] ? behind_us : out_us_[*rank]);
    const double head_us = in_us_[*rank] + costs_.us(*rank) + behind_us;
    if (head_us > path.us || (head_us == path.us && IsEarlier(*rank, first))) {
      path.us = head_us;
      first = *rank;
    }
  }
  for (int rank = next_[first]; rank >= 0; rank = is_clean_[rank] ? next_[rank] : -1) {
    path.ranks.push_back(rank);
  }
  Take(path.ranks);
  return path;
}

bool PathSearch::IsEarlier(int a, int b) const { return costs_.position(a) < costs_.position(b); }

void PathSearch::Take(const std::vector<int>& path) {
  for (int rank : path) {
    is_taken_[rank] = 1;
    for (const Arc& reader : costs_.readers(rank)) {
      is_clean_[reader.rank] = 0;
      in_us_[reader.rank] = std::max(in_us_[reader.rank], reader.us);
    }
    for (const Arc& source : costs_.sources(rank)) {
      is_clean_[source.rank] = 0;
      out_us_[source.rank] = std::max(out_us_[source.rank], source.us);
    }
  }
  const auto is_taken = [this](int rank) { return is_taken_[rank] != 0; };
  const auto from = std::lower_bound(left_.begin(), left_.end(), path.front());
  left_.erase(std::remove_if(from, left_.end(), is_taken), left_.end());
}

namespace {

int BestGpu(ListOnGpus* mapping, const std::vector<int>& path) {
  double best_us = ListOnGpus::kNoLower;
  int best = 0;
  for (int gpu = 0; gpu < mapping->gpus(); ++gpu) {
    const double us = mapping->Try(path, gpu, best_us);
    if (us < best_us) {
      best_us = us;
      best = gpu;
    }
    // Adding a path never lowers the latency. So if the path does not raise the latency on some
    // GPU, no other GPU is better. All empty GPUs give the same latency, so only one of them is
    // tried.
    if (best_us <= mapping->latency_us() || mapping->is_empty(gpu)) break;
  }
  return best;
}

}  // namespace

GpuOrders MapLongestPaths(const GpuCosts& costs, int gpus) {
  PathSearch paths(costs);
  ListOnGpus mapping(costs, gpus);
  while (!paths.done()) {
    const std::vector<int> path = paths.TakeLongest().ranks;
    mapping.Map(path, BestGpu(&mapping, path));
  }
  return mapping.Orders();
}

}  // namespace tvm_interop
