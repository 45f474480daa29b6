#ifndef RUNTIME_MODEL_CHECK_SCHEDULE_H_
#define RUNTIME_MODEL_CHECK_SCHEDULE_H_

#include <string>

#include "runtime/model/plan.h"

namespace tvm_interop {

// Checks that the JSON text of a schedule is well formed, and that schedule and plan have the same
// operators. A plan runs without its schedule, which only says where the plan came from. Throws
// ArtifactError.
void CheckSchedule(const std::string& name, const std::string& text, const Plan& plan);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_CHECK_SCHEDULE_H_
