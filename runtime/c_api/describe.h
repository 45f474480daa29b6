#ifndef RUNTIME_C_API_DESCRIBE_H_
#define RUNTIME_C_API_DESCRIBE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/plan.h"
#include "tvm_interop/runtime.h"

namespace tvm_interop {

// Describes the first `number` of `values`, which are inputs or outputs of a plan. The descriptions
// point into the plan.
std::vector<tvi_tensor_info> Describe(const Plan& plan, const std::vector<int64_t>& values,
                                      size_t number);

// Names each input and the shape that the caller gave for it. Each shape has the rank of the
// model's input.
std::string ShapesInWords(const std::vector<tvi_tensor_info>& inputs, const int64_t* const* shapes);

}  // namespace tvm_interop

#endif  // RUNTIME_C_API_DESCRIBE_H_
