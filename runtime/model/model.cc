#include "runtime/model/model.h"

#include <cstdlib>
#include <set>

#include "runtime/model/cpu_features.h"
#include "runtime/model/error.h"

namespace tvm_interop {

std::string FindLibraryFile(const std::string& name) {
  struct Place {
    const char* override_variable;
    const char* file;
  };
  static const std::map<std::string, Place> places{
      {"onednn", {"TVM_INTEROP_ONEDNN_LIBRARY", "libdnnl.so.3"}},
      {"cudnn", {"TVM_INTEROP_CUDNN_LIBRARY", "libcudnn.so.9"}},
      {"cublaslt", {"TVM_INTEROP_CUBLASLT_LIBRARY", "libcublasLt.so.13"}}};
  const Place& place = places.at(name);
  const char* named = std::getenv(place.override_variable);
  return named != nullptr && *named != '\0' ? named : place.file;
}

Model::Model(const Source& source, const LoadOptions& options)
    : artifact_(ReadArtifact(source, options.sha256)),
      run_counts_(artifact_.shapes.size()),
      kernels_(artifact_.shapes.size()) {
  std::string missing;
  for (const ShapeModel& shape : artifact_.shapes) {
    for (const std::string& feature : MissingCpuFeatures(shape.cpu_features)) {
      missing += (missing.empty() ? "" : ", ") + feature;
    }
    // Check the CPU's instructions first. Without the check, the library would load, but its first
    // kernel would crash the process.
    if (missing.empty()) continue;
    throw ModelError(ErrorCode::kUnsupported,
                     "the kernels need CPU instructions that this machine lacks: " + missing +
                         "; compile the model on this machine, or name this machine's instructions "
                         "in the target's `mattr`");
  }
  FindLibraries(options);
}

void Model::FindLibraries(const LoadOptions& options) {
  std::set<std::string> needed;
  bool has_fallbacks = true;
  for (const ShapeModel& shape : artifact_.shapes) {
    for (const PlannedOperator& op : shape.plan.operators) {
      if (op.library.has_value()) needed.insert(*op.library);
    }
    if (shape.plan.UsesLibrary()) has_fallbacks = has_fallbacks && shape.fallback.has_value();
  }
  for (const std::string& name : needed) {
    try {
      LoadLibrary(name, options);
    } catch (const std::exception& error) {
      const std::string what = "the model was compiled for kernel library `" + name +
                               "`, which is missing here (" + error.what() + ")";
      if (!has_fallbacks || options.needs_library) {
        const std::string advice =
            name == "onednn" ? "put `libdnnl.so.3` beside this library, name it in "
                               "TVM_INTEROP_ONEDNN_LIBRARY"
                             : "install it, name its file in TVM_INTEROP_" +
                                   std::string(name == "cudnn" ? "CUDNN" : "CUBLASLT") + "_LIBRARY";
        throw ModelError(ErrorCode::kUnsupported,
                         what + "; " + advice + ", or compile the model again");
      }
      uses_fallback_ = true;
      warning_ = what + ": TVM's kernels run, one after the other, which is slower";
      return;
    }
  }
}

void Model::LoadLibrary(const std::string& name, const LoadOptions& options) {
  if (name == "onednn") {
    library_ = &LoadKernelLibrary(
        name, options.onednn_path.empty() ? FindLibraryFile(name) : options.onednn_path);
  } else {
    gpu_libraries_[name] = &LoadCudaKernelLibrary(name, FindLibraryFile(name));
  }
}

const Plan& Model::plan(size_t shape) const {
  const ShapeModel& model = artifact_.shapes[shape];
  return uses_fallback_ && model.fallback.has_value() ? *model.fallback : model.plan;
}

size_t Model::InputAlignment(size_t shape, size_t input) const {
  const Plan& running = plan(shape);
  const int64_t nbytes = artifact_.shapes[shape].unaligned_inputs
                             ? running.values[running.inputs[input]].type->nbytes()
                             : kTensorAlignment;
  return static_cast<size_t>(nbytes);
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
