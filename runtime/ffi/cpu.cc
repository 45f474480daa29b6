// Bindings that let Python prepare, run and measure kernels and plans on the CPU. Kernels are
// tvm-ffi's packed functions, and their arguments are tensors. Only the bindings depend on tvm-ffi.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/c_api/timed_of.h"
#include "runtime/core/measure.h"
#include "runtime/core/names.h"
#include "runtime/cpu/executor.h"
#include "runtime/cpu/kernel_library.h"
#include "runtime/cpu/kernel_share.h"
#include "runtime/cpu/thread_pool.h"
#include "runtime/cpu/topology.h"
#include "runtime/ffi/alignment.h"
#include "runtime/ffi/bound_operator.h"
#include "runtime/ffi/guarded.h"
#include "runtime/ffi/op_description.h"
#include "runtime/model/elf_imports.h"
#include "runtime/model/tvm_imports.h"

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;
namespace refl = tvm::ffi::reflection;

// A packed function and its arguments. The arguments are addresses of tensor headers that the
// executor owns. So if an input moves to another address, only its header changes, and the calls
// stay as they are.
class PackedKernel : public Kernel {
 public:
  PackedKernel(ffi::Function function, std::vector<DLTensor*> args)
      : function_(std::move(function)) {
    args_.reserve(args.size());
    for (DLTensor* arg : args) args_.emplace_back(arg);
  }

  void Run() override {
    ffi::Any result;
    function_.CallPacked(args_.data(), static_cast<int32_t>(args_.size()), &result);
  }

 private:
  ffi::Function function_;
  std::vector<ffi::AnyView> args_;
};

void CheckTensorAlignment(const ffi::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  if (address % kTensorAlignment != 0) {
    TVM_FFI_THROW(InputError) << "a tensor at address " << tensor.data_ptr()
                              << " is not aligned to " << kTensorAlignment
                              << " bytes; allocate it with tvm.runtime.empty, or use set_input, "
                                 "which copies";
  }
}

KernelLibrary& LoadedLibrary(const std::string& name) {
  KernelLibrary* library = FindKernelLibrary(name);
  if (library == nullptr) throw std::runtime_error("kernel library `" + name + "` is not loaded");
  return *library;
}

// A library's kernel and the tensors that the kernel works on.
class LibraryKernelObj : public ffi::Object {
 public:
  LibraryKernelObj(KernelLibrary* library, const OpDescription& op, int threads,
                   const ffi::Array<ffi::Tensor>& tensors, const ffi::Array<bool>& constants) {
    for (const ffi::Tensor& tensor : tensors) {
      CheckTensorAlignment(tensor);
      tensors_.push_back(tensor);
      addresses_.push_back(tensor.data_ptr());
    }
    for (size_t i = 0; i < constants.size(); ++i) {
      arguments_.push_back({&addresses_.at(i), constants[i]});
    }
    kernel_ = library->Prepare(op, threads, arguments_);
    kernel_->Repack();
  }

  Kernel* kernel() { return kernel_.get(); }
  std::string implementation() const { return kernel_->implementation(); }
  int num_reorders() const { return kernel_->num_reorders(); }

  void Bind(size_t argument, const ffi::Tensor& tensor) {
    // Packed constants are recognised by the address of the tensor that was packed. So keep the old
    // tensor until the constants are packed again. Otherwise a new tensor could get the old
    // address, and be mistaken for the old tensor.
    const ffi::Tensor before = tensors_.at(argument);
    tensors_.at(argument) = tensor;
    addresses_.at(argument) = tensor.data_ptr();
    if (arguments_.at(argument).is_constant) kernel_->Repack();
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.LibraryKernel", LibraryKernelObj, ffi::Object);

 private:
  std::vector<ffi::Tensor> tensors_;  // Keeps the memory of the tensors alive.
  std::vector<void*> addresses_;      // Never resized: the kernel points to its elements.
  std::vector<KernelArgument> arguments_;
  std::unique_ptr<LibraryKernel> kernel_;
};

class LibraryKernelRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(LibraryKernelRef, ffi::ObjectRef, LibraryKernelObj);
};

LibraryKernelRef PrepareLibraryKernel(const std::string& library, const Description& description,
                                      int64_t threads, const ffi::Array<ffi::Tensor>& tensors,
                                      const ffi::Array<bool>& constants) {
  return Guarded([&] {
    return LibraryKernelRef(
        ffi::make_object<LibraryKernelObj>(&LoadedLibrary(library), *ToOpDescription(description),
                                           static_cast<int>(threads), tensors, constants));
  });
}

class ExecutorObj : public ffi::Object {
 public:
  // Makes an executor. The kernel of an operator is a packed function, or a library's kernel whose
  // tensors are bound already. An operator may run one share of a kernel.
  ExecutorObj(int num_streams, int threads, const ffi::Array<ffi::Tensor>& values,
              const ffi::Array<OperatorTuple>& operators) {
    headers_.reserve(values.size());
    for (const ffi::Tensor& value : values) {
      CheckTensorAlignment(value);
      tensors_.push_back(value);
      headers_.push_back(*value.GetDLTensorPtr());
    }
    std::vector<PlannedOp> ops;
    for (const OperatorTuple& given : operators) {
      BoundOperator op(given);
      Kernel* kernel = BindKernel(op);
      ops.push_back({std::move(op.name), kernel, op.stream, std::move(op.waits)});
    }
    own_ = std::make_unique<CpuExecutor>(num_streams, threads, ops);
    timed = own_.get();
  }

  // Times an instance of the C interface, which must outlive this object.
  explicit ExecutorObj(Timed* instance) : timed(instance) {}

  CpuExecutor& executor() const {
    if (own_ == nullptr) throw std::runtime_error("an instance's executor can only be timed");
    return *own_;
  }

  void Bind(int64_t value, const ffi::Tensor& tensor) {
    CheckTensorAlignment(tensor);
    // Copy the whole header, because its shape and strides must point into the new tensor. This
    // releases the old tensor.
    headers_.at(value) = *tensor.GetDLTensorPtr();
    tensors_.at(value) = tensor;
    for (auto& [kernel, args] : library_kernels_) {
      for (size_t i = 0; i < args.size(); ++i) {
        if (args[i] == value) const_cast<LibraryKernelObj*>(kernel.get())->Bind(i, tensor);
      }
    }
  }

  Timed* timed = nullptr;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.Executor", ExecutorObj, ffi::Object);

 private:
  // Returns the kernel that runs the operator. This object keeps the kernel.
  Kernel* BindKernel(const BoundOperator& op) {
    if (auto prepared = op.kernel.as<LibraryKernelRef>()) {
      library_kernels_.push_back({*prepared, op.args});
      Kernel* const whole = const_cast<LibraryKernelObj*>(prepared->get())->kernel();
      if (!op.share.has_value()) return whole;
      // The pointer does not own the kernel, which `library_kernels_` keeps.
      return Keep(ShareOf(op, std::shared_ptr<Kernel>(std::shared_ptr<Kernel>(), whole)));
    }
    std::vector<DLTensor*> bound;
    for (int64_t value : op.args) bound.push_back(&headers_.at(value));
    auto kernel = std::make_unique<PackedKernel>(op.kernel.cast<ffi::Function>(), std::move(bound));
    if (!op.share.has_value()) return Keep(std::move(kernel));
    return Keep(ShareOf(op, std::move(kernel)));
  }

  static std::unique_ptr<Kernel> ShareOf(const BoundOperator& op, std::shared_ptr<Kernel> kernel) {
    const auto share = op.share.value();
    return std::make_unique<SharedKernel>(std::move(kernel), static_cast<int>(share.get<0>()),
                                          static_cast<int>(share.get<1>()));
  }

  Kernel* Keep(std::unique_ptr<Kernel> kernel) {
    kernels_.push_back(std::move(kernel));
    return kernels_.back().get();
  }

  std::unique_ptr<CpuExecutor> own_;
  std::vector<ffi::Tensor> tensors_;  // Keeps the memory of the tensors alive.
  std::vector<DLTensor> headers_;     // Never resized: the kernels point to its elements.
  std::vector<std::unique_ptr<Kernel>> kernels_;
  // The libraries' kernels, each with the indices of its arguments.
  std::vector<std::pair<LibraryKernelRef, std::vector<int64_t>>> library_kernels_;
};

class ExecutorRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(ExecutorRef, ffi::ObjectRef, ExecutorObj);
};

ExecutorRef MakeExecutor(int64_t num_streams, int64_t threads,
                         const ffi::Array<ffi::Tensor>& values,
                         const ffi::Array<OperatorTuple>& operators) {
  return Guarded([&] {
    return ExecutorRef(ffi::make_object<ExecutorObj>(static_cast<int>(num_streams),
                                                     static_cast<int>(threads), values, operators));
  });
}

// Runs the plan once and returns a flat list with six numbers for each operator: the operator, the
// stream, start, end, the thread, and the time on a core. All times are in nanoseconds.
ffi::Array<int64_t> Profile(const ExecutorRef& executor) {
  return Guarded([&] {
    ffi::Array<int64_t> flat;
    for (const OpTiming& timing : executor->executor().Profile()) {
      flat.push_back(timing.op);
      flat.push_back(timing.stream);
      flat.push_back(timing.start_ns);
      flat.push_back(timing.end_ns);
      flat.push_back(timing.thread);
      flat.push_back(timing.on_core_ns);
    }
    return flat;
  });
}

ffi::Array<double> MeasureExecutors(const ffi::Array<ExecutorRef>& executors, int64_t warmup,
                                    int64_t repeats, int64_t seed, bool primed) {
  return Guarded([&] {
    std::vector<Timed*> contestants;
    for (const ExecutorRef& executor : executors) contestants.push_back(executor->timed);
    ffi::Array<double> seconds;
    for (double s :
         MeasureInterleaved(contestants, static_cast<int>(warmup), static_cast<int>(repeats),
                            static_cast<uint64_t>(seed), primed)) {
      seconds.push_back(s);
    }
    return seconds;
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<ExecutorObj>();
  refl::ObjectDef<LibraryKernelObj>();
  refl::GlobalDef()
      .def("tvm_interop.runtime.allowed_cores", [] { return static_cast<int64_t>(AllowedCores()); })
      .def("tvm_interop.runtime.num_threads",
           [] {
             return Guarded([] { return static_cast<int64_t>(ThreadPool::Get().num_threads()); });
           })
      .def("tvm_interop.runtime.set_num_threads",
           [](int64_t threads, bool pins) {
             Guarded([&] {
               ThreadPool::Get().SetPinning(pins);
               ThreadPool::Get().SetNumThreads(static_cast<int>(threads));
             });
           })
      .def("tvm_interop.runtime.load_kernel_library",
           [](const std::string& name, const std::string& path) {
             return Guarded([&] { return LoadKernelLibrary(name, path).version(); });
           })
      .def("tvm_interop.runtime.why_unsupported",
           [](const std::string& library, const Description& description) {
             return Guarded([&] {
               const KernelLibrary& loaded = LoadedLibrary(library);
               return WhyUnsupportedBy(
                   description, [&](const OpDescription& op) { return loaded.WhyUnsupported(op); });
             });
           })
      .def("tvm_interop.runtime.blocked_layout",
           [](const std::string& library) {
             return Guarded([&] { return NameOf(LoadedLibrary(library).BlockedLayout()); });
           })
      .def("tvm_interop.runtime.prepare_kernel", PrepareLibraryKernel)
      .def("tvm_interop.runtime.implementation",
           [](const LibraryKernelRef& kernel) { return kernel->implementation(); })
      .def("tvm_interop.runtime.num_reorders",
           [](const LibraryKernelRef& kernel) {
             return static_cast<int64_t>(kernel->num_reorders());
           })
      .def("tvm_interop.runtime.take_over_parallel_loops",
           [](const std::string& path) { Guarded([&] { TakeOverParallelLoops(path); }); })
      .def("tvm_interop.runtime.unknown_imports",
           [](const ffi::Bytes& code) {
             return Guarded([&] {
               ffi::Array<ffi::String> unknown;
               for (const std::string& name : ImportsOf(std::string(code.data(), code.size()))) {
                 if (!IsKnownImport(name)) unknown.push_back(name);
               }
               return unknown;
             });
           })
      .def("tvm_interop.runtime.make_executor", MakeExecutor)
      .def("tvm_interop.runtime.executor_of",
           [](void* instance) {
             return ExecutorRef(
                 ffi::make_object<ExecutorObj>(&TimedOf(static_cast<tvi_instance*>(instance))));
           })
      .def("tvm_interop.runtime.bind",
           [](const ExecutorRef& executor, int64_t value, const ffi::Tensor& tensor) {
             Guarded([&] { const_cast<ExecutorObj*>(executor.get())->Bind(value, tensor); });
           })
      .def("tvm_interop.runtime.run",
           [](const ExecutorRef& executor) { Guarded([&] { executor->executor().Run(); }); })
      .def("tvm_interop.runtime.profile", Profile)
      .def("tvm_interop.runtime.time",
           [](const ExecutorRef& executor, int64_t number) {
             return Guarded([&] { return executor->timed->Time(static_cast<int>(number)); });
           })
      .def("tvm_interop.runtime.measure_interleaved", MeasureExecutors);
}

}  // namespace
}  // namespace tvm_interop
