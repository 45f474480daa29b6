#ifndef RUNTIME_CPU_WINOGRAD_CONV_H_
#define RUNTIME_CPU_WINOGRAD_CONV_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/core/operators/winograd_conv2d.h"
#include "runtime/cpu/kernel_library.h"

namespace tvm_interop {
namespace winograd {

// Returns why this CPU has no kernel for a well-formed operator, or an empty string if it has one.
// The text does not name the operator.
std::string WhyNot(const OpDescription& op);

// Makes a kernel that runs on up to `threads` threads. `WhyNot(op)` must be empty. See
// `KernelLibrary::Prepare`.
//
// Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016), section 4.1: a
// tile of 4x4 results takes 36 products for each channel instead of 144. The points of evaluation
// are in `kernels.h`. With these points, the error of float32 is a few times the error of direct
// sums (docs/numbers.rst).
//
// Images may be stored as bfloat16.
//
// The bits of a result depend neither on the number of threads nor on the layouts.
std::unique_ptr<LibraryKernel> MakeConv(const WinogradConv2d& op, int threads,
                                        const std::vector<KernelArgument>& args);

}  // namespace winograd
}  // namespace tvm_interop

#endif  // RUNTIME_CPU_WINOGRAD_CONV_H_
