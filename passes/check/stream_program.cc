#include "passes/check/stream_program.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "passes/check/happens_before.h"
#include "passes/check/sweep.h"

namespace tvm_interop::check {
namespace {

void Require(bool is_so, const char* what) {
  if (!is_so) throw std::invalid_argument(what);
}

void CheckNumbers(const StreamProgram& program) {
  const size_t n = program.stream_of.size();
  const auto is_op = [n](int op) { return op >= 0 && static_cast<size_t>(op) < n; };
  Require(program.waits.size() == n, "operators without a list of waits");
  Require(program.takes_no_overlap.size() == n,
          "operators that do not say whether they may overlap");
  for (int stream : program.stream_of) Require(stream >= 0, "a stream below 0");
  for (const auto& sources : program.waits) {
    for (int source : sources) Require(is_op(source), "a wait for an operator that does not exist");
  }
  for (const Access& access : program.accesses) {
    Require(is_op(access.op), "an access of an operator that does not exist");
    Require(access.buffer >= 0, "a buffer below 0");
    Require(access.begin >= 0 && access.begin <= access.end, "a range that ends before it begins");
    Require(access.share >= 0 && access.share < access.shares, "a share that does not exist");
    Require(static_cast<size_t>(access.shares) <= n, "more shares than there are operators");
  }
}

// The comparison of pairs of accesses ends after this number of steps. Programs of real models need
// fewer steps.
constexpr size_t kMostSteps = size_t{1} << 27;

using Range = std::pair<int64_t, int64_t>;

// The first contiguous bytes of `range` that lie in no range of `covers`. The result is empty if
// the ranges of `covers` hold all bytes of `range`.
Range FirstUncovered(Range range, std::vector<Range> covers) {
  std::sort(covers.begin(), covers.end());
  int64_t end = range.second;
  for (const auto& [from, to] : covers) {
    if (to <= range.first) continue;
    if (from > range.first) {
      end = std::min(end, from);
      break;
    }
    range.first = to;
  }
  return {range.first, end};
}

class Checker {
 public:
  explicit Checker(const StreamProgram& program)
      : program_(program),
        accesses_(program.accesses),
        happens_before_(program.stream_of, program.waits) {}

  Verdict Run(bool sweeps) {
    Verdict verdict = {happens_before_.circle(), {}};
    if (!verdict.circle.empty()) return verdict;
    if (sweeps && IsSafeBySweep(program_, happens_before_)) return verdict;
    // The walk through the accesses (`sweep.h`) did not show that the program is safe. So compare
    // every two accesses, to find the operators at fault.
    writes_of_read_.resize(accesses_.size());
    ForEachOverlap([this](size_t a, size_t b) { Compare(a, b); });
    for (size_t read = 0; read < accesses_.size(); ++read) {
      if (!accesses_[read].writes && accesses_[read].tensor >= 0) CheckFindsItsTensor(read);
    }
    if (steps_ > kMostSteps && faults_.empty()) {
      throw std::length_error(
          "operators that touch the same bytes too often to compare every two accesses; check "
          "parts of the program");
    }
    for (auto& [key, fault] : faults_) verdict.faults.push_back(fault);
    return verdict;
  }

 private:
  template <typename Visit>
  void ForEachOverlap(Visit visit) {
    std::vector<size_t> order;
    for (size_t i = 0; i < accesses_.size(); ++i) {
      if (accesses_[i].begin < accesses_[i].end) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      const auto key = [this](size_t i) {
        return std::make_tuple(accesses_[i].buffer, accesses_[i].begin, i);
      };
      return key(a) < key(b);
    });
    for (size_t i = 0; i < order.size(); ++i) {
      const Access& a = accesses_[order[i]];
      for (size_t j = i + 1; j < order.size(); ++j) {
        if (!Spend(1)) return;
        const Access& b = accesses_[order[j]];
        if (b.buffer != a.buffer || b.begin >= a.end) break;
        if (a.writes || b.writes) visit(std::min(order[i], order[j]), std::max(order[i], order[j]));
      }
    }
  }

  // Compares two accesses of the same bytes. At least one of them is a write.
  void Compare(size_t a, size_t b) {
    const Access &one = accesses_[a], &other = accesses_[b];
    if (one.op == other.op) {
      if (program_.takes_no_overlap[one.op]) Add(Fault::kOverlap, a, b, Common(a, b));
      return;
    }
    if (one.writes && other.writes) {
      if (AreSharesOfOne(one, other)) return;
    } else {
      writes_of_read_[one.writes ? b : a].push_back(one.writes ? a : b);
    }
    if (happens_before_(one.op, other.op) || happens_before_(other.op, one.op)) return;
    const bool is_turned = other.op < one.op;
    Add(Fault::kRace, is_turned ? b : a, is_turned ? a : b, Common(a, b));
  }

  // Checks that a read finds the tensor that it names. If another tensor was written to the same
  // bytes, the named tensor must be written there again before the read.
  void CheckFindsItsTensor(size_t read) {
    const Access& reader = accesses_[read];
    std::vector<size_t> strangers, own;
    for (size_t write : writes_of_read_[read]) {
      const Access& writer = accesses_[write];
      if (!happens_before_(writer.op, reader.op)) continue;
      (writer.tensor == reader.tensor ? own : strangers).push_back(write);
    }
    size_t steps = 1;
    for (size_t write : own) steps += 1 + static_cast<size_t>(accesses_[write].shares);
    for (size_t stranger : strangers) {
      if (!Spend(steps)) return;
      const Range lost = FirstUncovered(Common(stranger, read), WrittenAfter(stranger, own));
      if (lost.first < lost.second) Add(Fault::kOverwritten, stranger, read, lost);
    }
  }

  // The ranges that `writes` writes after the access `earlier`. If several operators each write a
  // share of a range, the range counts only if all its shares are written after `earlier`.
  std::vector<Range> WrittenAfter(size_t earlier, const std::vector<size_t>& writes) const {
    std::map<std::tuple<int64_t, int64_t, int>, std::vector<char>> seen;
    std::vector<Range> ranges;
    for (size_t i : writes) {
      const Access& write = accesses_[i];
      if (!happens_before_(accesses_[earlier].op, write.op)) continue;
      std::vector<char>& shares = seen[{write.begin, write.end, write.shares}];
      shares.resize(write.shares);
      shares[write.share] = 1;
      if (std::count(shares.begin(), shares.end(), 1) == write.shares) {
        ranges.emplace_back(write.begin, write.end);
      }
    }
    return ranges;
  }

  static bool AreSharesOfOne(const Access& a, const Access& b) {
    return a.tensor == b.tensor && a.begin == b.begin && a.end == b.end && a.shares == b.shares &&
           a.share != b.share;
  }

  Range Common(size_t a, size_t b) const {
    return {std::max(accesses_[a].begin, accesses_[b].begin),
            std::min(accesses_[a].end, accesses_[b].end)};
  }

  // Counts steps, and returns false once there are more than `kMostSteps`. The checker then returns
  // only the faults that it has found so far.
  bool Spend(size_t steps) {
    steps_ += steps;
    return steps_ <= kMostSteps;
  }

  // Adds a fault, unless there is already a fault of the same kind for the same two operators.
  void Add(Fault::Kind kind, size_t first, size_t second, Range bytes) {
    const auto [low, high] = std::minmax(accesses_[first].op, accesses_[second].op);
    faults_.emplace(std::make_tuple(high, low, kind),
                    Fault{kind, first, second, bytes.first, bytes.second});
  }

  const StreamProgram& program_;
  const std::vector<Access>& accesses_;
  const HappensBefore happens_before_;
  std::vector<std::vector<size_t>> writes_of_read_;
  size_t steps_ = 0;
  std::map<std::tuple<int, int, Fault::Kind>, Fault> faults_;
};

}  // namespace

Verdict CheckStreamProgram(const StreamProgram& program) {
  CheckNumbers(program);
  return Checker(program).Run(true);
}

Verdict CompareEachTwo(const StreamProgram& program) {
  CheckNumbers(program);
  return Checker(program).Run(false);
}

}  // namespace tvm_interop::check
