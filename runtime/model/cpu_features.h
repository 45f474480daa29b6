#ifndef RUNTIME_MODEL_CPU_FEATURES_H_
#define RUNTIME_MODEL_CPU_FEATURES_H_

#include <string>
#include <vector>

namespace tvm_interop {

// Returns the instructions in `features` that this machine's CPU or operating system lacks, by
// LLVM's names. A name that this function does not know counts as missing. On processors other than
// x86-64 the result is empty, because kernels for them use only what every such processor has.
std::vector<std::string> MissingCpuFeatures(const std::vector<std::string>& features);

// Returns all instructions that `MissingCpuFeatures` knows and this machine has, sorted.
std::vector<std::string> CpuFeatures();

}  // namespace tvm_interop

#endif  // RUNTIME_MODEL_CPU_FEATURES_H_
