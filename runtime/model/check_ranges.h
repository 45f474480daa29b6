#ifndef RUNTIME_MODEL_CHECK_RANGES_H_
#define RUNTIME_MODEL_CHECK_RANGES_H_

#include <map>
#include <string>
#include <vector>

#include "runtime/model/manifest.h"
#include "runtime/model/plan.h"

namespace tvm_interop {

// Does nothing if there are no ranges of rows. Otherwise checks that the plans of all shapes fit
// the ranges, and that the inputs `masks` can be masks. The plans must have the same inputs and
// outputs. Throws ArtifactError.
void CheckRanges(const std::vector<RowRange>& ranges,
                 const std::map<std::string, std::string>& masks,
                 const std::vector<const Plan*>& plans);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_CHECK_RANGES_H_
