#ifndef RUNTIME_KERNEL_LIBRARY_H_
#define RUNTIME_KERNEL_LIBRARY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cpu_executor.h"

namespace tvm_interop {

// Where a tensor's elements lie. A blocked tensor keeps 16 channels of a pixel side by side; the
// last block is filled up with zeros.
enum class Layout { kPlain, kBlocked16 };

enum class Activation { kNone, kRelu, kClip };

// What an operator computes, in terms that any library understands. All tensors are float32.
//
//   conv2d      data (N,C,H,W), weight (O,C/groups,KH,KW) [, bias O] [, sum, as the output]
//   matmul      left (...,M,K), right (...,K,N) [, bias N] [, sum, as the output]
//   max_pool2d  data (N,C,H,W)
//   avg_pool2d  data (N,C,H,W)
//   lrn         data (N,C,H,W): local response normalisation across channels
//   reorder     data, from one layout to another
struct OpDescription {
  std::string op;
  // Of each argument in order, the output last. Shapes are those of plain tensors, always.
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Layout> layouts;
  // By height and width. Padding is top, left, bottom, right; a dilation of 1 is none.
  std::vector<int64_t> window;
  std::vector<int64_t> strides;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  int64_t groups = 1;
  bool has_bias = false;
  bool has_sum = false;  // Added before the activation.
  Activation activation = Activation::kNone;
  float clip_low = 0;
  float clip_high = 0;
  bool counts_padding = false;  // Average pooling: whether padding counts as zeros.
  // Local response normalisation: by (bias + alpha / size * sum of squares) to the power of beta.
  int64_t lrn_size = 0;
  float lrn_alpha = 0;
  float lrn_beta = 0;
  float lrn_bias = 0;
};

// One argument of a prepared kernel.
struct KernelArgument {
  // Where the tensor's address is kept: it may be another one in the next run.
  void* const* data = nullptr;
  // Whether the tensor holds the same numbers in every run, but for a `Repack` between two.
  bool is_constant = false;
};

class LibraryKernel : public Kernel {
 public:
  // Makes whatever the kernel makes of constant arguments. Before the first run, and whenever they
  // have changed; never during a run.
  virtual void Repack() = 0;
  // What the library chose to run, for people.
  virtual std::string implementation() const = 0;
  // How many tensors it brings into another layout in each run.
  virtual int num_reorders() const = 0;
};

// A library of kernels that are prepared once and then run on any stream.
//
// A prepared kernel owns its workspace, so two of them run at once without sharing anything. The
// bits it computes depend on its description and arguments alone, never on its team.
class KernelLibrary {
 public:
  virtual ~KernelLibrary() = default;
  virtual std::string name() const = 0;
  virtual std::string version() const = 0;
  // Why the library cannot compute this; empty where it can.
  virtual std::string WhyUnsupported(const OpDescription& op) const = 0;
  // A kernel that runs on up to `threads` threads. Throws std::runtime_error where `op` is not
  // supported. The arguments outlive the kernel.
  virtual std::unique_ptr<LibraryKernel> Prepare(const OpDescription& op, int threads,
                                                 const std::vector<KernelArgument>& args) = 0;
};

// The library `name` from the file at `path`, loaded once in a process, for good. Throws
// std::runtime_error that says why where it cannot be used.
KernelLibrary& LoadKernelLibrary(const std::string& name, const std::string& path);

// A library that was loaded; null where it was not.
KernelLibrary* FindKernelLibrary(const std::string& name);

// What is wrong with a description, whatever the library: a shape that does not follow from the
// others, say. Empty where nothing is.
std::string WhyMalformed(const OpDescription& op);

}  // namespace tvm_interop

#endif  // RUNTIME_KERNEL_LIBRARY_H_
