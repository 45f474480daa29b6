#ifndef PASSES_CHECK_SWEEP_H_
#define PASSES_CHECK_SWEEP_H_

#include "passes/check/happens_before.h"
#include "passes/check/stream_program.h"

namespace tvm_interop::check {

// Tries to show that the program is safe, without comparing every two operators.
//
// The sweep walks through the operators in a topological order. For each range of bytes, it keeps
// the last writer and the operators that have read the range after this write. The next writer of
// the range must come after all of these operators. They in turn come after every operator that
// touched the range before. So the next writer comes after all earlier operators.
//
// If the result is true, the program is safe. If the result is false, the program may be safe or
// unsafe. A safe program gives false in two cases. First, several operators write a range in
// shares, and an operator reads the range before all shares are written. Second, the walk takes too
// many steps, for example if there are thousands of reads and each read lies within the range of
// the next read.
bool IsSafeBySweep(const StreamProgram& program, const HappensBefore& happens_before);

}  // namespace tvm_interop::check

#endif  // PASSES_CHECK_SWEEP_H_
