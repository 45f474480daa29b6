#include "runtime/model/model.h"

#include <cstdlib>

#include "runtime/model/cpu_features.h"
#include "runtime/model/error.h"

namespace tvm_interop {

std::string FindOneDnn() {
  const char* named = std::getenv("TVM_INTEROP_ONEDNN_LIBRARY");
  if (named != nullptr && *named != '\0') return named;
  return "libdnnl.so.3";
}

Model::Model(const Source& source, const LoadOptions& options)
    : artifact_(ReadArtifact(source, options.sha256)), kernels_(artifact_.shapes.size()) {
  std::string missing;
  for (const ShapeModel& shape : artifact_.shapes) {
    for (const std::string& feature : MissingCpuFeatures(shape.cpu_features)) {
      missing += (missing.empty() ? "" : ", ") + feature;
    }
    // Without this error the library would load, but its first kernel would crash the process.
    if (missing.empty()) continue;
    throw ModelError(ErrorCode::kUnsupported,
                     "the kernels need CPU instructions that this machine lacks: " + missing +
                         "; compile the model on this machine, or name this machine's instructions "
                         "in the target's `mattr`");
  }
  bool needs_library = false, has_fallbacks = true;
  for (const ShapeModel& shape : artifact_.shapes) {
    if (!shape.plan.UsesLibrary()) continue;
    needs_library = true;
    has_fallbacks = has_fallbacks && shape.fallback.has_value();
  }
  if (!needs_library) return;
  const std::string path = options.onednn_path.empty() ? FindOneDnn() : options.onednn_path;
  try {
    library_ = &LoadKernelLibrary("onednn", path);
  } catch (const std::exception& error) {
    const std::string what =
        "the model was compiled for kernel library `onednn`, which is missing "
        "here (" +
        std::string(error.what()) + ")";
    if (!has_fallbacks || options.needs_library) {
      throw ModelError(ErrorCode::kUnsupported,
                       what +
                           "; put `libdnnl.so.3` beside this library, name it in "
                           "TVM_INTEROP_ONEDNN_LIBRARY, or compile the model again");
    }
    uses_fallback_ = true;
    warning_ = what + ": TVM's kernels run, one after the other, which is slower";
  }
}

const Plan& Model::plan(size_t shape) const {
  const ShapeModel& model = artifact_.shapes[shape];
  return uses_fallback_ && model.fallback.has_value() ? *model.fallback : model.plan;
}

size_t Model::WeightsNbytes() const {
  std::map<const char*, int64_t> nbytes;  // by address, because the shapes share weights
  for (size_t shape = 0; shape < num_shapes(); ++shape) {
    for (const auto& [value, address] : weights(shape)) {
      nbytes[address] = plan(shape).values[value].Nbytes();
    }
  }
  int64_t sum = 0;
  for (const auto& weight : nbytes) sum += weight.second;
  return static_cast<size_t>(sum);
}

size_t Model::InstanceNbytes(size_t shape) const {
  int64_t sum = plan(shape).arena_bytes;
  for (const PlannedValue& value : plan(shape).values) {
    const bool is_port = value.storage == Storage::kInput || value.storage == Storage::kOutput;
    if (is_port) sum += value.Nbytes();
  }
  return static_cast<size_t>(sum);
}

std::shared_ptr<const TvmKernels> Model::Kernels(size_t shape) {
  const std::lock_guard<std::mutex> lock(loading_);
  if (kernels_[shape] == nullptr) {
    kernels_[shape] = std::make_shared<TvmKernels>(artifact_.shapes[shape].kernels);
  }
  return kernels_[shape];
}

}  // namespace tvm_interop
