// Checks the operators that kernel libraries run. A library learns from a description what to
// compute, and on which shapes, layouts and types. The fields of a description must fit together.
// This is not checked here, but later, when the library prepares the operator's kernel.

#include <string>
#include <vector>

#include "runtime/core/names.h"
#include "runtime/model/check_plan.h"
#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

std::vector<int64_t> GivenShape(const OpDescription& op, size_t argument) {
  std::vector<int64_t> shape = op.shapes[argument];
  if (op.is_cut(argument)) shape[op.cut[1]] = op.cut[3];
  return shape;
}

void CheckOperator(const Plan& plan, const PlannedOperator& op) {
  const std::string which = "operator `" + op.name + "`";
  const std::vector<int64_t> arguments = op.Arguments();
  if (!op.library.has_value()) {
    for (int64_t v : arguments) {
      const PlannedValue& value = plan.values[v];
      if (value.layout != Layout::kPlain && value.StoredShape() != value.shape) {
        throw ArtifactError(which + " is TVM's, but its `" + value.name + "` is " +
                            NameOf(value.layout));
      }
    }
    return;
  }
  const bool is_on_gpu = plan.Gpu().has_value();
  const bool is_known =
      is_on_gpu ? *op.library == "cudnn" || *op.library == "cublaslt" : *op.library == "onednn";
  if (!is_known) {
    throw ArtifactError(which + " needs kernel library `" + *op.library + "`; known are " +
                        (is_on_gpu ? "`cudnn`, `cublaslt`" : "`onednn`"));
  }
  if (op.description == nullptr) {
    throw ArtifactError(which + " is `" + *op.library + "`'s, but has no description");
  }
  const OpDescription& description = *op.description;
  if (description.shapes.size() != arguments.size()) {
    throw ArtifactError(which + " is described with " + std::to_string(description.shapes.size()) +
                        " tensors, and has " + std::to_string(arguments.size()));
  }
  if (op.described_types.size() != arguments.size()) {
    throw ArtifactError(which + " is described with types of " +
                        std::to_string(op.described_types.size()) + " tensors, and has " +
                        std::to_string(arguments.size()) + " tensors");
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const PlannedValue& value = plan.values[arguments[i]];
    if (BoundedElements(value.shape) != BoundedElements(GivenShape(description, i))) {
      throw ArtifactError(which + " is described with other shapes than its tensors have: see `" +
                          value.name + "`");
    }
    if (value.dtype != op.described_types[i]) {
      throw ArtifactError(which + " has a tensor that is not " + op.described_types[i] + ": `" +
                          value.name + "` is " + value.dtype);
    }
    if (value.layout != description.layouts[i]) {
      throw ArtifactError(which + " takes `" + value.name + "` in another layout than it has");
    }
  }
}

}  // namespace

void CheckLibraryOperators(const Plan& plan) {
  for (const PlannedOperator& op : plan.operators) CheckOperator(plan, op);
}

}  // namespace tvm_interop
