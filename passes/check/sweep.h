#ifndef PASSES_CHECK_SWEEP_H_
#define PASSES_CHECK_SWEEP_H_

#include "passes/check/happens_before.h"
#include "passes/check/stream_program.h"

namespace tvm_interop::check {

// Whether the program is safe, found without comparing every two operators.
//
// The sweep walks through the operators in a topological order. For each range of bytes it keeps
// the last writer and the operators that have read since. If all of these come before the next
// writer, so does every operator that touched the range earlier.
//
// Returns true only for a safe program, but may return false for a safe program too. Such a program
// may read bytes of which only some shares are written. Or its walk may take too many steps, for
// example if there are thousands of reads and each lies within the range of the next.
bool IsSafeBySweep(const StreamProgram& program, const HappensBefore& happens_before);

}  // namespace tvm_interop::check

#endif  // PASSES_CHECK_SWEEP_H_
