#ifndef PASSES_CHECK_STREAM_PROGRAM_H_
#define PASSES_CHECK_STREAM_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

// The checker of finished plans, and of anybody's programs of several streams. It includes nothing
// of the planners, not even their graphs, so that no mistake of theirs can be a mistake of its own:
// orders and lifetimes come from the program alone.
namespace tvm_interop::check {

// Bytes of a buffer that an operator reads or writes, [begin, end).
struct Access {
  int op = 0;
  int buffer = 0;
  int64_t begin = 0;
  int64_t end = 0;
  bool writes = false;
  // Of what the bytes are a part; -1 where nobody says. A read of a tensor must find what was last
  // written as that tensor.
  int tensor = -1;
  // Writes of one range by `shares` operators that each write another share of it; else 0 of 1.
  int share = 0;
  int shares = 1;
};

// Operators on streams. A stream runs its operators in the order of their numbers; an operator
// starts when the one before it on its stream has ended and all that it waits for.
struct StreamProgram {
  std::vector<int> stream_of;           // of each operator
  std::vector<std::vector<int>> waits;  // for each operator, those it waits for
  std::vector<char> takes_no_overlap;   // whether it may not write where it reads
  std::vector<Access> accesses;
};

// What is wrong about two operators, or about one that is both.
struct Fault {
  enum Kind {
    kRace,         // nothing orders them, and at least one writes
    kOverwritten,  // `first` writes over a tensor before `second` has read it
    kOverlap,  // an operator that takes it for granted that it does not writes over what it touches
  };
  Kind kind;
  size_t first;  // indices into `accesses`
  size_t second;
  int64_t begin;  // the bytes that both touch, or that were lost
  int64_t end;
};

struct Verdict {
  std::vector<int> circle;    // operators that wait for each other; then nothing else is known
  std::vector<Fault> faults;  // one for each two operators and kind, by the later, then the earlier
};

// Throws std::invalid_argument where a number in the program points nowhere, std::length_error
// where it may be unsafe and has too many accesses of the same bytes to say why, or too many
// streams and operators. So it takes seconds at most, whatever the program.
//
// Two operators that touch the same bytes, one of them writing, must be ordered by the streams and
// the waits, whatever the timing; shares of one range are not in each other's way. That a program
// is safe is found by a walk through its accesses (`sweep.h`), which grows with them and with the
// waits. Where it is not, each two accesses of the same bytes are compared, up to a limit beyond
// which only the faults found by then are told.
Verdict CheckStreamProgram(const StreamProgram& program);

// The same by comparing each two accesses alone: for tests.
Verdict CompareEachTwo(const StreamProgram& program);

}  // namespace tvm_interop::check

#endif  // PASSES_CHECK_STREAM_PROGRAM_H_
