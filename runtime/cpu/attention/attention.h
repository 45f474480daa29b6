#ifndef RUNTIME_CPU_ATTENTION_ATTENTION_H_
#define RUNTIME_CPU_ATTENTION_ATTENTION_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/core/operators/attention.h"
#include "runtime/cpu/kernel_library.h"

namespace tvm_interop {
namespace attention {

// Returns why this CPU has no kernel for a well-formed operator, or an empty string if it has one.
// The text does not name the operator.
std::string WhyNot(const OpDescription& op);

// Makes a kernel that runs on up to `threads` threads. `WhyNot(op)` must be empty. See
// `KernelLibrary::Prepare`.
//
// The kernel computes a few rows of scores at a time, so the scores stay in a core's cache from the
// first matrix product to the second, as in Rabe and Staats, "Self-attention Does Not Need O(n^2)
// Memory" (2021), and in Dao et al., "FlashAttention" (NeurIPS 2022). Unlike in these papers, the
// rows of scores are complete here, so the softmax is computed as usual.
//
// The bits of a result depend neither on the number of threads nor on the division of rows.
std::unique_ptr<LibraryKernel> MakeAttention(const Attention& op, int threads,
                                             const std::vector<KernelArgument>& args);

}  // namespace attention
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_ATTENTION_ATTENTION_H_
