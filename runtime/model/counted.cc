#include "runtime/model/counted.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "runtime/model/error.h"

namespace tvm_interop {
namespace {

void CheckOne(const CountedOutput& counted, size_t num_outputs, const Plan& plan) {
  const auto refuse = [&](const std::string& what) {
    throw ArtifactError("the output " + std::to_string(counted.output) +
                        ", whose size depends on computed values, " + what);
  };
  if (static_cast<size_t>(counted.output) >= num_outputs) {
    refuse("is not among the model's " + std::to_string(num_outputs));
  }
  const PlannedValue& value = plan.values[plan.outputs[counted.output]];
  if (static_cast<size_t>(counted.axis) >= value.shape.size()) {
    refuse("has no axis " + std::to_string(counted.axis));
  }
  const PlannedValue& size = plan.values[plan.outputs[counted.count]];
  if (size.dtype != "int64" || size.shape != std::vector<int64_t>{1}) {
    refuse("has a size that is not one int64: `" + size.name + "`");
  }
}

}  // namespace

void CheckCounted(const Manifest& manifest, const std::vector<const Plan*>& plans) {
  const std::vector<CountedOutput>& counted = manifest.counted;
  if (counted.empty()) return;
  if (!manifest.ranges.empty() || !manifest.batch_sizes.empty()) {
    throw ArtifactError(
        "the model has output sizes that depend on computed values, and also ranges or batch "
        "sizes");
  }
  std::set<int64_t> outputs, sizes;
  for (const CountedOutput& each : counted) {
    sizes.insert(each.count);
    if (!outputs.insert(each.output).second) {
      throw ArtifactError("two sizes of output " + std::to_string(each.output) +
                          " depend on computed values; at most one may");
    }
  }
  for (const Plan* plan : plans) {
    const auto all = static_cast<int64_t>(plan->outputs.size());
    const auto first = all - static_cast<int64_t>(sizes.size());
    if (first < 1 || *sizes.begin() != first || *sizes.rbegin() != all - 1) {
      throw ArtifactError("the sizes that depend on computed values are not the last outputs");
    }
    for (const CountedOutput& each : counted) CheckOne(each, static_cast<size_t>(first), *plan);
  }
}

size_t NumModelOutputs(const std::vector<CountedOutput>& counted, const Plan& plan) {
  size_t number = plan.outputs.size();
  for (const CountedOutput& each : counted) {
    number = std::min(number, static_cast<size_t>(each.count));
  }
  return number;
}

std::vector<void*> AddressesOfAll(const std::vector<CountedOutput>& counted, const Plan& plan,
                                  void* const* outputs) {
  std::vector<void*> all(plan.outputs.size(), nullptr);
  if (outputs != nullptr) {
    std::copy(outputs, outputs + NumModelOutputs(counted, plan), all.begin());
  }
  return all;
}

void RunCounted(Runnable* instance, const std::vector<CountedOutput>& counted,
                const void* const* inputs, void* const* outputs, int64_t* sizes) {
  const Plan& plan = instance->plan();
  instance->Run(inputs, AddressesOfAll(counted, plan, outputs).data());
  std::vector<int64_t> found(NumModelOutputs(counted, plan), -1);
  for (const CountedOutput& each : counted) {
    int64_t& size = found[each.output];
    std::memcpy(&size, instance->OutputBuffer(static_cast<size_t>(each.count)), sizeof(size));
    const PlannedValue& value = plan.values[plan.outputs[each.output]];
    if (size < 0 || size > value.shape[each.axis]) {
      throw ModelError(ErrorCode::kExecution, "output `" + value.name + "` got the size " +
                                                  std::to_string(size) + "; it must be 0 to " +
                                                  std::to_string(value.shape[each.axis]));
    }
  }
  std::copy(found.begin(), found.end(), sizes);
}

}  // namespace tvm_interop
