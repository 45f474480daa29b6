#ifndef RUNTIME_CPU_KERNEL_LIBRARY_H_
#define RUNTIME_CPU_KERNEL_LIBRARY_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/op_description.h"
#include "runtime/cpu/executor.h"

namespace tvm_interop {

// One tensor argument of a prepared kernel.
struct KernelArgument {
  // Points to the tensor's address, which may change between runs.
  void* const* data = nullptr;
  // Whether the tensor holds the same numbers in every run. The numbers may change only if `Repack`
  // is called before the next run.
  bool is_constant = false;
  // Whether the numbers stay the same while the kernel lives. If two such arguments have the same
  // address, they have the same numbers.
  bool is_read_only = false;
  // The position of the argument's first number, in bytes after the tensor's address.
  size_t offset = 0;
  // If the argument is cut out of a larger tensor, the number of bytes from its first number to its
  // last. Otherwise 0: the size then follows from the shape.
  size_t nbytes = 0;
};

// Returns the address of an argument's first number, as it is now.
inline char* BytesOf(const KernelArgument& argument) {
  return static_cast<char*>(*argument.data) + argument.offset;
}

// The same for an argument of float32.
inline float* FloatsOf(const KernelArgument& argument) {
  return reinterpret_cast<float*>(BytesOf(argument));
}

class LibraryKernel : public Kernel {
 public:
  // Packs the constant arguments into the form that the kernel needs. Must be called before the
  // first run and whenever a constant argument has changed, but never during a run.
  virtual void Repack() = 0;
  // The name of the library's implementation, for people to read.
  virtual std::string implementation() const = 0;
  // The number of tensors that the kernel copies into another layout in each run.
  virtual int num_reorders() const = 0;
};

// A library of kernels that are prepared once and then run on any stream.
//
// While a prepared kernel runs, no other kernel uses its workspace (see `ScratchLease`). So two
// kernels can run at once. The bits that a kernel computes depend only on its description and its
// arguments, never on the number of threads.
class KernelLibrary {
 public:
  virtual ~KernelLibrary() = default;
  virtual std::string name() const = 0;
  virtual std::string version() const = 0;
  // Returns why the library cannot compute `op`, or an empty string if it can.
  virtual std::string WhyUnsupported(const OpDescription& op) const = 0;
  // Returns the layout of blocked tensors for which the library has fast kernels on this CPU.
  virtual Layout BlockedLayout() const = 0;
  // Prepares a kernel that runs on up to `threads` threads. The arguments must outlive the kernel.
  // Throws std::runtime_error if `op` is not supported.
  virtual std::unique_ptr<LibraryKernel> Prepare(const OpDescription& op, int threads,
                                                 const std::vector<KernelArgument>& args) = 0;
};

// Returns the library `name`, and loads it from the file at `path` the first time. The library is
// never unloaded. Throws std::runtime_error with the reason if the library cannot be used.
KernelLibrary& LoadKernelLibrary(const std::string& name, const std::string& path);

// Returns the library `name`, or null if it has not been loaded.
KernelLibrary* FindKernelLibrary(const std::string& name);

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_KERNEL_LIBRARY_H_
