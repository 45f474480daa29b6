#ifndef RUNTIME_MODEL_MODEL_H_
#define RUNTIME_MODEL_MODEL_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cpu/kernel_library.h"
#include "runtime/cuda/kernel_library.h"
#include "runtime/model/artifact.h"
#include "runtime/model/run_counts.h"
#include "runtime/model/tvm_kernels.h"

namespace tvm_interop {

// How a model is loaded.
struct LoadOptions {
  std::string sha256;       // the digest that the artifact must have; "" for any
  std::string onednn_path;  // the file of oneDNN; if "", see `FindLibraryFile`
  // Whether a model that needs a missing kernel library is refused. Otherwise it runs with TVM's
  // kernels alone, which is slower, and `Model::warning` says so.
  bool needs_library = false;
};

// A compiled model that was loaded. Any number of instances may run it, in any number of threads.
class Model {
 public:
  // Reads an artifact and finds the kernel library that it needs. Runs none of the artifact's
  // machine code. Throws ModelError.
  Model(const Source& source, const LoadOptions& options);

  const Artifact& artifact() const { return artifact_; }
  size_t num_shapes() const { return artifact_.shapes.size(); }
  // Returns the plan that runs for the shape `shape`.
  const Plan& plan(size_t shape) const;
  const std::map<int64_t, const char*>& weights(size_t shape) const {
    return artifact_.shapes[shape].weights;
  }
  // An input of a model for a CPU can be read in place at a multiple of this number of bytes.
  size_t InputAlignment(size_t shape, size_t input) const;
  // The size of all weights, which the shapes share.
  size_t WeightsNbytes() const;
  // The size of an instance's tensors, without the weights.
  size_t InstanceNbytes(size_t shape) const;
  // Returns the kernels of a shape, and loads them the first time. Throws ModelError.
  std::shared_ptr<const TvmKernels> Kernels(size_t shape);
  // Returns the counts of the runs at a shape.
  RunCounts& run_counts(size_t shape) { return run_counts_[shape]; }
  // The kernel library that plans for a CPU need; null if they need none.
  KernelLibrary* library() const { return library_; }
  // A kernel library that plans for a GPU may need, such as cuDNN.
  CudaKernelLibrary* gpu_library(const std::string& name) const { return gpu_libraries_.at(name); }
  // Whether the kernel library is missing. If so, the fallback plans run, which need no library.
  bool uses_fallback() const { return uses_fallback_; }
  // A warning for the user, for example that a library is missing. "" if there is none.
  const std::string& warning() const { return warning_; }

 private:
  void FindLibraries(const LoadOptions& options);
  void LoadLibrary(const std::string& name, const LoadOptions& options);

  Artifact artifact_;
  KernelLibrary* library_ = nullptr;
  std::map<std::string, CudaKernelLibrary*> gpu_libraries_;
  bool uses_fallback_ = false;
  std::string warning_;
  std::vector<RunCounts> run_counts_;  // by shape
  std::mutex loading_;                 // Guards `kernels_`.
  std::vector<std::shared_ptr<const TvmKernels>> kernels_;
};

// Returns the file of a kernel library. An environment variable, such as
// TVM_INTEROP_ONEDNN_LIBRARY, may name the file. If the variable is not set, the result is a bare
// name. The system's loader looks for a bare name beside this library, where oneDNN's wheel puts
// the file, and in the system's folders.
std::string FindLibraryFile(const std::string& name);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_MODEL_H_
