// Bindings for a server of TVM's RPC that has loaded this library. The server runs a model, or
// measures its stages. Programs and requests are passed as JSON text, because the RPC protocol
// supports few other types. Clients read and write tensors over RPC, directly in the server's
// memory.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/ffi/alignment.h"
#include "runtime/ffi/bound_operator.h"

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;
namespace refl = tvm::ffi::reflection;

using Dict = ffi::Map<ffi::String, ffi::Any>;
using List = ffi::Array<ffi::Any>;

struct AlignedAlloc {
  void AllocData(DLTensor* tensor) {
    const size_t size = (ffi::GetDataSize(*tensor) / kTensorAlignment + 1) * kTensorAlignment;
    tensor->data = std::aligned_alloc(kTensorAlignment, size);
    if (tensor->data == nullptr) throw std::bad_alloc();
    std::memset(tensor->data, 0, size);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

// A tensor in a buffer of bytes. The tensor keeps the buffer alive.
struct InBuffer {
  void AllocData(DLTensor* tensor) {
    const auto size = static_cast<int64_t>(ffi::GetDataSize(*tensor));
    if (offset < 0 || offset + size > buffer.numel()) {
      TVM_FFI_THROW(ExecutionError)
          << "a tensor of " << size << " bytes at byte " << offset
          << " does not fit into its buffer of " << buffer.numel() << " bytes";
    }
    tensor->data = static_cast<char*>(buffer.data_ptr()) + offset;
  }
  void FreeData(DLTensor*) {}

  ffi::Tensor buffer;
  int64_t offset;
};

constexpr DLDevice kCpu{kDLCPU, 0};

ffi::Tensor MakeBuffer(int64_t nbytes) {
  return ffi::Tensor::FromNDAlloc(AlignedAlloc(), ffi::Shape({nbytes}), DLDataType{kDLUInt, 8, 1},
                                  kCpu);
}

// Makes a tensor. `described` is [type, shape, index of the buffer, offset in bytes].
ffi::Tensor MakeTensor(const List& described, const ffi::Array<ffi::Tensor>& buffers) {
  const auto dims = described[1].cast<ffi::Array<int64_t>>();
  const InBuffer place{buffers[described[2].cast<int64_t>()], described[3].cast<int64_t>()};
  return ffi::Tensor::FromNDAlloc(place, ffi::Shape(dims.begin(), dims.end()),
                                  ffi::StringToDLDataType(described[0].cast<ffi::String>()), kCpu);
}

template <typename... Args>
ffi::Any Runtime(const char* name, Args&&... args) {
  static std::mutex looking_up;
  static std::map<std::string, ffi::Function> found;
  ffi::Function function;
  {
    const std::lock_guard<std::mutex> lock(looking_up);
    auto at = found.find(name);
    if (at == found.end()) {
      const std::string whole = std::string("tvm_interop.runtime.") + name;
      at = found.emplace(name, ffi::Function::GetGlobalRequired(whole)).first;
    }
    function = at->second;
  }
  return function(std::forward<Args>(args)...);
}

// Returns the first line of CPU flags from /proc/cpuinfo. Empty if there is none.
ffi::String CpuFlags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) == 0) return line;
  }
  return "";
}

// The operators of a model and the memory of their tensors. The memory is zero at first.
class ServedProgramObj : public ffi::Object {
 public:
  // Makes a program from a JSON object and the file `kernels` of compiled kernels. The object has
  // this form: {"streams", "threads", "buffers": [bytes], "values": [[type, shape, buffer,
  // offset]], "operators": [[kernel, [values], share]]}. A share is [index, number of shares], or
  // [] for the whole kernel.
  ServedProgramObj(const Dict& program, const ffi::String& kernels)
      : streams_(program.at("streams").cast<int64_t>()),
        threads_(program.at("threads").cast<int64_t>()),
        module_(ffi::Module::LoadFromFile(kernels)) {
    Runtime("take_over_parallel_loops", std::string(kernels));
    ffi::Array<ffi::Tensor> buffers;
    for (const auto& nbytes : program.at("buffers").cast<List>()) {
      buffers.push_back(MakeBuffer(nbytes.cast<int64_t>()));
    }
    for (const auto& value : program.at("values").cast<List>()) {
      tensors_.push_back(MakeTensor(value.cast<List>(), buffers));
    }
    for (const auto& op : program.at("operators").cast<List>()) {
      const auto described = op.cast<List>();
      const auto name = described[0].cast<ffi::String>();
      const auto function = module_->GetFunction(name, true);
      if (!function.has_value()) {
        TVM_FFI_THROW(ExecutionError)
            << "there is no kernel `" << name << "` on the server; compile the model again";
      }
      const auto share = described[2].cast<ffi::Array<int64_t>>();
      ffi::Optional<Share> run = std::nullopt;
      if (!share.empty()) run = Share(share[0], share[1]);
      operators_.push_back({name, *function, described[1].cast<ffi::Array<int64_t>>(), run});
    }
  }

  // Returns the tensor `value`. The tensor shares the program's memory, so the operators read the
  // numbers that are written to the tensor.
  ffi::Tensor tensor(int64_t value) const { return tensors_[value]; }

  // Fills the float32 tensors with normally distributed numbers. These numbers have the usual size
  // of a model's values, and none of them is denormal. Other tensors keep their zeros, which are
  // valid as indices.
  void FillAtRandom() const {
    std::mt19937 random(0);
    for (const ffi::Tensor& tensor : tensors_) {
      if (tensor.dtype().code != kDLFloat || tensor.dtype().bits != 32) continue;
      std::normal_distribution<float> normal;
      auto* values = static_cast<float*>(tensor.data_ptr());
      for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = normal(random);
    }
  }

  // Makes an executor of all operators in their order. `stream_of` and `waits` give the stream and
  // the waits of each operator.
  ffi::Any MakeExecutor(const List& stream_of, const List& waits) const {
    ffi::Array<OperatorTuple> placed;
    for (size_t op = 0; op < operators_.size(); ++op) {
      const auto waited_for = waits[op].cast<ffi::Array<int64_t>>();
      placed.push_back(Place(op, stream_of[op].cast<int64_t>(), waited_for));
    }
    return Bind(placed);
  }

  // Measures stages, and returns the times in seconds as JSON. A stage is a list with the operators
  // of each stream.
  ffi::String Measure(const List& stages, int64_t warmup, int64_t repeats, int64_t seed) const {
    ffi::Array<ffi::Any> executors;
    for (const auto& stage : stages) executors.push_back(MakeStage(stage.cast<List>()));
    const auto seconds = Runtime("measure_interleaved", executors, warmup, repeats, seed, true);
    return ffi::json::Stringify(seconds);
  }

  static constexpr bool _type_mutable = true;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.ServedProgram", ServedProgramObj, ffi::Object);

 private:
  // An operator before it is placed on a stream.
  struct Operator {
    ffi::String kernel_name;
    ffi::Function kernel;
    ffi::Array<int64_t> args;
    ffi::Optional<Share> share;
  };

  OperatorTuple Place(int64_t op, int64_t stream, const ffi::Array<int64_t>& waits) const {
    const Operator& placed = operators_.at(op);
    return OperatorTuple(placed.kernel_name, placed.kernel, placed.args, stream, waits,
                         placed.share);
  }

  ffi::Any MakeStage(const List& stage) const {
    ffi::Array<OperatorTuple> placed;
    for (size_t s = 0; s < stage.size(); ++s) {
      for (const int64_t op : stage[s].cast<ffi::Array<int64_t>>()) {
        placed.push_back(Place(op, static_cast<int64_t>(s), {}));
      }
    }
    return Bind(placed);
  }

  ffi::Any Bind(const ffi::Array<OperatorTuple>& operators) const {
    return Runtime("make_executor", streams_, threads_, tensors_, operators);
  }

  int64_t streams_;
  int64_t threads_;
  ffi::Module module_;
  ffi::Array<ffi::Tensor> tensors_;
  std::vector<Operator> operators_;
};

class ServedProgramRef : public ffi::ObjectRef {
 public:
  ServedProgramRef(const ffi::String& program, const ffi::String& kernels) {
    data_ = ffi::make_object<ServedProgramObj>(ffi::json::Parse(program).cast<Dict>(), kernels);
  }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(ServedProgramRef, ffi::ObjectRef, ServedProgramObj);
};

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<ServedProgramObj>();
  refl::GlobalDef()
      .def("tvm_interop.remote.cpu_flags", CpuFlags)
      .def("tvm_interop.remote.open",
           [](const ffi::String& program, const ffi::String& kernels) {
             return ServedProgramRef(program, kernels);
           })
      .def("tvm_interop.remote.tensor",
           [](const ServedProgramRef& program, int64_t value) { return program->tensor(value); })
      .def("tvm_interop.remote.fill_at_random",
           [](const ServedProgramRef& program) { program->FillAtRandom(); })
      .def("tvm_interop.remote.measure",
           [](const ServedProgramRef& program, const ffi::String& stages, int64_t warmup,
              int64_t repeats, int64_t seed) {
             return program->Measure(ffi::json::Parse(stages).cast<List>(), warmup, repeats, seed);
           })
      .def("tvm_interop.remote.make_executor",
           [](const ServedProgramRef& program, const ffi::String& stream_of,
              const ffi::String& waits) {
             return program->MakeExecutor(ffi::json::Parse(stream_of).cast<List>(),
                                          ffi::json::Parse(waits).cast<List>());
           })
      .def("tvm_interop.remote.profile", [](const ffi::Any& executor) {
        return ffi::json::Stringify(Runtime("profile", executor));
      });
}

}  // namespace
}  // namespace tvm_interop
