#ifndef PASSES_SCHEDULERS_GPU_ANNEALED_H_
#define PASSES_SCHEDULERS_GPU_ANNEALED_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "passes/graph/error.h"
#include "passes/graph/topological.h"
#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/gpu_windows.h"
#include "passes/schedulers/stage_prices.h"

namespace tvm_interop {

// Random numbers that are the same on every machine. They are made without the distributions of the
// standard library, which differ between its implementations.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  int Within(int first, int last) { return first + Below(last - first + 1); }
  double Share() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  bool Chance(double share) { return Share() < share; }

 private:
  std::mt19937_64 engine_;
};

// A compact copy of a schedule, with the stages in order. `ranks` lists the operators of all
// stages, `ends` says where each stage ends in this list, and `gpus` holds the GPU of each stage.
struct Note {
  double makespan_us = 0;
  std::vector<int> ranks;
  std::vector<size_t> ends;
  std::vector<int> gpus;
};

// A schedule to which random changes are made. A change is undone unless it brings the makespan
// below a given limit.
class Annealed {
 public:
  // The value that functions return in place of a makespan once a schedule is known to be too slow.
  static constexpr double kTooLate = std::numeric_limits<double>::infinity();

  Annealed(const GpuCosts& costs, const GpuStages& initial, const StagePrices& prices, int window,
           uint64_t seed)
      : costs_(costs),
        prices_(prices),
        window_(window),
        gpus_(static_cast<int>(initial.size())),
        dice_(seed),
        stage_of_(costs.num_ops()),
        behind_us_(costs.num_ops()) {
    for (int gpu = 0; gpu < gpus_; ++gpu) {
      for (const auto& ops : initial[gpu]) {
        Stage stage;
        for (int op : ops) {
          stage.ranks.push_back(costs.rank(op));
          stage_of_[costs.rank(op)] = static_cast<int>(stages_.size());
        }
        stage.gpu = gpu;
        if (!Price(&stage)) throw ScheduleError("a stage to refine has no price; price it first");
        stages_.push_back(std::move(stage));
      }
    }
    sequence_ = InOrder(initial);
    for (int rank = costs.num_ops() - 1; rank >= 0; --rank) {
      for (const Arc& reader : costs.readers(rank)) {
        behind_us_[rank] =
            std::max(behind_us_[rank], costs.us(reader.rank) + behind_us_[reader.rank]);
      }
    }
    Number(0);
    makespan_us_ = Visit(0, kTooLate);
    Commit(0);
  }

  double makespan_us() const { return makespan_us_; }
  double longest_path_us() const {
    double longest_us = 0;
    for (int rank = 0; rank < costs_.num_ops(); ++rank) {
      longest_us = std::max(longest_us, costs_.us(rank) + behind_us_[rank]);
    }
    return longest_us;
  }

  // Makes one random change, and undoes it unless it gives a makespan below `limit_us`.
  void Change(double limit_us) {
    const double kind = dice_.Share();
    int first = -1;
    if (kind < 0.70) {
      first = MoveOperator();
    } else if (kind < 0.85 && window_ > 1) {
      first = JoinStage();
    } else if (kind < 0.97) {
      first = ExchangeStages();
    } else {
      first = ExchangeTails();
    }
    if (first < 0) return;
    const double us = Visit(first, limit_us);
    if (us < limit_us) {
      makespan_us_ = us;
      Commit(first);
      Forget();
    } else {
      GoBack();
    }
  }

  // Writes a compact copy of the schedule into `note`.
  void Write(Note* note) const {
    note->makespan_us = makespan_us_;
    note->ranks.clear();
    note->gpus.clear();
    note->ends.clear();
    for (int s : sequence_) {
      note->ranks.insert(note->ranks.end(), stages_[s].ranks.begin(), stages_[s].ranks.end());
      note->ends.push_back(note->ranks.size());
      note->gpus.push_back(stages_[s].gpu);
    }
  }

  GpuSchedule Read(const Note& note) const {
    GpuSchedule found = {GpuStages(gpus_), note.makespan_us};
    size_t begin = 0;
    for (size_t i = 0; i < note.ends.size(); ++i) {
      std::vector<int> ops;
      for (; begin < note.ends[i]; ++begin) ops.push_back(costs_.op(note.ranks[begin]));
      found.stages[note.gpus[i]].push_back(std::move(ops));
    }
    return found;
  }

 private:
  static constexpr int kBetweenMarks = 16;

  struct Stage {
    std::vector<int> ranks;
    int gpu = 0;
    double us = 0;
    double end_us = 0;
    double visited_us = 0;  // end time that the last call of Visit computed
    int position = 0;       // position of the stage in `sequence_`
  };

  // The stages sorted by start time, so that neighbours in the sequence run at about the same time.
  std::vector<int> InOrder(const GpuStages& initial) const {
    std::vector<std::vector<int>> successors(stages_.size());
    for (int rank = 0; rank < costs_.num_ops(); ++rank) {
      for (const Arc& reader : costs_.readers(rank)) {
        successors[stage_of_[rank]].push_back(stage_of_[reader.rank]);
      }
    }
    int s = 0;
    for (const auto& stages : initial) {
      for (size_t i = 0; i < stages.size(); ++i, ++s) {
        if (i > 0) successors[s - 1].push_back(s);
      }
    }
    std::vector<int> order = TopologicalOrder(successors);
    if (order.size() < stages_.size()) {
      throw ScheduleError(
          "the stages to refine wait for each other in a circle; give a schedule that can run");
    }
    std::vector<double> start_us(stages_.size());
    for (int source : order) {
      const double end_us = start_us[source] + stages_[source].us;
      for (int target : successors[source]) {
        start_us[target] = std::max(start_us[target], end_us);
      }
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return start_us[a] < start_us[b]; });
    return order;
  }

  int Size() const { return static_cast<int>(sequence_.size()); }

  void Number(int from) {
    for (int i = from; i < Size(); ++i) stages_[sequence_[i]].position = i;
  }

  // Sets the latency of the stage. Returns false if the latency is unknown.
  bool Price(Stage* stage) const {
    if (stage->ranks.size() == 1) {
      stage->us = costs_.us(stage->ranks.front());
      return true;
    }
    std::vector<int> ops;
    for (int rank : stage->ranks) ops.push_back(costs_.op(rank));
    const double* us = prices_.Find(std::move(ops));
    if (us == nullptr) return false;
    stage->us = *us;
    return true;
  }

  // Finds the last mark that is not after position `from`, copies its times into `free_us_`, and
  // returns its position. A mark is a position in the sequence. For each mark, `marks_` stores the
  // time at which each GPU is free just before the stage at this position.
  int BackToMark(int from) {
    if (from == 0) {
      free_us_.assign(gpus_, 0.0);
      return 0;
    }
    const int number = from / kBetweenMarks;
    const auto mark = marks_.begin() + static_cast<std::ptrdiff_t>(number) * gpus_;
    free_us_.assign(mark, mark + gpus_);
    return number * kBetweenMarks;
  }

  // Computes the end times of all stages from position `from` on, and returns the makespan. Returns
  // kTooLate as soon as the makespan cannot be below `limit_us`.
  double Visit(int from, double limit_us) {
    int i = BackToMark(from);
    for (; i < from; ++i) free_us_[stages_[sequence_[i]].gpu] = stages_[sequence_[i]].end_us;
    for (; i < Size(); ++i) {
      Stage& stage = stages_[sequence_[i]];
      double start_us = free_us_[stage.gpu];
      double behind_us = 0;
      for (int rank : stage.ranks) {
        behind_us = std::max(behind_us, behind_us_[rank]);
        for (const Arc& arc : costs_.sources(rank)) {
          const Stage& source = stages_[stage_of_[arc.rank]];
          const double end_us = source.position < from ? source.end_us : source.visited_us;
          start_us = std::max(start_us, source.gpu == stage.gpu ? end_us : end_us + arc.us);
        }
      }
      free_us_[stage.gpu] = stage.visited_us = start_us + stage.us;
      if (stage.visited_us + behind_us >= limit_us) return kTooLate;
    }
    return *std::max_element(free_us_.begin(), free_us_.end());
  }

  void Commit(int from) {
    int i = BackToMark(from);
    marks_.resize(static_cast<size_t>(i / kBetweenMarks) * gpus_);
    for (; i < Size(); ++i) {
      Stage& stage = stages_[sequence_[i]];
      if (i % kBetweenMarks == 0) marks_.insert(marks_.end(), free_us_.begin(), free_us_.end());
      if (i >= from) stage.end_us = stage.visited_us;
      free_us_[stage.gpu] = stage.end_us;
    }
    critical_.clear();
  }

  // The operators on a critical path. The search for the path begins at the stage that ends last.
  // From each stage, it goes back to the stage that this stage waited for.
  const std::vector<int>& Critical() {
    if (!critical_.empty()) return critical_;
    std::vector<int> before(stages_.size(), -1);  // for each stage, the stage before it on its GPU
    std::vector<int> last_of(gpus_, -1);
    int last = sequence_.front();
    for (int s : sequence_) {
      before[s] = last_of[stages_[s].gpu];
      last_of[stages_[s].gpu] = s;
      if (stages_[s].end_us > stages_[last].end_us) last = s;
    }
    while (last >= 0) {
      const Stage& stage = stages_[last];
      critical_.insert(critical_.end(), stage.ranks.begin(), stage.ranks.end());
      double start_us = 0;
      int waited_for = -1;
      if (before[last] >= 0) {
        waited_for = before[last];
        start_us = stages_[waited_for].end_us;
      }
      for (int rank : stage.ranks) {
        for (const Arc& arc : costs_.sources(rank)) {
          const Stage& source = stages_[stage_of_[arc.rank]];
          const double us = source.end_us + (source.gpu == stage.gpu ? 0.0 : arc.us);
          if (us > start_us) {
            start_us = us;
            waited_for = stage_of_[arc.rank];
          }
        }
      }
      last = waited_for;
    }
    return critical_;
  }

  int AnyOperator() {
    if (dice_.Chance(0.5)) return dice_.Below(costs_.num_ops());
    const std::vector<int>& critical = Critical();
    return critical[dice_.Below(static_cast<int>(critical.size()))];
  }

  // The position of the last operator that an operator reads, and the position of its first reader.
  // The operator can move to any position between these two.
  std::pair<int, int> Bounds(int rank) const {
    std::pair<int, int> bounds = {-1, Size()};
    for (const Arc& arc : costs_.sources(rank)) {
      bounds.first = std::max(bounds.first, stages_[stage_of_[arc.rank]].position);
    }
    for (const Arc& arc : costs_.readers(rank)) {
      bounds.second = std::min(bounds.second, stages_[stage_of_[arc.rank]].position);
    }
    return bounds;
  }

  // A random position from `first` to `last`, often near `at`.
  int Near(int at, int first, int last) {
    if (dice_.Chance(0.6)) {
      const int reach = 2 * gpus_ + 2;
      first = std::max(first, std::min(at - reach, last));
      last = std::min(last, std::max(at + reach, first));
    }
    return dice_.Within(first, last);
  }

  // Each of the following functions makes a change. It returns the first position that changed in
  // the sequence of stages, or -1 if nothing changed.

  // Moves an operator to another place or another GPU, where it is alone in a stage.
  int MoveOperator() {
    const int rank = AnyOperator();
    const int s = stage_of_[rank];
    const auto [low, high] = Bounds(rank);
    const int at = stages_[s].position;
    int to = dice_.Chance(0.3) ? at : Near(at, low + 1, high);
    const int gpu = dice_.Below(gpus_);
    const bool is_alone = stages_[s].ranks.size() == 1;
    if (is_alone && gpu == stages_[s].gpu && (to == at || to == at + 1)) return -1;
    Remember(s);
    if (is_alone) {
      stages_[s].gpu = gpu;
      // When the stage leaves its old position, each later stage moves one position towards the
      // front.
      if (to > at) --to;
      const int first = std::min(at, to);
      RememberSequence(first, std::max(at, to) + 1);
      const auto begin = sequence_.begin();
      if (to < at) std::rotate(begin + to, begin + at, begin + at + 1);
      if (to > at) std::rotate(begin + at, begin + at + 1, begin + to + 1);
      for (int i = first; i <= std::max(at, to); ++i) stages_[sequence_[i]].position = i;
      return first;
    }
    if (!Leave(rank)) return GoBack();
    const int added = NewStage(rank, gpu);
    const int first = std::min(at, to);
    RememberSequence(first, Size());
    sequence_.insert(sequence_.begin() + to, added);
    Number(first);
    return first;
  }

  // Lets an operator join a stage of other operators.
  int JoinStage() {
    const int rank = AnyOperator();
    const int s = stage_of_[rank];
    const auto [low, high] = Bounds(rank);
    if (high - low < 2) return -1;
    const int at = stages_[s].position;
    const int to = Near(at, low + 1, high - 1);
    const int target = sequence_[to];
    if (target == s || static_cast<int>(stages_[target].ranks.size()) >= window_) return -1;
    Remember(s);
    Remember(target);
    stages_[target].ranks.push_back(rank);
    if (!Price(&stages_[target])) return GoBack();
    const bool is_alone = stages_[s].ranks.size() == 1;
    if (!is_alone && !Leave(rank)) return GoBack();
    stage_of_[rank] = target;
    const int first = std::min(at, to);
    if (is_alone) {
      RememberSequence(first, Size());
      sequence_.erase(sequence_.begin() + at);
      free_stages_.push_back(s);
      num_freed_ = 1;
      Number(first);
    }
    return first;
  }

  int ExchangeStages() {
    const int a = stage_of_[AnyOperator()];
    const int b = sequence_[Near(stages_[a].position, 0, Size() - 1)];
    if (stages_[a].gpu == stages_[b].gpu) return -1;
    Remember(a);
    Remember(b);
    std::swap(stages_[a].gpu, stages_[b].gpu);
    return std::min(stages_[a].position, stages_[b].position);
  }

  int ExchangeTails() {
    const int one = dice_.Below(gpus_);
    const int other = dice_.Below(gpus_);
    if (one == other) return -1;
    const int first = dice_.Below(Size());
    for (int i = first; i < Size(); ++i) {
      Stage& stage = stages_[sequence_[i]];
      if (stage.gpu != one && stage.gpu != other) continue;
      Remember(sequence_[i]);
      stage.gpu = stage.gpu == one ? other : one;
    }
    return first;
  }

  // Takes an operator out of a stage of several operators. Returns false if the latency of the
  // remaining operators together is unknown.
  bool Leave(int rank) {
    Stage& stage = stages_[stage_of_[rank]];
    stage.ranks.erase(std::find(stage.ranks.begin(), stage.ranks.end(), rank));
    return Price(&stage);
  }

  int NewStage(int rank, int gpu) {
    int s = static_cast<int>(stages_.size());
    if (free_stages_.empty()) {
      stages_.emplace_back();
    } else {
      s = free_stages_.back();
      free_stages_.pop_back();
    }
    num_made_ = 1;
    made_ = s;
    stages_[s].ranks = {rank};
    stages_[s].gpu = gpu;
    Price(&stages_[s]);
    stage_of_[rank] = s;
    return s;
  }

  // The following functions store the state before a change, so that GoBack can restore it.

  void Remember(int s) { old_stages_.emplace_back(s, stages_[s]); }
  void RememberSequence(int first, int last) {
    old_first_ = first;
    old_last_ = last;
    old_sequence_.assign(sequence_.begin() + first, sequence_.begin() + last);
    old_size_ = Size();
  }

  int GoBack() {
    if (num_made_ > 0) free_stages_.push_back(made_);
    if (num_freed_ > 0) free_stages_.pop_back();
    if (old_first_ >= 0) {
      sequence_.resize(old_size_);
      std::copy(old_sequence_.begin(), old_sequence_.end(), sequence_.begin() + old_first_);
    }
    for (auto old = old_stages_.rbegin(); old != old_stages_.rend(); ++old) {
      stages_[old->first] = std::move(old->second);
      for (int rank : stages_[old->first].ranks) stage_of_[rank] = old->first;
    }
    if (old_first_ >= 0) {
      for (int i = old_first_; i < old_last_; ++i) stages_[sequence_[i]].position = i;
    }
    Forget();
    return -1;
  }

  void Forget() {
    old_stages_.clear();
    old_first_ = -1;
    num_made_ = num_freed_ = 0;
  }

  const GpuCosts& costs_;
  const StagePrices& prices_;
  const int window_;
  const int gpus_;
  Dice dice_;
  std::vector<Stage> stages_;
  std::vector<int> stage_of_;  // by rank

  // For each operator, by rank, the length of the longest path after the operator, without the time
  // of copies.
  std::vector<double> behind_us_;
  std::vector<int> sequence_;     // of stages
  std::vector<int> free_stages_;  // unused stages, which the sequence does not hold

  // The time at which each GPU is free, stored before every kBetweenMarks-th stage.
  std::vector<double> marks_;
  std::vector<double> free_us_;
  std::vector<int> critical_;  // ranks on a critical path; empty if not computed yet
  double makespan_us_ = 0;

  std::vector<std::pair<int, Stage>> old_stages_;
  std::vector<int> old_sequence_;
  int old_first_ = -1, old_last_ = 0, old_size_ = 0;
  int num_made_ = 0, num_freed_ = 0, made_ = 0;
};

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_GPU_ANNEALED_H_
