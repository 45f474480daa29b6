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

// Returns how many of a plan's outputs are outputs of the model. After these outputs, the plan
// lists the sizes of outputs, which are outputs of the plan only.
size_t NumModelOutputs(const std::vector<CountedOutput>& counted, const Plan& plan);

// Returns an address for each output of the plan: first the addresses that the caller gave for the
// model's outputs, then null for each output that holds a size. `outputs` may be null.
std::vector<void*> AddressesOfAll(const std::vector<CountedOutput>& counted, const Plan& plan,
                                  void* const* outputs);

// Runs the model once, and writes a number for each of the model's outputs to `sizes`. The number
// is the size of the output along its counted axis, or -1 if it has no such axis. Throws
// ModelError.
void RunCounted(Runnable* instance, const std::vector<CountedOutput>& counted,
                const void* const* inputs, void* const* outputs, int64_t* sizes);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_COUNTED_H_
