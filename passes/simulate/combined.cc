#include "passes/simulate/combined.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <queue>

#include "passes/graph/error.h"

namespace tvm_interop {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kNotYet = std::numeric_limits<double>::quiet_NaN();

struct Arrival {
  double at_us;
  int64_t number;
  int model;
  // A priority_queue pops the greatest element, so a later arrival is less than an earlier one.
  bool operator<(const Arrival& other) const {
    return at_us != other.at_us ? at_us > other.at_us : number > other.number;
  }
};

// The requests that wait for one block.
struct Buffer {
  struct Item {
    int request;
    double since_us;
  };
  std::deque<Item> items;
  double room_since_us = 0;
};

class Serving {
 public:
  Serving(const ServingDevice& device, const Combination& combination, const ArrivalList& arrivals)
      : device_(device), combination_(combination), arrivals_(arrivals) {
    const size_t num_models = combination.program_of.size();
    queues_.resize(num_models);
    due_us_.resize(num_models, 0);
    has_input_.resize(combination.programs.size());
    for (const auto& blocks : combination.program_of) {
      if (blocks.empty()) throw ScheduleError("a model is divided into no blocks");
      buffers_.emplace_back(blocks.size());
    }
    for (size_t model = 0; model < num_models; ++model) {
      for (size_t block = 0; block < buffers_[model].size(); ++block) CheckPlace(model, block);
    }
    for (int model : arrivals.models) CheckModel(model);
    for (const Follower& follower : arrivals.followers) {
      CheckModel(follower.model);
      CheckModel(follower.next_model);
    }
  }

  CombinedRun Run(double until_us) {
    while (now_us_ < until_us) {
      Launch(now_us_);
      const int chosen = Choose();
      if (chosen < 0) {
        const double next_us = NextLaunch();
        if (next_us == kNever) break;
        now_us_ = std::max(now_us_, next_us);
        continue;
      }
      Execute(chosen, until_us);
    }
    Launch(until_us);
    run_.requests.erase(
        std::remove_if(run_.requests.begin(), run_.requests.end(),
                       [&](const ServedRequest& row) { return row.arrived_us >= until_us; }),
        run_.requests.end());
    return std::move(run_);
  }

 private:
  struct Taken {
    int model, block, request;
  };

  void CheckPlace(size_t model, size_t block) const {
    const int program = combination_.program_of[model][block];
    const int part = combination_.part_of[model][block];
    if (program >= 0 && program < static_cast<int>(combination_.programs.size()) && part >= 0 &&
        part < combination_.programs[program]->num_parts()) {
      return;
    }
    throw ScheduleError("block " + std::to_string(block) + " of model " + std::to_string(model) +
                        " is in no combined block");
  }
  void CheckModel(int model) const {
    if (model >= 0 && model < static_cast<int>(queues_.size())) return;
    throw ScheduleError("a request for model " + std::to_string(model) +
                        " arrives, but there are " + std::to_string(queues_.size()) +
                        " models, numbered from 0");
  }

  bool IsFull(const Buffer& buffer) const {
    return static_cast<int>(buffer.items.size()) >= combination_.buffer;
  }
  bool HasInput(int model, int block) const {
    const auto& buffers = buffers_[model];
    if (buffers[block].items.empty()) return false;
    return block + 1 == static_cast<int>(buffers.size()) || !IsFull(buffers[block + 1]);
  }

  double NextArrival() const {
    double at_us = next_ < arrivals_.at_us.size() ? arrivals_.at_us[next_] : kNever;
    if (!following_.empty()) at_us = std::min(at_us, following_.top().at_us);
    return at_us;
  }
  // The time at which the oldest request of the model's queue may leave the queue.
  double NextDequeue(int model) const {
    if (queues_[model].empty() || IsFull(buffers_[model][0])) return kNever;
    const double arrived_us = run_.requests[queues_[model].front()].arrived_us;
    return std::max({arrived_us, due_us_[model], buffers_[model][0].room_since_us});
  }
  double NextLaunch() const {
    double at_us = NextArrival();
    for (size_t model = 0; model < queues_.size(); ++model) {
      at_us = std::min(at_us, NextDequeue(static_cast<int>(model)));
    }
    return at_us;
  }

  // Lets requests arrive and leave their queues up to `until_us`, in order of time.
  void Launch(double until_us) {
    while (true) {
      const double arrival_us = NextArrival();
      double dequeue_us = kNever;
      int from = -1;
      for (size_t model = 0; model < queues_.size(); ++model) {
        const double at_us = NextDequeue(static_cast<int>(model));
        if (at_us < dequeue_us) {
          dequeue_us = at_us;
          from = static_cast<int>(model);
        }
      }
      if (std::min(arrival_us, dequeue_us) > until_us ||
          std::min(arrival_us, dequeue_us) == kNever) {
        return;
      }
      if (arrival_us <= dequeue_us) {
        Arrive();
      } else {
        const int request = queues_[from].front();
        queues_[from].pop_front();
        run_.requests[request].dequeued_us = dequeue_us;
        due_us_[from] = dequeue_us + combination_.interval_us[from];
        buffers_[from][0].items.push_back({request, dequeue_us});
      }
    }
  }

  void Arrive() {
    const bool is_listed = next_ < arrivals_.at_us.size() &&
                           (following_.empty() || arrivals_.at_us[next_] <= following_.top().at_us);
    ServedRequest request = {0, 0, kNotYet, kNotYet};
    if (is_listed) {
      request.model = arrivals_.models[next_];
      request.arrived_us = arrivals_.at_us[next_++];
    } else {
      request.model = following_.top().model;
      request.arrived_us = following_.top().at_us;
      following_.pop();
    }
    queues_[request.model].push_back(static_cast<int>(run_.requests.size()));
    run_.requests.push_back(request);
  }

  // The combined block to run next, or -1 if no combined block has input.
  int Choose() {
    std::fill(has_input_.begin(), has_input_.end(), Input{});
    for (size_t model = 0; model < buffers_.size(); ++model) {
      for (size_t block = 0; block < buffers_[model].size(); ++block) {
        if (!HasInput(static_cast<int>(model), static_cast<int>(block))) continue;
        Input& input = has_input_[combination_.program_of[model][block]];
        ++input.blocks;
        input.since_us = std::min(input.since_us, buffers_[model][block].items.front().since_us);
      }
    }
    int best = -1;
    for (size_t program = 0; program < has_input_.size(); ++program) {
      if (has_input_[program].blocks == 0) continue;
      if (best < 0 || IsBetter(static_cast<int>(program), best)) best = static_cast<int>(program);
    }
    return best;
  }

  bool IsBetter(int program, int than) const {
    // To compare two fractions exactly, each is multiplied by both numbers of parts.
    const int64_t share =
        static_cast<int64_t>(has_input_[program].blocks) * combination_.programs[than]->num_parts();
    const int64_t other =
        static_cast<int64_t>(has_input_[than].blocks) * combination_.programs[program]->num_parts();
    if (share != other) return share > other;
    return has_input_[program].since_us < has_input_[than].since_us;
  }

  void Execute(int program, double until_us) {
    taken_.clear();
    uint64_t present = 0;
    for (size_t m = 0; m < buffers_.size(); ++m) {
      for (size_t b = 0; b < buffers_[m].size(); ++b) {
        const int model = static_cast<int>(m);
        const int block = static_cast<int>(b);
        if (combination_.program_of[m][b] != program || !HasInput(model, block)) continue;
        present |= 1ull << combination_.part_of[m][b];
        taken_.push_back({model, block, buffers_[m][b].items.front().request});
      }
    }
    for (const Taken& taken : taken_) {
      Buffer& buffer = buffers_[taken.model][taken.block];
      if (IsFull(buffer)) buffer.room_since_us = now_us_;
      buffer.items.pop_front();
    }
    const AloneRun alone = combination_.programs[program]->Alone(present, device_);
    const double end_us = now_us_ + alone.us;
    // If the run goes on beyond `until_us`, only the time before `until_us` counts.
    run_.busy_us +=
        end_us <= until_us ? alone.busy_us : alone.busy_us * (until_us - now_us_) / alone.us;
    ++run_.rounds;
    if (end_us > until_us) {
      now_us_ = until_us;
      return;
    }
    // Requests that arrive or leave their queue during the run are handled before the results of
    // the run.
    Launch(end_us);
    now_us_ = end_us;
    for (const Taken& taken : taken_) {
      auto& buffers = buffers_[taken.model];
      if (taken.block + 1 < static_cast<int>(buffers.size())) {
        buffers[taken.block + 1].items.push_back({taken.request, now_us_});
      } else {
        run_.requests[taken.request].finished_us = now_us_;
        for (const Follower& follower : arrivals_.followers) {
          if (follower.model != taken.model) continue;
          following_.push({now_us_ + follower.delay_us, num_followers_++, follower.next_model});
        }
      }
    }
  }

  struct Input {
    int blocks = 0;
    double since_us = kNever;
  };

  const ServingDevice& device_;
  const Combination& combination_;
  const ArrivalList& arrivals_;
  size_t next_ = 0;  // index of the next arrival in `arrivals_`
  std::priority_queue<Arrival> following_;
  int64_t num_followers_ = 0;
  std::vector<std::deque<int>> queues_;
  std::vector<double> due_us_;
  std::vector<std::vector<Buffer>> buffers_;
  std::vector<Input> has_input_;
  std::vector<Taken> taken_;
  double now_us_ = 0;
  CombinedRun run_;
};

}  // namespace

CombinedRun SimulateCombined(const ServingDevice& device, const Combination& combination,
                             const ArrivalList& arrivals, double until_us) {
  return Serving(device, combination, arrivals).Run(until_us);
}

}  // namespace tvm_interop
