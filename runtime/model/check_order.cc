// Checks that waits and streams order all operators that use the same bytes.

#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include "passes/check/stream_program.h"
#include "runtime/model/check_plan.h"
#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

// Plans with more operators are refused. For this many operators, the checker's happens-before
// relation takes up to 256 MiB.
constexpr size_t kMostChecked = 100000;

// Turns a plan into the form that the checker takes. Buffer 0 is the arena. Each value with storage
// outside of the arena has a separate buffer.
class ToProgram {
 public:
  explicit ToProgram(const Plan& plan) : plan_(plan) {}

  check::StreamProgram Convert() {
    const auto count = static_cast<int>(plan_.operators.size());
    for (int i = 0; i < count; ++i) {
      const PlannedOperator& op = plan_.operators[i];
      program_.stream_of.push_back(static_cast<int>(op.stream));
      program_.waits.emplace_back(op.waits.begin(), op.waits.end());
      // A kernel may not write memory that it also reads.
      program_.takes_no_overlap.push_back(1);
      for (int64_t v : op.inputs) Add(i, v, /*writes=*/false, nullptr);
      for (int64_t v : op.outputs) Add(i, v, /*writes=*/true, &op);
    }
    if (!plan_.outputs.empty()) {
      // Add the host as one more operator, which waits for all others and reads the outputs.
      program_.stream_of.push_back(static_cast<int>(plan_.streams.size()));
      program_.takes_no_overlap.push_back(0);
      program_.waits.emplace_back();
      for (int i = 0; i < count; ++i) program_.waits.back().push_back(i);
      for (int64_t v : plan_.outputs) Add(count, v, /*writes=*/false, nullptr);
    }
    return std::move(program_);
  }

 private:
  void Add(int op, int64_t value, bool writes, const PlannedOperator* share) {
    const Span span = SpanOf(plan_, value);
    const PlannedValue& root = plan_.values[span.root];
    const bool is_in_arena = root.storage == Storage::kArena;
    const int64_t base = is_in_arena ? root.offset.value_or(0) : 0;
    check::Access access;
    access.op = op;
    access.buffer = is_in_arena ? 0 : static_cast<int>(span.root) + 1;
    access.begin = base + span.begin;
    access.end = base + span.end;
    access.writes = writes;
    access.tensor = static_cast<int>(span.root);
    if (share != nullptr && share->is_share) {
      access.share = static_cast<int>(share->share);
      access.shares = static_cast<int>(share->shares);
    }
    program_.accesses.push_back(access);
  }

  const Plan& plan_;
  check::StreamProgram program_;
};

std::string NameOfOperator(const Plan& plan, int op) {
  const auto index = static_cast<size_t>(op);
  return index < plan.operators.size() ? "`" + plan.operators[index].name + "`" : "the caller";
}

std::string InWords(const Plan& plan, const check::StreamProgram& program,
                    const check::Fault& fault) {
  const check::Access& first = program.accesses[fault.first];
  const check::Access& second = program.accesses[fault.second];
  const std::string one = NameOfOperator(plan, first.op), two = NameOfOperator(plan, second.op);
  const std::string where =
      "bytes " + std::to_string(fault.begin) + " to " + std::to_string(fault.end) + " of " +
      (first.buffer == 0 ? "the arena" : "`" + plan.values[first.buffer - 1].name + "`");
  switch (fault.kind) {
    case check::Fault::kOverlap:
      return one + " writes " + where + " and also touches them through another tensor";
    case check::Fault::kOverwritten:
      return two + " reads `" + plan.values[second.tensor].name + "` in " + where +
             ", but finds what " + one + " wrote there";
    case check::Fault::kRace:
      break;
  }
  return one + (first.writes ? " writes" : " reads") + " and " + two +
         (second.writes ? " writes " : " reads ") + where + ", and nothing orders the two";
}

}  // namespace

void CheckOrder(const Plan& plan) {
  if (plan.operators.size() > kMostChecked) {
    throw ArtifactError("the plan has " + std::to_string(plan.operators.size()) +
                        " operators, and at most " + std::to_string(kMostChecked) +
                        " can be checked");
  }
  for (const PlannedOperator& op : plan.operators) {
    if (op.is_share && op.shares > static_cast<int64_t>(plan.operators.size())) {
      throw ArtifactError("operator `" + op.name + "` is one of " + std::to_string(op.shares) +
                          " shares, and the plan has " + std::to_string(plan.operators.size()) +
                          " operators");
    }
  }
  const check::StreamProgram program = ToProgram(plan).Convert();
  check::Verdict verdict;
  try {
    verdict = check::CheckStreamProgram(program);
  } catch (const std::logic_error& error) {
    throw ArtifactError(std::string("the plan has ") + error.what());
  }
  if (!verdict.circle.empty()) {
    std::string path;
    for (int op : verdict.circle) path += NameOfOperator(plan, op) + " -> ";
    throw ArtifactError("deadlock: " + path + NameOfOperator(plan, verdict.circle[0]) +
                        " wait for each other in a circle");
  }
  if (verdict.faults.empty()) return;
  throw ArtifactError("the plan is unsafe: " + InWords(plan, program, verdict.faults[0]));
}

}  // namespace tvm_interop
