#ifndef RUNTIME_MODEL_COUNTED_H_
#define RUNTIME_MODEL_COUNTED_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/model/manifest.h"
#include "runtime/model/plan.h"
#include "runtime/model/runnable.h"

namespace tvm_interop {

// Checks that the outputs in `manifest.counted` fit the plans of all shapes, which have the same
// outputs. Throws ArtifactError.
void CheckCounted(const Manifest& manifest, const std::vector<const Plan*>& plans);

// Returns how many of a plan's outputs are outputs of the model. The sizes of other outputs follow
// them.
size_t NumModelOutputs(const std::vector<CountedOutput>& counted, const Plan& plan);

// Returns the addresses of all outputs of the plan: first those of the model's outputs, which the
// caller gave, then null for the sizes. `outputs` may be null.
std::vector<void*> AddressesOfAll(const std::vector<CountedOutput>& counted, const Plan& plan,
                                  void* const* outputs);

// Runs the model once, and writes to `sizes` a number for each of the model's outputs: the size of
// the output along its counted axis, or -1 if it has none. Throws ModelError.
void RunCounted(Runnable* instance, const std::vector<CountedOutput>& counted,
                const void* const* inputs, void* const* outputs, int64_t* sizes);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_COUNTED_H_
