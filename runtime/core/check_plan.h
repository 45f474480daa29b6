#ifndef RUNTIME_CORE_CHECK_PLAN_H_
#define RUNTIME_CORE_CHECK_PLAN_H_

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace tvm_interop {

// Throws std::runtime_error, naming the operator, for a stream that is not there and for a wait for
// an operator that is not earlier in `ops`. On a CPU such waits could close a circle, and the run
// would hang; on a GPU an event that is waited for before it is recorded holds nothing back.
// `Op` is a `PlannedOp` or a `CudaPlannedOp`.
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
