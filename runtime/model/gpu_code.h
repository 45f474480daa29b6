#ifndef RUNTIME_MODEL_GPU_CODE_H_
#define RUNTIME_MODEL_GPU_CODE_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tvm_interop {

// How a kernel for GPUs is called. The host's code first gives the values of the kernel's
// parameters, each in eight bytes, and then the numbers of the launch, such as the number of
// blocks.
struct GpuKernel {
  // For a parameter: whether the kernel reads all eight bytes, or only a number of 32 bits.
  enum class Parameter { kWhole, kInt32, kFloat32 };
  // A number of the launch: blocks along x, y and z, threads along x, y and z.
  static constexpr int kNumDimensions = 6;

  std::vector<Parameter> parameters;
  std::vector<int> dimensions;    // what each number of the launch means, from 0 to 5
  bool has_shared_bytes = false;  // whether the size of the dynamic shared memory comes last
};

// Machine code for GPUs that TVM put into a library, and the kernels in it.
struct GpuCode {
  std::string code;
  std::map<std::string, GpuKernel> kernels;
};

// Reads the modules that TVM 0.27 saved for a library's host code. They take the `nbytes` bytes at
// `data`. Modules that are not for CUDA are refused. Throws std::runtime_error, which says why.
std::vector<GpuCode> ReadGpuCode(const char* data, size_t nbytes);

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_GPU_CODE_H_
