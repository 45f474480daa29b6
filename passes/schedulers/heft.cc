#include "passes/schedulers/heft.h"

#include <algorithm>
#include <limits>

namespace tvm_interop {
namespace {

struct Busy {
  double start_us;
  double finish_us;
  int rank;
};

struct Slot {
  int gpu;
  size_t index;  // position in the GPU's list of operators
  double start_us;
  double finish_us;
};

class Heft {
 public:
  Heft(const GpuCosts& costs, int gpus)
      : costs_(costs), busy_(gpus), gpu_of_(costs.num_ops(), -1), finish_us_(costs.num_ops()) {}

  void Place(int rank) { Put(rank, Earliest(rank)); }

  void PlaceLookingAhead(int rank) {
    double best_us = std::numeric_limits<double>::infinity();
    Slot best = {};
    bool is_first_empty = true;
    for (int gpu = 0; gpu < gpus(); ++gpu) {
      if (busy_[gpu].empty() && !is_first_empty) continue;
      is_first_empty = is_first_empty && !busy_[gpu].empty();
      const Slot slot = SlotOn(rank, gpu);
      const double us = std::max(slot.finish_us, LastReader(rank, slot, best_us));
      if (us < best_us || (us == best_us && slot.finish_us < best.finish_us)) {
        best_us = us;
        best = slot;
      }
    }
    Put(rank, best);
  }

  GpuOrders Orders() const {
    GpuOrders orders;
    for (const auto& list : busy_) {
      orders.emplace_back();
      for (const Busy& busy : list) orders.back().push_back(costs_.op(busy.rank));
    }
    return orders;
  }

 private:
  int gpus() const { return static_cast<int>(busy_.size()); }

  Slot Earliest(int rank) const {
    Slot best = SlotOn(rank, 0);
    for (int gpu = 1; gpu < gpus(); ++gpu) {
      const Slot slot = SlotOn(rank, gpu);
      if (slot.finish_us < best.finish_us) best = slot;
    }
    return best;
  }

  // The first gap on the GPU that is long enough for the operator. The gap comes after all
  // operators that have ended when the inputs arrive, because one of them may compute an input.
  // Without this rule, an operator that takes no time could come before its inputs.
  Slot SlotOn(int rank, int gpu) const {
    double ready_us = 0;
    for (const Arc& source : costs_.sources(rank)) {
      if (gpu_of_[source.rank] < 0) continue;
      const double end_us = finish_us_[source.rank];
      ready_us = std::max(ready_us, gpu_of_[source.rank] == gpu ? end_us : end_us + source.us);
    }
    const std::vector<Busy>& list = busy_[gpu];
    const auto ends_later = [](double us, const Busy& busy) { return us < busy.finish_us; };
    size_t i = std::upper_bound(list.begin(), list.end(), ready_us, ends_later) - list.begin();
    for (;; ++i) {
      const double start_us = i > 0 ? std::max(ready_us, list[i - 1].finish_us) : ready_us;
      const double finish_us = start_us + costs_.us(rank);
      if (i == list.size() || finish_us <= list[i].start_us) {
        return {gpu, i, start_us, finish_us};
      }
    }
  }

  void Put(int rank, const Slot& slot) {
    auto& list = busy_[slot.gpu];
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(slot.index),
                {slot.start_us, slot.finish_us, rank});
    gpu_of_[rank] = slot.gpu;
    finish_us_[rank] = slot.finish_us;
  }

  void TakeBack(int rank, const Slot& slot) {
    auto& list = busy_[slot.gpu];
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(slot.index));
    gpu_of_[rank] = -1;
  }

  // The time at which the last reader of `rank` finishes if the operator `rank` is placed in
  // `slot`. Stops early when the time exceeds `limit_us`.
  double LastReader(int rank, const Slot& slot, double limit_us) {
    Put(rank, slot);
    double latest_us = 0;
    std::vector<std::pair<int, Slot>> placed;
    readers_.clear();
    for (const Arc& reader : costs_.readers(rank)) readers_.push_back(reader.rank);
    std::sort(readers_.begin(), readers_.end());
    for (int reader : readers_) {
      placed.emplace_back(reader, Earliest(reader));
      Put(reader, placed.back().second);
      latest_us = std::max(latest_us, placed.back().second.finish_us);
      if (latest_us > limit_us) break;
    }
    while (!placed.empty()) {
      TakeBack(placed.back().first, placed.back().second);
      placed.pop_back();
    }
    TakeBack(rank, slot);
    return latest_us;
  }

  const GpuCosts& costs_;
  std::vector<std::vector<Busy>> busy_;  // for each GPU, its operators in running order
  std::vector<int> gpu_of_;              // for each rank, its GPU; -1 if not placed
  std::vector<double> finish_us_;        // by rank
  std::vector<int> readers_;
};

}  // namespace

GpuOrders ScheduleHeft(const GpuCosts& costs, int gpus, bool look_ahead) {
  Heft heft(costs, gpus);
  for (int rank = 0; rank < costs.num_ops(); ++rank) {
    if (look_ahead) {
      heft.PlaceLookingAhead(rank);
    } else {
      heft.Place(rank);
    }
  }
  return heft.Orders();
}

}  // namespace tvm_interop
