#include "passes/schedulers/hios_mr.h"

#include <algorithm>
#include <limits>

namespace tvm_interop {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

Recurrence::Recurrence(const GpuCosts& costs, int gpus)
    : costs_(costs),
      gpus_(gpus),
      finish_us_(static_cast<size_t>(costs.num_ops()) * gpus, kNever),
      before_(finish_us_.size(), -1),
      gpu_of_(costs.num_ops()) {
  if (costs.num_ops() > 0) finish_us_[0] = costs.us(0);
  for (int rank = 1; rank < costs.num_ops(); ++rank) {
    for (int before = 0; before < std::min(gpus, rank); ++before) Extend(rank, before);
  }
}

std::vector<int> Recurrence::Best() {
  std::vector<int> best;
  double best_us = kNever;
  for (int gpu = 0; gpu < std::min(gpus_, costs_.num_ops()); ++gpu) {
    double latest_us = 0;
    WalkBack(costs_.num_ops() - 1, gpu,
             [&](double us, int) { latest_us = std::max(latest_us, us); });
    if (latest_us < best_us) {
      best_us = latest_us;
      best = gpu_of_;
    }
  }
  return best;
}

template <typename Visit>
void Recurrence::WalkBack(int rank, int gpu, Visit visit) {
  for (; rank >= 0; --rank) {
    gpu_of_[rank] = gpu;
    visit(finish_us_[At(rank, gpu)], gpu);
    gpu = before_[At(rank, gpu)];
  }
}

void Recurrence::Extend(int rank, int before) {
  std::vector<double> free_us(gpus_);
  WalkBack(rank - 1, before,
           [&](double us, int gpu) { free_us[gpu] = std::max(free_us[gpu], us); });
  for (int gpu = 0; gpu < std::min(gpus_, rank + 1); ++gpu) {
    double start_us = free_us[gpu];
    for (const Arc& source : costs_.sources(rank)) {
      const double end_us = finish_us_[At(source.rank, gpu_of_[source.rank])];
      start_us = std::max(start_us, gpu_of_[source.rank] == gpu ? end_us : end_us + source.us);
    }
    const size_t here = At(rank, gpu);
    if (start_us + costs_.us(rank) < finish_us_[here]) {
      finish_us_[here] = start_us + costs_.us(rank);
      before_[here] = before;
    }
  }
}

GpuOrders MapByRecurrence(const GpuCosts& costs, int gpus) {
  const std::vector<int> gpu_of = Recurrence(costs, gpus).Best();
  GpuOrders orders(gpus);
  for (int rank = 0; rank < costs.num_ops(); ++rank) {
    orders[gpu_of[rank]].push_back(costs.op(rank));
  }
  return orders;
}

}  // namespace tvm_interop
