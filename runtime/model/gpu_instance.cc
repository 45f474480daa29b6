#include "runtime/model/gpu_instance.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/core/aligned_memory.h"
#include "runtime/model/error.h"
#include "runtime/model/gpu_kernels.h"
#include "runtime/model/rows.h"
#include "runtime/model/tensor_header.h"

namespace tvm_interop {
namespace {

// Inputs, outputs and weights begin at multiples of this many bytes, like memory of `cudaMalloc`.
constexpr size_t kBlockAlignment = 256;

size_t Aligned(size_t nbytes) {
  return (nbytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Runs `body`. Errors of `body` that have no code yet get the code `code`.
template <typename Body>
auto WithCode(ErrorCode code, const std::string& prefix, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const ModelError&) {
    throw;
  } catch (const cuda::MissingError& error) {
    throw ModelError(ErrorCode::kUnsupported, prefix + error.what());
  } catch (const cuda::LostError& error) {
    throw ModelError(ErrorCode::kExecution, prefix + error.what());
  } catch (const std::runtime_error& error) {
    throw ModelError(code, prefix + error.what());
  }
}

}  // namespace

GpuInstance::GpuInstance(std::shared_ptr<Model> model, size_t shape)
    : model_(std::move(model)),
      shape_(shape),
      plan_(model_->plan(shape)),
      gpu_(plan_.Gpu().value()) {
  WithCode(ErrorCode::kExecution, "", [&] { Prepare(); });
}

void GpuInstance::Prepare() {
  std::vector<CudaStreamOptions> options;
  for (const Stream& stream : plan_.streams) options.push_back({gpu_, stream.urgent});
  // Make the streams first, because this shows whether there is a GPU.
  streams_ = std::make_shared<CudaStreams>(options);
  code_ = model_->Kernels(shape_);
  Allocate();
  CopyWeights();
  MakePorts();
  MakeKernels();
}

void GpuInstance::Allocate() {
  size_t end = Aligned(static_cast<size_t>(plan_.arena_bytes));
  std::vector<size_t> offsets(plan_.values.size());
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    const PlannedValue& value = plan_.values[v];
    if (value.storage == Storage::kAlias) continue;
    if (value.storage == Storage::kArena) {
      offsets[v] = static_cast<size_t>(*value.offset);
      continue;
    }
    offsets[v] = end;
    end += Aligned(static_cast<size_t>(value.Nbytes()));
  }
  WithCode(ErrorCode::kOutOfMemory,
           "the GPU cannot give the model's " + std::to_string(end) + " bytes: ", [&] {
             memory_ = std::make_unique<CudaMemory>(gpu_, end);
           });
  FillWithZeros(streams_.get(), *memory_);
  headers_.resize(plan_.values.size());
  dims_.resize(plan_.values.size());
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    const PlannedValue& value = plan_.values[v];
    const size_t begin = offsets[plan_.RootOf(static_cast<int64_t>(v))];
    const bool is_part = value.storage == Storage::kAlias;
    const int64_t within = is_part ? value.offset.value_or(0) : 0;
    headers_[v] = HeaderOf(value, kCudaDevice, gpu_, &dims_[v]);
    headers_[v].data = memory_->at(begin + static_cast<size_t>(within));
  }
}

void GpuInstance::CopyWeights() {
  CudaLoader loader(streams_);
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    if (plan_.values[v].storage != Storage::kWeight) continue;
    const auto nbytes = static_cast<size_t>(plan_.values[v].Nbytes());
    const char* data = model_->weights(shape_).at(static_cast<int64_t>(v));
    loader.ToDevice(gpu_, headers_[v].data, data, nbytes);
    // Release the pages of the file: the next instance reads them from the file again.
    model_->artifact().weight_block->Release(data, nbytes);
  }
}

void GpuInstance::MakePorts() {
  std::map<int64_t, size_t> slots;  // An output may be an input too, or be listed twice.
  std::vector<CudaStaging::Port> staged;
  for (const auto& [values, ports] :
       {std::pair(&plan_.inputs, &inputs_), std::pair(&plan_.outputs, &outputs_)}) {
    for (int64_t v : *values) {
      const auto nbytes = static_cast<size_t>(plan_.values[v].Nbytes());
      const auto [slot, is_new] = slots.emplace(v, staged.size());
      if (is_new) staged.push_back({{{gpu_, headers_[v].data}}, nbytes});
      ports->push_back({v, slot->second, nbytes, nullptr});
    }
  }
  staging_ = std::make_unique<CudaStaging>(streams_, std::move(staged));
}

void GpuInstance::MakeKernels() {
  bool is_loaded = false;
  std::vector<CudaPlannedOp> ops;
  for (const PlannedOperator& op : plan_.operators) {
    if (op.is_share) {
      throw ModelError(ErrorCode::kUnsupported,
                       "operator `" + op.name +
                           "` is one share of a kernel, and a GPU divides kernels by itself; "
                           "compile the model again");
    }
    if (op.library.has_value()) {
      kernels_.push_back(MakeLibraryKernel(op));
    } else {
      if (code_->gpu() == nullptr) {
        throw ArtifactError("the model is for a GPU, and its kernel library has no code for one");
      }
      if (!is_loaded) {
        WithCode(ErrorCode::kUnsupported, "", [&] { code_->gpu()->Load(gpu_); });
      }
      is_loaded = true;
      std::vector<TensorHeader*> args;
      for (int64_t v : op.Arguments()) args.push_back(&headers_[v]);
      kernels_.push_back(std::make_unique<TvmGpuKernel>(code_, op.kernel, args));
    }
    ops.push_back({op.name, kernels_.back().get(), static_cast<int>(op.stream),
                   std::vector<int>(op.waits.begin(), op.waits.end())});
  }
  executor_ = std::make_unique<CudaExecutor>(streams_, ops, CudaDispatch::kCapturedGraph);
}

std::unique_ptr<CudaKernel> GpuInstance::MakeLibraryKernel(const PlannedOperator& op) {
  std::vector<void*> addresses;
  for (int64_t v : op.Arguments()) addresses.push_back(headers_[v].data);
  return WithCode(ErrorCode::kUnsupported, "operator `" + op.name + "`: ", [&] {
    const CudaStreams::Lease lease(streams_.get());
    streams_->Settle();
    return model_->gpu_library(*op.library)
        ->Prepare(*op.description, streams_->stream(static_cast<int>(op.stream)), addresses);
  });
}

std::string GpuInstance::Warning() const {
  const std::string& reason = executor_->why_no_graph();
  return reason.empty() ? "" : "no CUDA graph, operators are launched one by one: " + reason;
}

void* GpuInstance::OwnBuffer(Port* port) {
  if (port->own == nullptr) port->own = AlignedZeros(port->nbytes);
  return port->own.get();
}

bool GpuInstance::IsOnGpu(const Port& port, const void* given) const {
  const int gpu = given == nullptr ? -1 : GpuOf(given);
  if (gpu < 0 || gpu == gpu_) return gpu == gpu_;
  throw ModelError(ErrorCode::kInvalidArgument,
                   "the memory for `" + plan_.values[port.value].name +
                       "` is on cuda:" + std::to_string(gpu) + ", and the model runs on cuda:" +
                       std::to_string(gpu_) + ": give memory there, or memory of the host");
}

// Do not wait here: the caller must have waited for its own work on memory of the GPU.
void GpuInstance::CopyInputs(const void* const* inputs) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Port& port = inputs_[i];
    const void* given = inputs == nullptr ? nullptr : inputs[i];
    if (IsOnGpu(port, given)) {
      CopyOnDevice(streams_.get(), gpu_, {headers_[port.value].data}, given, port.nbytes, nullptr);
    } else {
      staging_->Write(port.slot, given != nullptr ? given : OwnBuffer(&port));
    }
  }
}

std::vector<bool> GpuInstance::OnGpu(void* const* outputs) const {
  std::vector<bool> on_gpu;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    on_gpu.push_back(IsOnGpu(outputs_[i], outputs == nullptr ? nullptr : outputs[i]));
  }
  return on_gpu;
}

void GpuInstance::CopyOutputs(void* const* outputs, const std::vector<bool>& on_gpu) {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    Port& port = outputs_[i];
    void* given = outputs == nullptr ? nullptr : outputs[i];
    if (on_gpu[i]) {
      CopyOnDevice(streams_.get(), gpu_, {given}, headers_[port.value].data, port.nbytes, nullptr);
    } else {
      staging_->Take(port.slot, given != nullptr ? given : OwnBuffer(&port));
    }
  }
}

void GpuInstance::Run(const void* const* inputs, void* const* outputs) {
  const BusyGuard guard(this);
  WithCode(ErrorCode::kExecution, "", [&] {
    cuda::CheckUsable();
    const std::vector<bool> on_gpu = OnGpu(outputs);
    CopyInputs(inputs);
    executor_->RunAnd([&] {
      for (size_t i = 0; i < outputs_.size(); ++i) {
        if (!on_gpu[i]) staging_->Fetch(outputs_[i].slot);
      }
    });
    CopyOutputs(outputs, on_gpu);
  });
  uint64_t rows = 1;
  for (const auto& range : model_->artifact().manifest.ranges) {
    rows *= static_cast<uint64_t>(range.sizes[shape_]);
  }
  model_->run_counts(shape_).Count(rows, rows);
}

void GpuInstance::RunRows(const std::vector<int64_t>& rows, const void* const* inputs,
                          void* const* outputs) {
  const auto& ranges = model_->artifact().manifest.ranges;
  CheckNumberOfRanges(ranges, rows.size());
  for (size_t r = 0; r < ranges.size(); ++r) {
    if (rows[r] == ranges[r].sizes[shape_]) continue;
    throw ModelError(ErrorCode::kUnsupported, "an instance on a GPU runs all rows of its shape, " +
                                                  std::to_string(ranges[r].sizes[shape_]) +
                                                  ", and not " + std::to_string(rows[r]) +
                                                  ": give all rows");
  }
  Run(inputs, outputs);
}

std::vector<OpTiming> GpuInstance::Profile(const void* const* inputs, void* const* outputs) {
  const BusyGuard guard(this);
  return WithCode(ErrorCode::kExecution, "", [&] {
    cuda::CheckUsable();
    const std::vector<bool> on_gpu = OnGpu(outputs);
    CopyInputs(inputs);
    std::vector<OpTiming> timings = executor_->Profile();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!on_gpu[i]) staging_->FetchAlone(outputs_[i].slot);
    }
    CopyOutputs(outputs, on_gpu);
    return timings;
  });
}

}  // namespace tvm_interop
