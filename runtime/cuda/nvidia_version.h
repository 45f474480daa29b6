#ifndef RUNTIME_CUDA_NVIDIA_VERSION_H_
#define RUNTIME_CUDA_NVIDIA_VERSION_H_

#include <cstddef>
#include <string>

namespace tvm_interop {

// cuDNN and cuBLASLt give a version as one number: major * 10000 + minor * 100 + patch.

// Throws std::runtime_error unless the library `name` at `path` has the major version `major`.
void CheckMajorVersion(const std::string& path, const std::string& name, size_t version,
                       size_t major);

// Writes a version with dots, such as 9.12.0.
std::string VersionText(size_t version);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_NVIDIA_VERSION_H_
