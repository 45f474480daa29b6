#include "passes/check/stream_program.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace tvm_interop::check {
namespace {

void Require(bool is_so, const char* what) {
  if (!is_so) throw std::invalid_argument(what);
}

void CheckNumbers(const StreamProgram& program) {
  const size_t n = program.stream_of.size();
  const auto is_op = [n](int op) { return op >= 0 && static_cast<size_t>(op) < n; };
  Require(program.waits.size() == n, "not each operator has a list of waits");
  Require(program.takes_no_overlap.size() == n, "not each operator says whether it may overlap");
  for (int stream : program.stream_of) Require(stream >= 0, "a stream below 0");
  for (const auto& sources : program.waits) {
    for (int source : sources) Require(is_op(source), "a wait for an operator that is none");
  }
  for (const Access& access : program.accesses) {
    Require(is_op(access.op), "an access of an operator that is none");
    Require(access.buffer >= 0, "a buffer below 0");
    Require(access.begin >= 0 && access.begin <= access.end, "a range that ends before it begins");
    Require(access.share >= 0 && access.share < access.shares, "a share that is none");
    Require(static_cast<size_t>(access.shares) <= n, "more shares than there are operators");
  }
}

// Which operators end before which others start, whatever the timing.
class HappensBefore {
 public:
  explicit HappensBefore(const StreamProgram& program)
      : num_words_((program.stream_of.size() + 63) / 64), sources_(program.waits) {
    std::map<int, int> last_of_stream;
    for (size_t op = 0; op < sources_.size(); ++op) {
      const auto [last, is_first] = last_of_stream.emplace(program.stream_of[op], op);
      if (!is_first) sources_[op].push_back(std::exchange(last->second, static_cast<int>(op)));
    }
    Search();
  }

  bool operator()(int first, int second) const {
    return (before_[second * num_words_ + first / 64] >> (first % 64) & 1) != 0;
  }
  // Operators that wait for each other, from the lowest on; none where all can run.
  const std::vector<int>& circle() const { return circle_; }

 private:
  enum State : char { kNew, kOpen, kDone };

  // Depth first, against the order: an operator is done when all that come before it are.
  void Search() {
    before_.resize(sources_.size() * num_words_);
    std::vector<State> state(sources_.size(), kNew);
    std::vector<std::pair<int, size_t>> path;  // operators, and how many of their sources are done
    for (size_t start = 0; start < sources_.size(); ++start) {
      if (state[start] == kNew) path.emplace_back(start, 0);
      while (!path.empty()) {
        const int op = path.back().first;
        state[op] = kOpen;
        if (path.back().second == sources_[op].size()) {
          state[op] = kDone;
          path.pop_back();
          continue;
        }
        const int source = sources_[op][path.back().second];
        if (state[source] == kOpen) return SetCircle(path, source);
        if (state[source] == kNew) {
          path.emplace_back(source, 0);
          continue;
        }
        Add(op, source);
        ++path.back().second;
      }
    }
  }

  void Add(int op, int source) {
    uint64_t* to = &before_[op * num_words_];
    const uint64_t* from = &before_[source * num_words_];
    for (size_t w = 0; w < num_words_; ++w) to[w] |= from[w];
    to[source / 64] |= uint64_t{1} << (source % 64);
  }

  void SetCircle(const std::vector<std::pair<int, size_t>>& path, int source) {
    // The path leads from each operator to one before it: the circle is its end, backwards.
    for (auto place = path.rbegin(); circle_.empty() || circle_.back() != source; ++place) {
      circle_.push_back(place->first);
    }
    std::rotate(circle_.begin(), std::min_element(circle_.begin(), circle_.end()), circle_.end());
  }

  const size_t num_words_;
  std::vector<std::vector<int>> sources_;  // of each operator, those right before it
  std::vector<uint64_t> before_;           // a row of bits for each operator
  std::vector<int> circle_;
};

using Range = std::pair<int64_t, int64_t>;

// The first bytes of `range` that none of `covers` holds; empty where all are held.
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
      : program_(program), accesses_(program.accesses), happens_before_(program) {}

  Verdict Run() {
    Verdict verdict = {happens_before_.circle(), {}};
    if (!verdict.circle.empty()) return verdict;
    writes_of_read_.resize(accesses_.size());
    ForEachOverlap([this](size_t a, size_t b) { Compare(a, b); });
    for (size_t read = 0; read < accesses_.size(); ++read) {
      if (!accesses_[read].writes && accesses_[read].tensor >= 0) CheckFindsItsTensor(read);
    }
    for (auto& [key, fault] : faults_) verdict.faults.push_back(fault);
    return verdict;
  }

 private:
  template <typename Visit>
  void ForEachOverlap(Visit visit) const {
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
        const Access& b = accesses_[order[j]];
        if (b.buffer != a.buffer || b.begin >= a.end) break;
        if (a.writes || b.writes) visit(std::min(order[i], order[j]), std::max(order[i], order[j]));
      }
    }
  }

  // Two accesses of the same bytes, at least one of them a write.
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

  // Whatever was written to the bytes of a read as something else, its own tensor was written there
  // again after that, and before the read.
  void CheckFindsItsTensor(size_t read) {
    const Access& reader = accesses_[read];
    std::vector<size_t> strangers, own;
    for (size_t write : writes_of_read_[read]) {
      const Access& writer = accesses_[write];
      if (!happens_before_(writer.op, reader.op)) continue;
      (writer.tensor == reader.tensor ? own : strangers).push_back(write);
    }
    for (size_t stranger : strangers) {
      const Range lost = FirstUncovered(Common(stranger, read), WrittenAfter(stranger, own));
      if (lost.first < lost.second) Add(Fault::kOverwritten, stranger, read, lost);
    }
  }

  // The ranges that some of `writes` write wholly, after `earlier`: shares count if all are there.
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

  // Keeps the first of each two operators and kind.
  void Add(Fault::Kind kind, size_t first, size_t second, Range bytes) {
    const auto [low, high] = std::minmax(accesses_[first].op, accesses_[second].op);
    faults_.emplace(std::make_tuple(high, low, kind),
                    Fault{kind, first, second, bytes.first, bytes.second});
  }

  const StreamProgram& program_;
  const std::vector<Access>& accesses_;
  const HappensBefore happens_before_;
  std::vector<std::vector<size_t>> writes_of_read_;
  std::map<std::tuple<int, int, Fault::Kind>, Fault> faults_;
};

}  // namespace

Verdict CheckStreamProgram(const StreamProgram& program) {
  CheckNumbers(program);
  return Checker(program).Run();
}

}  // namespace tvm_interop::check
