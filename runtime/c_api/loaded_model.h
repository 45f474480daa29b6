#ifndef RUNTIME_C_API_LOADED_MODEL_H_
#define RUNTIME_C_API_LOADED_MODEL_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/c_api/describe.h"
#include "runtime/model/counted.h"
#include "runtime/model/model.h"
#include "tvm_interop/runtime.h"

struct tvi_model {
  explicit tvi_model(std::shared_ptr<tvm_interop::Model> loaded) : model(std::move(loaded)) {
    for (size_t shape = 0; shape < model->num_shapes(); ++shape) {
      const tvm_interop::Plan& plan = model->plan(shape);
      const size_t num_outputs = tvm_interop::NumModelOutputs(counted(), plan);
      inputs.push_back(tvm_interop::Describe(plan, plan.inputs, plan.inputs.size()));
      outputs.push_back(tvm_interop::Describe(plan, plan.outputs, num_outputs));
    }
  }

  // The outputs whose sizes depend on values that the model computes.
  const std::vector<tvm_interop::CountedOutput>& counted() const {
    return model->artifact().manifest.counted;
  }

  std::shared_ptr<tvm_interop::Model> model;
  std::vector<std::vector<tvi_tensor_info>> inputs, outputs;  // by shape
};

#endif  // RUNTIME_C_API_LOADED_MODEL_H_
