#ifndef PASSES_CHECK_STREAM_PROGRAM_H_
#define PASSES_CHECK_STREAM_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

// A checker for plans, and for any other program of several streams. It shares no code with the
// planners, so that it cannot repeat their mistakes. It derives the order of operators and the
// lifetimes of tensors only from the program.
namespace tvm_interop::check {

// A range of bytes of a buffer, [begin, end), that an operator reads or writes.
struct Access {
  int op = 0;
  int buffer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool writes = false;
  // The tensor that the bytes belong to, or -1 if unknown. When a tensor is read, the same tensor
  // must have been the last that was written to these bytes.
  int tensor = -1;
  // Several operators may write one range together, each a different share of it. The shares are
  // numbered from 0 to `shares` - 1. A write by a single operator is share 0 of 1.
  int share = 0;
  int shares = 1;
};

// Operators on streams. A stream runs its operators in the order of their numbers. An operator
// starts when the operator before it on its stream and all operators that it waits for have ended.
struct StreamProgram {
  std::vector<int> stream_of;           // the stream of each operator
  std::vector<std::vector<int>> waits;  // for each operator, the operators that it waits for

  // For each operator, whether its accesses are forbidden to overlap. If they are, a write of the
  // operator that overlaps another of its accesses is a fault.
  std::vector<char> takes_no_overlap;
  std::vector<Access> accesses;
};

// A fault in the accesses of two operators, or in two accesses of one operator.
struct Fault {
  enum Kind {
    kRace,         // two operators touch the same bytes without an order, and one writes
    kOverwritten,  // `first` writes over a tensor before `second` has read it
    kOverlap,      // two accesses of one operator in `takes_no_overlap` overlap, and one is a write
  };
  Kind kind;
  size_t first;  // indices into `accesses`
  size_t second;
  // The bytes that both accesses touch. For a fault of the kind `kOverwritten`, these are only the
  // bytes that are overwritten before they are read.
  int64_t begin;
  int64_t end;
};

struct Verdict {
  // Operators that wait for each other in a circle. If there are any, `faults` is empty.
  std::vector<int> circle;
  // At most one fault of each kind for each pair of operators. The faults are sorted by the higher
  // number of the pair, then by the lower number.
  std::vector<Fault> faults;
};

// Checks a program of several streams.
//
// If two operators touch the same bytes and one of them writes, the streams and the waits must
// order the two. Writes of different shares of one range need no order. First, a walk through the
// accesses (`sweep.h`) tries to show that the program is safe. Its time grows with the number of
// accesses and waits. If the walk does not show this, every two accesses of the same bytes are
// compared. The number of comparisons is limited, and only the faults found within the limit are
// returned.
//
// Throws std::invalid_argument if a number in the program is out of range. Throws std::length_error
// if the comparisons reach their limit without a fault, or if the happens-before relation takes too
// much memory. With these limits, the check of any program takes seconds at most.
Verdict CheckStreamProgram(const StreamProgram& program);

// Makes the same check as CheckStreamProgram, but without the first walk: it always compares every
// two accesses of the same bytes. For tests.
Verdict CompareEachTwo(const StreamProgram& program);

}  // namespace tvm_interop::check

#endif  // PASSES_CHECK_STREAM_PROGRAM_H_
