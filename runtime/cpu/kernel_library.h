#ifndef RUNTIME_CPU_KERNEL_LIBRARY_H_
#define RUNTIME_CPU_KERNEL_LIBRARY_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/cpu/executor.h"

namespace tvm_interop {

// One argument of a prepared kernel.
struct KernelArgument {
  // Where the tensor's address is kept: it may be another one in the next run.
  void* const* data = nullptr;
  // Whether the tensor holds the same numbers in every run, but for a `Repack` between two.
  bool is_constant = false;
  // Bytes from that address on at which the argument begins.
  size_t offset = 0;
  // Bytes from its first number to its last, where it is cut out of a larger tensor; 0 where its
  // shape says it.
  size_t nbytes = 0;
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

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_KERNEL_LIBRARY_H_
