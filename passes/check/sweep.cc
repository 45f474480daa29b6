#include "passes/check/sweep.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

namespace tvm_interop::check {
namespace {

// The last accesses of a range of bytes. The range is so small that every access so far covers
// either all of it or no byte of it.
struct Segment {
  int64_t end = 0;
  // The last write of the bytes. There may be several if they need no order between them: writes of
  // one operator, or writes of different shares of one tensor.
  std::vector<const Access*> writers;
  std::vector<int> readers;  // the operators that have read the bytes since the last write

  // The operators that read or wrote the bytes before the first share was written. Used only if the
  // bytes are written in shares.
  std::vector<int> before;
};

using Segments = std::map<int64_t, Segment>;  // the segments of a buffer, by first byte

// The most steps that a walk may take. In a step, the walk looks at or copies one access of a
// segment (a range of bytes with the same earlier accesses).
constexpr size_t kMostSteps = size_t{1} << 25;

bool IsAnotherShare(const Segment& segment, const Access& write) {
  if (write.shares == 1 || segment.writers.empty()) return false;
  return std::all_of(segment.writers.begin(), segment.writers.end(), [&write](const Access* other) {
    return other->tensor == write.tensor && other->begin == write.begin &&
           other->end == write.end && other->shares == write.shares && other->share != write.share;
  });
}

class Sweep {
 public:
  Sweep(const StreamProgram& program, const HappensBefore& happens_before)
      : happens_before_(happens_before), of_op_(program.stream_of.size()) {
    for (const Access& access : program.accesses) {
      if (access.begin < access.end) of_op_[access.op].push_back(&access);
    }
    for (size_t op = 0; op < of_op_.size(); ++op) {
      if (program.takes_no_overlap[op] && Overlaps(of_op_[op])) is_safe_ = false;
    }
  }

  bool Run() {
    for (const int op : happens_before_.order()) {
      for (const Access* access : of_op_[op]) {
        if (is_safe_ && !access->writes) Read(*access);
      }
      for (const Access* access : of_op_[op]) {
        if (is_safe_ && access->writes) Write(*access);
      }
      if (!is_safe_) return false;
    }
    return is_safe_;
  }

 private:
  // Whether any two of `accesses` overlap and at least one of the two is a write.
  static bool Overlaps(std::vector<const Access*> accesses) {
    std::sort(accesses.begin(), accesses.end(), [](const Access* a, const Access* b) {
      return a->buffer != b->buffer ? a->buffer < b->buffer : a->begin < b->begin;
    });
    int buffer = -1;
    int64_t end = 0, written_end = 0;
    for (const Access* access : accesses) {
      if (access->buffer != buffer) end = written_end = 0;
      buffer = access->buffer;
      if (access->begin < (access->writes ? end : written_end)) return true;
      end = std::max(end, access->end);
      if (access->writes) written_end = std::max(written_end, access->end);
    }
    return false;
  }

  void Read(const Access& read) {
    Visit(read, [&](Segment& segment) {
      Spend(segment.writers.size());
      for (const Access* writer : segment.writers) {
        Require(happens_before_(writer->op, read.op));
        if (read.tensor >= 0) Require(writer->tensor == read.tensor);
      }
      if (!segment.writers.empty()) {
        const size_t shares = segment.writers[0]->shares;
        Require(shares == 1 || segment.writers.size() == shares);
      }
      segment.readers.push_back(read.op);
    });
  }

  void Write(const Access& write) {
    Visit(write, [&](Segment& segment) {
      Spend(Size(segment));
      for (const int reader : segment.readers) RequireBefore(reader, write.op);
      if (IsAnotherShare(segment, write)) {
        for (const int other : segment.before) RequireBefore(other, write.op);
        segment.writers.push_back(&write);
        return;
      }
      if (!segment.writers.empty() && segment.writers.back()->op == write.op) {
        segment.writers.push_back(&write);  // Writes of one operator need no order.
        return;
      }
      for (const Access* writer : segment.writers) RequireBefore(writer->op, write.op);
      segment.before.clear();
      if (write.shares > 1) {
        segment.before = segment.readers;
        for (const Access* writer : segment.writers) segment.before.push_back(writer->op);
      }
      segment.readers.clear();
      segment.writers.assign(1, &write);
    });
  }

  // Calls `body` for each segment (a range of bytes with the same earlier accesses) of `access`,
  // including segments without an earlier access.
  template <typename Body>
  void Visit(const Access& access, Body body) {
    Segments& segments = buffers_[access.buffer];
    Split(&segments, access.begin);
    Split(&segments, access.end);
    int64_t at = access.begin;
    auto next = segments.lower_bound(at);
    while (at < access.end && is_safe_) {
      if (next == segments.end() || next->first > at) {
        const int64_t end = next == segments.end() ? access.end : std::min(next->first, access.end);
        Segment fresh;
        fresh.end = end;
        next = segments.emplace_hint(next, at, std::move(fresh));
      }
      Spend(1);
      body(next->second);
      at = next->second.end;
      ++next;
    }
  }

  void Split(Segments* segments, int64_t at) {
    auto after = segments->upper_bound(at);
    if (after == segments->begin()) return;
    auto& [begin, segment] = *std::prev(after);
    if (begin == at || segment.end <= at) return;
    Spend(Size(segment));
    if (!is_safe_) return;
    Segment second = segment;
    segment.end = at;
    segments->emplace_hint(after, at, std::move(second));
  }

  static size_t Size(const Segment& segment) {
    return segment.writers.size() + segment.readers.size() + segment.before.size();
  }

  // Counts steps. After too many steps, the walk ends, and the program does not count as safe.
  void Spend(size_t steps) {
    steps_ += steps;
    Require(steps_ <= kMostSteps);
  }

  // Two accesses of one operator need no order between them.
  void RequireBefore(int first, int second) {
    Require(first == second || happens_before_(first, second));
  }

  void Require(bool is_so) { is_safe_ = is_safe_ && is_so; }

  const HappensBefore& happens_before_;
  std::vector<std::vector<const Access*>> of_op_;
  std::unordered_map<int, Segments> buffers_;
  bool is_safe_ = true;
  size_t steps_ = 0;
};

}  // namespace

bool IsSafeBySweep(const StreamProgram& program, const HappensBefore& happens_before) {
  return Sweep(program, happens_before).Run();
}

}  // namespace tvm_interop::check
