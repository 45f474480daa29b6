// Bindings that let Python run and measure plans on GPUs. Kernels are tvm-ffi's packed functions,
// and tensors lie in blocks of a GPU's memory.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/measure.h"
#include "runtime/cuda/api.h"
#include "runtime/cuda/executor.h"
#include "runtime/cuda/memory.h"
#include "runtime/cuda/streams.h"
#include "runtime/ffi/bound_operator.h"
#include "runtime/ffi/cuda_library.h"
#include "runtime/ffi/cuda_staging.h"
#include "runtime/ffi/guarded_cuda.h"

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;
namespace refl = tvm::ffi::reflection;

// A packed function and its arguments. Before each call, this class sets the stream in tvm-ffi's
// environment. TVM's kernels take the stream from there, and other kernels may do so too.
class PackedCudaKernel : public CudaKernel {
 public:
  PackedCudaKernel(ffi::Function function, const std::vector<ffi::Tensor>& args)
      : function_(std::move(function)), tensors_(args) {
    for (const ffi::Tensor& tensor : tensors_) args_.emplace_back(tensor);
  }

  void Launch(const CudaStream& stream) override {
    TVMFFIStreamHandle before = nullptr;
    Use(stream.device, stream.handle, &before);
    try {
      ffi::Any result;
      function_.CallPacked(args_.data(), static_cast<int32_t>(args_.size()), &result);
    } catch (...) {
      Use(stream.device, before, nullptr);
      throw;
    }
    // tvm-ffi's earlier stream is restored, for PyTorch and other users of tvm-ffi in this thread.
    Use(stream.device, before, nullptr);
  }

 private:
  static void Use(int device, void* stream, TVMFFIStreamHandle* before) {
    TVM_FFI_CHECK_SAFE_CALL(TVMFFIEnvSetStream(kDLCUDA, device, stream, before));
  }

  ffi::Function function_;
  std::vector<ffi::Tensor> tensors_;  // Keeps the memory of the tensors alive.
  std::vector<ffi::AnyView> args_;
};

class CudaMemoryObj : public ffi::Object {
 public:
  CudaMemoryObj(int device, size_t nbytes) : memory(std::make_shared<CudaMemory>(device, nbytes)) {}

  std::shared_ptr<CudaMemory> memory;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.CudaMemory", CudaMemoryObj, ffi::Object);
};

class CudaMemoryRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(CudaMemoryRef, ffi::ObjectRef, CudaMemoryObj);
};

// Gives a tensor its place in a block of memory. The block lives at least as long as the tensor.
struct WithinBlock {
  void AllocData(DLTensor* tensor, const std::shared_ptr<CudaMemory>& memory, size_t offset) {
    block = memory;
    tensor->data = memory->at(offset);
  }
  void FreeData(DLTensor*) {}

  std::shared_ptr<CudaMemory> block;
};

ffi::Tensor TensorWithin(const CudaMemoryRef& memory, int64_t offset, const ffi::Shape& shape,
                         DLDataType dtype) {
  const std::shared_ptr<CudaMemory>& block = memory->memory;
  const DLDevice device{kDLCUDA, block->device()};
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(WithinBlock(), shape, dtype, device, block,
                                                static_cast<size_t>(offset));
  if (offset < 0 || static_cast<size_t>(offset) + ffi::GetDataSize(tensor) > block->nbytes()) {
    TVM_FFI_THROW(ExecutionError) << "a tensor of " << ffi::GetDataSize(tensor) << " bytes at "
                                  << offset << " does not lie within a block of " << block->nbytes()
                                  << " bytes";
  }
  return tensor;
}

// A copy from one GPU to another, as the kernel of an operator.
class PeerCopyObj : public ffi::Object {
 public:
  PeerCopyObj(const ffi::Tensor& from, const ffi::Tensor& to)
      : kernel(to.data_ptr(), to.device().device_id, from.data_ptr(), from.device().device_id,
               ffi::GetDataSize(from)),
        from_(from),
        to_(to) {
    CheckSameSize(from, to);
  }

  PeerCopy kernel;

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.PeerCopy", PeerCopyObj, ffi::Object);

 private:
  ffi::Tensor from_;  // These two fields keep the memory of both tensors alive.
  ffi::Tensor to_;
};

class PeerCopyRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(PeerCopyRef, ffi::ObjectRef, PeerCopyObj);
};

class CudaExecutorObj : public ffi::Object {
 public:
  // Makes an executor. The kernel of an operator is a packed function, a library's kernel, or a
  // copy between GPUs. A library's kernel and a copy already have their tensors.
  CudaExecutorObj(const CudaStreamsRef& streams, const ffi::Array<ffi::Tensor>& values,
                  const ffi::Array<OperatorTuple>& operators, CudaDispatch dispatch) {
    std::vector<CudaPlannedOp> ops;
    for (const OperatorTuple& given : operators) {
      BoundOperator op(given);
      CudaKernel* kernel = BindKernel(op, values);
      ops.push_back({std::move(op.name), kernel, op.stream, std::move(op.waits)});
    }
    executor = std::make_unique<CudaExecutor>(streams->streams, ops, dispatch);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.CudaExecutor", CudaExecutorObj, ffi::Object);

 private:
  // Returns the kernel that launches the operator. This object keeps the kernel.
  CudaKernel* BindKernel(const BoundOperator& op, const ffi::Array<ffi::Tensor>& values) {
    if (op.share.has_value()) {
      throw std::runtime_error("operator `" + op.name +
                               "` is one share of a kernel, and a GPU divides kernels by itself");
    }
    if (auto copy = op.kernel.as<PeerCopyRef>()) {
      copies_.push_back(*copy);
      return &const_cast<PeerCopyObj*>(copy->get())->kernel;
    }
    if (auto prepared = op.kernel.as<CudaLibraryKernelRef>()) {
      library_kernels_.push_back(*prepared);
      return prepared->get()->kernel();
    }
    std::vector<ffi::Tensor> bound;
    for (int64_t value : op.args) bound.push_back(values[value]);
    kernels_.push_back(std::make_unique<PackedCudaKernel>(op.kernel.cast<ffi::Function>(), bound));
    return kernels_.back().get();
  }

  // The kernels below must outlive the executor.
  std::vector<std::unique_ptr<CudaKernel>> kernels_;
  std::vector<PeerCopyRef> copies_;
  std::vector<CudaLibraryKernelRef> library_kernels_;

 public:
  std::unique_ptr<CudaExecutor> executor;
};

class CudaExecutorRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(CudaExecutorRef, ffi::ObjectRef, CudaExecutorObj);
};

const std::map<std::string, CudaDispatch>& Dispatches() {
  static const std::map<std::string, CudaDispatch> dispatches{
      {"streams", CudaDispatch::kStreams},
      {"captured", CudaDispatch::kCapturedGraph},
      {"linked", CudaDispatch::kLinkedGraph}};
  return dispatches;
}

CudaStreamsRef MakeStreams(const ffi::Array<int64_t>& devices, const ffi::Array<bool>& urgent) {
  return GuardedCuda([&] {
    std::vector<CudaStreamOptions> options(devices.size());
    for (size_t i = 0; i < options.size(); ++i) {
      options[i].device = static_cast<int>(devices[i]);
      options[i].is_urgent = urgent[i];
    }
    return CudaStreamsRef(ffi::make_object<CudaStreamsObj>(options));
  });
}

CudaExecutorRef MakeExecutor(const CudaStreamsRef& streams, const ffi::Array<ffi::Tensor>& values,
                             const ffi::Array<OperatorTuple>& operators,
                             const std::string& dispatch) {
  return GuardedCuda([&] {
    return CudaExecutorRef(
        ffi::make_object<CudaExecutorObj>(streams, values, operators, Dispatches().at(dispatch)));
  });
}

std::string DispatchOf(const CudaExecutorRef& executor) {
  for (const auto& [name, dispatch] : Dispatches()) {
    if (dispatch == executor->executor->dispatch()) return name;
  }
  TVM_FFI_UNREACHABLE();
}

// Runs the plan once and returns a flat list with four numbers for each operator: the operator, the
// stream, start and end. Both times are in nanoseconds.
ffi::Array<int64_t> Profile(const CudaExecutorRef& executor) {
  return GuardedCuda([&] {
    ffi::Array<int64_t> flat;
    for (const OpTiming& timing : executor->executor->Profile()) {
      for (int64_t number :
           {int64_t{timing.op}, int64_t{timing.stream}, timing.start_ns, timing.end_ns}) {
        flat.push_back(number);
      }
    }
    return flat;
  });
}

// Runs the plan once and copies the inputs and outputs with the numbers `ports` to pinned memory.
// The host waits once, for the run and the copies together.
void RunAndFetch(const CudaExecutorRef& executor, const CudaStagingRef& staging,
                 const ffi::Array<int64_t>& ports) {
  GuardedCuda([&] {
    executor->executor->RunAnd([&] {
      for (int64_t port : ports) staging->get()->Fetch(static_cast<size_t>(port));
    });
  });
}

ffi::Array<double> Measure(const ffi::Array<CudaExecutorRef>& executors, int64_t warmup,
                           int64_t repeats, int64_t seed, bool primed) {
  return GuardedCuda([&] {
    std::vector<Timed*> contestants;
    for (const CudaExecutorRef& executor : executors) {
      contestants.push_back(executor->executor.get());
    }
    const std::vector<double> seconds =
        MeasureInterleaved(contestants, static_cast<int>(warmup), static_cast<int>(repeats),
                           static_cast<uint64_t>(seed), primed);
    return ffi::Array<double>(seconds.begin(), seconds.end());
  });
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<CudaStreamsObj>();
  refl::ObjectDef<CudaMemoryObj>();
  refl::ObjectDef<PeerCopyObj>();
  refl::ObjectDef<CudaExecutorObj>();
  refl::GlobalDef()
      .def("tvm_interop.cuda.device_count",
           [] { return GuardedCuda([] { return static_cast<int64_t>(cuda::DeviceCount()); }); })
      .def("tvm_interop.cuda.describe_device",
           [](int64_t device) {
             return GuardedCuda([&] { return cuda::DescribeDevice(static_cast<int>(device)); });
           })
      .def("tvm_interop.cuda.make_streams", MakeStreams)
      .def("tvm_interop.cuda.urgent_streams",
           [](const CudaStreamsRef& streams) {
             const std::vector<bool>& urgent = streams->streams->is_urgent();
             ffi::Array<bool> flags;
             for (bool flag : urgent) flags.push_back(flag);
             return flags;
           })
      .def("tvm_interop.cuda.stream_devices",
           [](const CudaStreamsRef& streams) {
             ffi::Array<int64_t> devices;
             for (int s = 0; s < streams->streams->num_streams(); ++s) {
               devices.push_back(streams->streams->stream(s).device);
             }
             return devices;
           })
      .def("tvm_interop.cuda.out_of_reach",
           [](const CudaStreamsRef& streams) {
             ffi::Array<ffi::Array<int64_t>> pairs;
             for (const auto& [device, peer] : streams->streams->out_of_reach()) {
               pairs.push_back({device, peer});
             }
             return pairs;
           })
      .def("tvm_interop.cuda.make_memory",
           [](int64_t device, int64_t nbytes) {
             return GuardedCuda([&] {
               return CudaMemoryRef(ffi::make_object<CudaMemoryObj>(static_cast<int>(device),
                                                                    static_cast<size_t>(nbytes)));
             });
           })
      .def("tvm_interop.cuda.fill_with_zeros",
           [](const CudaStreamsRef& streams, const CudaMemoryRef& memory) {
             return GuardedCuda([&] { FillWithZeros(streams->streams.get(), *memory->memory); });
           })
      .def("tvm_interop.cuda.tensor_within", TensorWithin)
      .def("tvm_interop.cuda.peer_copy",
           [](const ffi::Tensor& from, const ffi::Tensor& to) {
             return PeerCopyRef(ffi::make_object<PeerCopyObj>(from, to));
           })
      .def("tvm_interop.cuda.make_executor", MakeExecutor)
      .def("tvm_interop.cuda.dispatch", DispatchOf)
      .def("tvm_interop.cuda.why_no_graph",
           [](const CudaExecutorRef& executor) { return executor->executor->why_no_graph(); })
      .def("tvm_interop.cuda.run",
           [](const CudaExecutorRef& executor) { GuardedCuda([&] { executor->executor->Run(); }); })
      .def("tvm_interop.cuda.start",
           [](const CudaExecutorRef& executor) {
             GuardedCuda([&] { executor->executor->Start(); });
           })
      .def("tvm_interop.cuda.run_and_fetch", RunAndFetch)
      .def("tvm_interop.cuda.time",
           [](const CudaExecutorRef& executor, int64_t number) {
             return GuardedCuda([&] { return executor->executor->Time(static_cast<int>(number)); });
           })
      .def("tvm_interop.cuda.time_launches",
           [](const CudaExecutorRef& executor, int64_t number) {
             return GuardedCuda(
                 [&] { return executor->executor->TimeLaunches(static_cast<int>(number)); });
           })
      .def("tvm_interop.cuda.profile", Profile)
      .def("tvm_interop.cuda.measure_interleaved", Measure);
}

}  // namespace
}  // namespace tvm_interop
