#include "passes/check/sweep.h"

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "passes/check/stream_program.h"
#include "tests/cpp/check.h"

using tvm_interop::check::Access;
using tvm_interop::check::CheckStreamProgram;
using tvm_interop::check::CompareEachTwo;
using tvm_interop::check::HappensBefore;
using tvm_interop::check::IsSafeBySweep;
using tvm_interop::check::StreamProgram;

namespace {

int Draw(std::mt19937* rng, int below) { return static_cast<int>((*rng)() % below); }

// Returns a random program of up to nine operators. Most waits are for earlier operators, and most
// reads name a tensor that was written.
StreamProgram RandomProgram(std::mt19937* rng, bool has_shares) {
  StreamProgram program;
  const int n = 2 + Draw(rng, 8), streams = 1 + Draw(rng, 4);
  for (int op = 0; op < n; ++op) {
    program.stream_of.push_back(Draw(rng, streams));
    program.takes_no_overlap.push_back(Draw(rng, 4) == 0);
    program.waits.emplace_back();
    for (int earlier = 0; earlier < op; ++earlier) {
      if (Draw(rng, 2) == 0) program.waits[op].push_back(earlier);
    }
    if (Draw(rng, 30) == 0) program.waits[op].push_back(Draw(rng, n));
    const int touched = 1 + Draw(rng, 3);
    for (int i = 0; i < touched; ++i) {
      Access access;
      access.op = op;
      access.buffer = Draw(rng, 2);
      access.begin = Draw(rng, 6);
      access.end = access.begin + Draw(rng, 4);
      access.writes = Draw(rng, 2) == 0;
      access.tensor = Draw(rng, 3) - 1;
      program.accesses.push_back(access);
    }
  }
  if (has_shares && n >= 3) {
    const int first = Draw(rng, n - 1);
    for (int share = 0; share < 2; ++share) {
      program.accesses.push_back({first + share, 0, 0, 4, true, 2, share, 2});
    }
    program.accesses.push_back({n - 1, 0, 1, 3, false, 2, 0, 1});
  }
  return program;
}

// Returns a chain of `n` operators on `streams` streams. Each operator reads the bytes that the
// operator before it wrote, and writes the same bytes again.
StreamProgram LongChain(int n, int streams) {
  StreamProgram program;
  for (int op = 0; op < n; ++op) {
    program.stream_of.push_back(op % streams);
    program.takes_no_overlap.push_back(false);
    program.waits.emplace_back();
    if (op > 0) program.waits[op].push_back(op - 1);
    if (op > 0) program.accesses.push_back({op, 0, 0, 64, false, op - 1, 0, 1});
    program.accesses.push_back({op, 0, 0, 64, true, op, 0, 1});
  }
  return program;
}

TEST_CASE(ASweepSaysWhatComparingSays) {
  std::mt19937 rng(1);
  int safe = 0, unsafe = 0, circles = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const StreamProgram program = RandomProgram(&rng, false);
    const HappensBefore happens_before(program.stream_of, program.waits);
    const auto verdict = CompareEachTwo(program);
    if (!verdict.circle.empty()) {
      ++circles;
      CHECK(verdict.circle == happens_before.circle());
      continue;
    }
    CHECK_EQ(IsSafeBySweep(program, happens_before), verdict.faults.empty());
    ++(verdict.faults.empty() ? safe : unsafe);
  }
  CHECK(safe > 500 && unsafe > 500 && circles > 30);
}

TEST_CASE(NothingUnsafeIsCalledSafeWhereThereAreShares) {
  std::mt19937 rng(2);
  int safe = 0, proven = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    const StreamProgram program = RandomProgram(&rng, true);
    const HappensBefore happens_before(program.stream_of, program.waits);
    const auto verdict = CompareEachTwo(program);
    if (!verdict.circle.empty()) continue;
    const bool is_proven = IsSafeBySweep(program, happens_before);
    CHECK(!is_proven || verdict.faults.empty());
    CHECK_EQ(CheckStreamProgram(program).faults.size(), verdict.faults.size());
    safe += verdict.faults.empty();
    proven += is_proven;
  }
  CHECK(proven > 30);
  CHECK(safe >= proven);
}

TEST_CASE(OrderIsTheSameByCountsAndByBits) {
  std::mt19937 rng(3);
  for (int turn = 0; turn < 200; ++turn) {
    const int n = 40 + Draw(&rng, 40);
    std::vector<int> few, many;
    std::vector<std::vector<int>> waits(n);
    for (int op = 0; op < n; ++op) {
      few.push_back(0);
      many.push_back(op);  // If each operator has its own stream, bits are stored.
      for (int i = 0; i < 2 && op > 0; ++i) waits[op].push_back(Draw(&rng, op));
      if (op > 0) waits[op].push_back(op - 1);
    }
    const HappensBefore by_counts(few, waits), by_bits(many, waits);
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        CHECK_EQ(by_counts(a, b), a < b);
        CHECK_EQ(by_bits(a, b), a < b);
      }
    }
  }
}

TEST_CASE(LongChainsAreSafeWithoutComparingEachTwo) {
  // A comparison of each pair of operators would far exceed the limit on comparisons.
  const StreamProgram program = LongChain(40000, 3);
  CHECK(CheckStreamProgram(program).faults.empty());
}

TEST_CASE(WhatIsUnsafeIsNamedUpToALimit) {
  StreamProgram few = LongChain(3000, 3);
  few.waits[2999].clear();
  CHECK(!CheckStreamProgram(few).faults.empty());
  StreamProgram many = LongChain(40000, 3);
  many.waits[39999].clear();
  CHECK_THROWS(CheckStreamProgram(many), std::length_error);
}

// Returns a program of reads from one buffer, each of which lies within the read before it. At the
// end one operator writes the whole buffer.
StreamProgram NestedReads(int reads) {
  StreamProgram program;
  for (int op = 0; op <= reads; ++op) {
    program.stream_of.push_back(0);
    program.waits.emplace_back();
    program.takes_no_overlap.push_back(0);
    program.accesses.push_back({op, 0, op, int64_t{2} * reads - op, false, -1, 0, 1});
  }
  program.accesses.back() = {reads, 0, 0, int64_t{2} * reads, true, -1, 0, 1};
  return program;
}

TEST_CASE(WhatIsMadeToTakeLongIsRefused) {
  CHECK(CheckStreamProgram(NestedReads(2000)).faults.empty());
  const StreamProgram nested = NestedReads(40000);
  CHECK(!IsSafeBySweep(nested, HappensBefore(nested.stream_of, nested.waits)));
  CHECK_THROWS(CheckStreamProgram(nested), std::length_error);
}

TEST_CASE(OrdersThatTakeTooMuchMemoryAreRefused) {
  std::vector<int> streams(50000);
  const std::vector<std::vector<int>> waits(streams.size());
  CHECK_EQ(HappensBefore(streams, waits).order().size(), streams.size());
  for (size_t op = 0; op < streams.size(); ++op) streams[op] = static_cast<int>(op);
  CHECK_THROWS(HappensBefore(streams, waits), std::length_error);
}

}  // namespace
