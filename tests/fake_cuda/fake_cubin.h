// Reads a fatbin, which nvcc makes. A fatbin holds a cubin for each architecture.
#ifndef TESTS_FAKE_CUDA_FAKE_CUBIN_H_
#define TESTS_FAKE_CUDA_FAKE_CUBIN_H_

#include <cstdint>
#include <map>
#include <string>

namespace fake_cuda {

// The facts about a kernel that a GPU needs to launch it.
struct KernelLimits {
  int64_t shared_bytes = 0;  // The shared memory that the kernel declares.
  int64_t most_threads = 0;  // The launch bound on the threads of a block, or 0.
  int64_t registers = 0;     // The registers of a thread.
};
using Kernels = std::map<std::string, KernelLimits>;

// Reads the kernels of the cubin that a GPU of architecture `arch`, such as 90, can run. Returns
// `kInvalidImage` if the data are not a fatbin, or are a compressed fatbin, and `kNoImageForDevice`
// if the fatbin has no such cubin.
int ReadFatbin(const void* data, int arch, Kernels* kernels);

}  // namespace fake_cuda

#endif  // TESTS_FAKE_CUDA_FAKE_CUBIN_H_
