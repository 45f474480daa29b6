#ifndef RUNTIME_CORE_CHECK_PLAN_H_
#define RUNTIME_CORE_CHECK_PLAN_H_

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace tvm_interop {

// Checks the streams and the waits of a plan. `Op` is a `PlannedOp` or a `CudaPlannedOp`.
//
// Throws std::runtime_error with the operator's name if the operator's stream does not exist, or if
// the operator waits for an operator that is not earlier in `ops`. On a CPU such waits could form a
// cycle, and the run would hang. On a GPU such waits would have no effect, because a stream does
// not wait for an event that is not yet recorded.
template <typename Op>
void CheckPlan(const std::vector<Op>& ops, int num_streams) {
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].stream < 0 || ops[i].stream >= num_streams) {
      throw std::runtime_error("operator `" + ops[i].name + "` is planned on stream " +
                               std::to_string(ops[i].stream) + ", but there are " +
                               std::to_string(num_streams));
    }
    for (int wait : ops[i].waits) {
      if (wait < 0 || static_cast<size_t>(wait) >= i) {
        throw std::runtime_error("operator `" + ops[i].name + "` waits for operator " +
                                 std::to_string(wait) + ", which is not planned before it");
      }
    }
  }
}

}  // namespace tvm_interop

#endif  // RUNTIME_CORE_CHECK_PLAN_H_
