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
  // A priority_queue pops its greatest element first. Here the earliest arrival must come first, so
  // it counts as the greatest.
  bool operator<(const Arrival& other) const {
    return at_us != other.at_us ? at_us > other.at_us : number > other.number;
  }
};

// The requests that wait for one block of a model.
struct Buffer {
  struct Item {
    int request;
    double since_us;
  };
  std::deque<Item> items;
  double room_since_us = 0;
};

// The combined block that is running now.
struct Flight {
  double began_us;
  AloneRun alone;
  double end_us() const { return began_us + alone.us; }
};

}  // namespace

class CombinedServing::State {
 public:
  State(const ServingDevice& device, std::vector<Follower> followers)
      : device_(device), followers_(std::move(followers)) {}

  void Decide(const Combination& combination) {
    for (size_t model = 0; model < combination.program_of.size(); ++model) {
      if (combination.program_of[model].empty()) {
        throw ScheduleError("model " + std::to_string(model) +
                            " has no blocks; divide each model into one block or more");
      }
      for (size_t block = 0; block < combination.program_of[model].size(); ++block) {
        CheckPlace(combination, model, block);
      }
    }
    if (buffers_.empty()) {
      Size(combination);
    } else if (!HasTheSize(combination)) {
      throw ScheduleError(
          "a decision differs from the decision before in its number of models or in a model's "
          "number of blocks; keep both");
    }
    combination_ = combination;
    has_input_.resize(combination.programs.size());
    decided_us_ = now_us_;
  }

  void Add(const std::vector<double>& at_us, const std::vector<int>& models) {
    for (size_t i = 0; i < at_us.size(); ++i) {
      CheckModel(models[i]);
      if (at_us[i] < (at_us_.empty() ? 0 : at_us_.back())) {
        throw ScheduleError("request " + std::to_string(at_us_.size()) + " arrives at " +
                            std::to_string(at_us[i]) +
                            " us, before the request that comes before it in the list; sort the "
                            "requests by time");
      }
      at_us_.push_back(at_us[i]);
      models_.push_back(models[i]);
    }
  }

  CombinedWindow Run(double until_us, const std::vector<double>& at_us) {
    window_ = {};
    begin_us_ = now_us_;
    observe_us_ = &at_us;
    num_observed_ = 0;
    while (now_us_ < until_us) {
      if (is_running_ && !Finish(until_us)) break;
      if (now_us_ >= until_us) break;
      Launch(now_us_);
      const int chosen = Choose();
      if (chosen >= 0) {
        Start(chosen);
        continue;
      }
      const double next_us = NextLaunch();
      if (next_us == kNever) break;
      now_us_ = std::max(now_us_, next_us);
    }
    Launch(until_us);
    ObserveBefore(kNever);
    now_us_ = until_us;
    AddUnfinished();
    return std::move(window_);
  }

  const std::vector<ServedRequest>& requests() const { return requests_; }

 private:
  struct Taken {
    int model, block, request;
  };

  void Size(const Combination& combination) {
    const size_t num_models = combination.program_of.size();
    queues_.resize(num_models);
    left_us_.resize(num_models, -kNever);
    for (const auto& blocks : combination.program_of) {
      buffers_.emplace_back(blocks.size());
      in_block_.emplace_back(blocks.size(), 0);
    }
    for (const Follower& follower : followers_) {
      CheckModel(follower.model);
      CheckModel(follower.next_model);
    }
  }
  bool HasTheSize(const Combination& combination) const {
    if (combination.program_of.size() != buffers_.size()) return false;
    for (size_t model = 0; model < buffers_.size(); ++model) {
      if (combination.program_of[model].size() != buffers_[model].size()) return false;
    }
    return true;
  }

  static void CheckPlace(const Combination& combination, size_t model, size_t block) {
    const int program = combination.program_of[model][block];
    const int part = combination.part_of[model][block];
    if (program >= 0 && program < static_cast<int>(combination.programs.size()) && part >= 0 &&
        part < combination.programs[program]->num_parts()) {
      return;
    }
    throw ScheduleError("block " + std::to_string(block) + " of model " + std::to_string(model) +
                        " is in no combined block; put each block into one of them");
  }
  void CheckModel(int model) const {
    if (model >= 0 && model < static_cast<int>(queues_.size())) return;
    throw ScheduleError("a request for model " + std::to_string(model) +
                        " arrives, but there are " + std::to_string(queues_.size()) +
                        " models, numbered from 0");
  }

  // Notes how many requests are in the queues and blocks at each time of observation before `us`.
  void ObserveBefore(double us) {
    for (; num_observed_ < observe_us_->size() && (*observe_us_)[num_observed_] < us;
         ++num_observed_) {
      for (const auto& queue : queues_) window_.observed.push_back(queue.size());
      for (const auto& blocks : in_block_) {
        window_.observed.insert(window_.observed.end(), blocks.begin(), blocks.end());
      }
    }
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
    double at_us = next_ < at_us_.size() ? at_us_[next_] : kNever;
    if (!following_.empty()) at_us = std::min(at_us, following_.top().at_us);
    return at_us;
  }
  // The time at which the oldest request of the model's queue may leave the queue.
  double NextDequeue(int model) const {
    if (queues_[model].empty() || IsFull(buffers_[model][0])) return kNever;
    const double arrived_us = requests_[queues_[model].front()].arrived_us;
    const double due_us = left_us_[model] + combination_.interval_us[model];
    return std::max({arrived_us, due_us, buffers_[model][0].room_since_us, decided_us_});
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
      ObserveBefore(std::min(arrival_us, dequeue_us));
      if (arrival_us <= dequeue_us) {
        Arrive();
      } else {
        const int request = queues_[from].front();
        queues_[from].pop_front();
        requests_[request].dequeued_us = dequeue_us;
        left_us_[from] = dequeue_us;
        buffers_[from][0].items.push_back({request, dequeue_us});
        ++in_block_[from][0];
      }
    }
  }

  void Arrive() {
    const bool is_listed =
        next_ < at_us_.size() && (following_.empty() || at_us_[next_] <= following_.top().at_us);
    ServedRequest request = {0, 0, kNotYet, kNotYet};
    if (is_listed) {
      request.model = models_[next_];
      request.arrived_us = at_us_[next_++];
    } else {
      request.model = following_.top().model;
      request.arrived_us = following_.top().at_us;
      following_.pop();
    }
    queues_[request.model].push_back(static_cast<int>(requests_.size()));
    requests_.push_back(request);
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
    // Compares two programs by the share of their blocks that have input. Each block is a part of
    // its program. To compare a / b with c / d exactly, this function compares a * d with c * b.
    const int64_t share =
        static_cast<int64_t>(has_input_[program].blocks) * combination_.programs[than]->num_parts();
    const int64_t other =
        static_cast<int64_t>(has_input_[than].blocks) * combination_.programs[program]->num_parts();
    if (share != other) return share > other;
    return has_input_[program].since_us < has_input_[than].since_us;
  }

  void Start(int program) {
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
    flight_ = {now_us_, combination_.programs[program]->Alone(present, device_)};
    is_running_ = true;
    ++window_.rounds;
  }

  // Lets the running combined block end. Returns false if it does not end by `until_us`.
  bool Finish(double until_us) {
    const double end_us = flight_.end_us();
    // A run may begin before the window, or end after it. Only its busy time inside the window
    // counts.
    const double from_us = std::max(flight_.began_us, begin_us_);
    const bool is_within = flight_.began_us >= begin_us_ && end_us <= until_us;
    window_.busy_us += is_within ? flight_.alone.busy_us
                                 : flight_.alone.busy_us * (std::min(end_us, until_us) - from_us) /
                                       flight_.alone.us;
    if (end_us > until_us) return false;
    // Requests that arrive or leave their queue during the run are handled before the results of
    // the run.
    Launch(end_us);
    ObserveBefore(end_us);
    now_us_ = end_us;
    is_running_ = false;
    for (const Taken& taken : taken_) Pass(taken);
    return true;
  }

  // Passes a request whose block has run on to the model's next block, or back to its client.
  void Pass(const Taken& taken) {
    auto& buffers = buffers_[taken.model];
    --in_block_[taken.model][taken.block];
    if (taken.block + 1 < static_cast<int>(buffers.size())) {
      buffers[taken.block + 1].items.push_back({taken.request, now_us_});
      ++in_block_[taken.model][taken.block + 1];
      return;
    }
    requests_[taken.request].finished_us = now_us_;
    window_.requests.push_back(requests_[taken.request]);
    for (const Follower& follower : followers_) {
      if (follower.model != taken.model) continue;
      following_.push({now_us_ + follower.delay_us, num_followers_++, follower.next_model});
    }
  }

  void AddUnfinished() {
    for (const auto& buffers : buffers_) {
      for (const Buffer& buffer : buffers) {
        for (const Buffer::Item& item : buffer.items) {
          window_.requests.push_back(requests_[item.request]);
        }
      }
    }
    if (!is_running_) return;
    for (const Taken& taken : taken_) window_.requests.push_back(requests_[taken.request]);
  }

  struct Input {
    int blocks = 0;
    double since_us = kNever;
  };

  const ServingDevice device_;
  const std::vector<Follower> followers_;
  Combination combination_;
  std::vector<double> at_us_;  // the times of the requests that were added
  std::vector<int> models_;
  size_t next_ = 0;  // index of the next arrival in `at_us_`
  std::priority_queue<Arrival> following_;
  int64_t num_followers_ = 0;
  std::vector<ServedRequest> requests_;
  std::vector<std::deque<int>> queues_;
  std::vector<double> left_us_;  // when a request last left the queue of each model
  std::vector<std::vector<Buffer>> buffers_;
  std::vector<std::vector<int64_t>> in_block_;  // how many requests wait for a block or run in it
  std::vector<Input> has_input_;
  bool is_running_ = false;
  Flight flight_ = {};
  std::vector<Taken> taken_;  // what the running combined block runs
  double now_us_ = 0;
  double decided_us_ = 0;
  CombinedWindow window_;
  double begin_us_ = 0;
  const std::vector<double>* observe_us_ = nullptr;
  size_t num_observed_ = 0;
};

CombinedServing::CombinedServing(const ServingDevice& device, std::vector<Follower> followers)
    : state_(std::make_unique<State>(device, std::move(followers))) {}
CombinedServing::~CombinedServing() = default;

void CombinedServing::Decide(const Combination& combination) { state_->Decide(combination); }
void CombinedServing::Add(const std::vector<double>& at_us, const std::vector<int>& models) {
  state_->Add(at_us, models);
}
CombinedWindow CombinedServing::Run(double until_us, const std::vector<double>& at_us) {
  return state_->Run(until_us, at_us);
}
const std::vector<ServedRequest>& CombinedServing::requests() const { return state_->requests(); }

CombinedRun SimulateCombined(const ServingDevice& device, const Combination& combination,
                             const ArrivalList& arrivals, double until_us) {
  CombinedServing serving(device, arrivals.followers);
  serving.Decide(combination);
  serving.Add(arrivals.at_us, arrivals.models);
  const CombinedWindow window = serving.Run(until_us, {});
  CombinedRun run = {serving.requests(), window.busy_us, window.rounds};
  run.requests.erase(
      std::remove_if(run.requests.begin(), run.requests.end(),
                     [&](const ServedRequest& row) { return row.arrived_us >= until_us; }),
      run.requests.end());
  return run;
}

}  // namespace tvm_interop
