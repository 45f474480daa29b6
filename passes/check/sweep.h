#ifndef PASSES_CHECK_SWEEP_H_
#define PASSES_CHECK_SWEEP_H_

#include "passes/check/happens_before.h"
#include "passes/check/stream_program.h"

namespace tvm_interop::check {

// Whether the program is safe, without comparing each two operators: a walk through them in one of
// their orders, in which each range of bytes knows who wrote it last and who has read it since. If
// all those come before who writes next, so does whoever touched it earlier.
//
// True only where it is safe. False may be said of a safe program too: one that reads what only
// some of its shares have written, and one made to take long, such as of thousands of reads each
// within the next.
bool IsSafeBySweep(const StreamProgram& program, const HappensBefore& happens_before);

}  // namespace tvm_interop::check

#endif  // PASSES_CHECK_SWEEP_H_
