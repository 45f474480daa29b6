#ifndef RUNTIME_MODEL_CHECK_PLAN_H_
#define RUNTIME_MODEL_CHECK_PLAN_H_

#include <cstdint>

#include "runtime/model/plan.h"

namespace tvm_interop {

// Proves that a plan is safe to run on a CPU or a GPU, because its file may come from an untrusted
// source. It makes the same checks as Python's `plan.check.check_plan`:
//
// - each number is within bounds, and each index points at an existing entry;
// - the bytes of each tensor lie within its storage, and each byte that is read was written;
// - waits and streams order all operators that use the same bytes (see `passes/check`).
//
// Throws ArtifactError, which names the operator or the value at fault. Throws ModelError with
// `kUnsupported` if the plan is for several GPUs.
void CheckPlan(const Plan& plan);

// Where a value's bytes are: in the storage of the value `root`, from `begin` to `end`.
struct Span {
  int64_t root;
  int64_t begin;
  int64_t end;
};
Span SpanOf(const Plan& plan, int64_t value);

// The two parts of `CheckPlan`. Call `CheckBounds` first: it makes sure that indices and numbers
// are valid, which `CheckOrder` relies on.
void CheckBounds(const Plan& plan);
void CheckOrder(const Plan& plan);
// Checks the operators of kernel libraries. A part of `CheckBounds`.
void CheckLibraryOperators(const Plan& plan);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_CHECK_PLAN_H_
