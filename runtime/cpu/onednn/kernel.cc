#include "runtime/cpu/onednn/kernel.h"

#include <cstring>
#include <stdexcept>

#include "runtime/core/aligned_memory.h"
#include "runtime/cpu/onednn/packed.h"

namespace tvm_interop {
namespace onednn {

namespace {

// The alignment of tensors in scratch memory, in bytes. Vector loads need this alignment.
constexpr size_t kAlignment = 64;

}  // namespace

void Check(int status, const char* what) {
  if (status == kSuccess) return;
  const std::string why =
      status == kUnimplemented ? "has no such kernel" : "status " + std::to_string(status);
  throw std::runtime_error("oneDNN: " + std::string(what) + ": " + why);
}

OneDnnKernel::OneDnnKernel(const Api& api, Engine engine, int threads)
    : api_(api), engine_(engine), threads_(threads) {
  Stream stream = nullptr;
  Check(api_.stream_create(&stream, engine_, kInOrder), "a stream");
  stream_ = {stream, api_.stream_destroy};
}

int OneDnnKernel::AddArgument(const KernelArgument& argument, const MemoryDescObject* desc) {
  const int index = AddTensor(desc, nullptr);
  tensors_[index].address = argument.data;
  tensors_[index].offset = argument.offset;
  return index;
}

int OneDnnKernel::AddBuffer(const MemoryDescObject* desc) {
  // Give each buffer of the kernel bytes of its own, because oneDNN may use several buffers in one
  // call.
  const int index = AddTensor(desc, nullptr);
  tensors_[index].is_scratch = true;
  tensors_[index].offset = scratch_.nbytes();
  const size_t nbytes = api_.memory_desc_get_size(desc);
  scratch_.Set(scratch_.nbytes() + (nbytes + kAlignment - 1) / kAlignment * kAlignment);
  return index;
}

int OneDnnKernel::AddNumber(const MemoryDescObject* desc, int32_t number) {
  std::shared_ptr<char> own = AlignedZeros(sizeof(number));
  std::memcpy(own.get(), &number, sizeof(number));
  const int index = AddTensor(desc, own.get());
  tensors_[index].own = std::move(own);
  return index;
}

Owned<MemoryDesc> OneDnnKernel::CopyOf(const MemoryDescObject* desc) const {
  MemoryDesc copy = nullptr;
  Check(api_.memory_desc_clone(&copy, desc), "a descriptor");
  return {copy, api_.memory_desc_destroy};
}

int OneDnnKernel::AddTensor(const MemoryDescObject* desc, void* address) {
  Tensor tensor;
  tensor.desc = CopyOf(desc);
  Memory memory = nullptr;
  Check(api_.memory_create(&memory, desc, engine_, address), "a tensor");
  tensor.memory = {memory, api_.memory_destroy};
  tensors_.push_back(std::move(tensor));
  return static_cast<int>(tensors_.size()) - 1;
}

int OneDnnKernel::AddInput(const KernelArgument& argument, const MemoryDescObject* desc,
                           const MemoryDescObject* wanted) {
  const int given = AddArgument(argument, desc);
  if (api_.memory_desc_equal(desc, wanted) != 0) return given;
  if (argument.is_constant) {
    // The packed tensor has no memory yet: `Repack` gives it some.
    const int packed = AddTensor(wanted, nullptr);
    const size_t bytes = argument.nbytes > 0 ? argument.nbytes : api_.memory_desc_get_size(desc);
    packing_.push_back({given, packed, bytes, argument.is_read_only, MakeReorder(given, packed)});
    return packed;
  }
  const int copy = AddBuffer(wanted);
  AddReorder(given, copy);
  return copy;
}

void OneDnnKernel::AddScratchpad(PrimitiveDesc desc, std::vector<std::pair<int, int>>* tensors) {
  const MemoryDescObject* scratchpad = api_.primitive_desc_query_md(desc, kScratchpadDesc, 0);
  if (scratchpad != nullptr && api_.memory_desc_get_size(scratchpad) > 0) {
    tensors->emplace_back(kScratchpad, AddBuffer(scratchpad));
  }
}

void OneDnnKernel::AddPrimitive(PrimitiveDesc desc, std::vector<std::pair<int, int>> tensors) {
  AddScratchpad(desc, &tensors);
  const char* name = nullptr;
  if (api_.primitive_desc_query(desc, kImplementation, 0, &name) == kSuccess) {
    implementation_ = name;
  }
  running_.push_back(MakeCall(desc, tensors));
}

void OneDnnKernel::AddReorder(int from, int to) {
  running_.push_back(MakeReorder(from, to));
  ++num_reorders_;
}

OneDnnKernel::Call OneDnnKernel::MakeReorder(int from, int to) {
  Attributes attributes = nullptr;
  Check(api_.primitive_attr_create(&attributes), "attributes");
  const Owned<Attributes> owned_attributes(attributes, api_.primitive_attr_destroy);
  Check(api_.primitive_attr_set_scratchpad_mode(attributes, kUserScratchpad), "a scratchpad");
  PrimitiveDesc desc = nullptr;
  Check(api_.reorder_primitive_desc_create(&desc, tensors_[from].desc.get(), engine_,
                                           tensors_[to].desc.get(), engine_, attributes),
        "a reorder");
  const Owned<PrimitiveDesc> owned_desc(desc, api_.primitive_desc_destroy);
  std::vector<std::pair<int, int>> tensors{{kSource, from}, {kDestination, to}};
  AddScratchpad(desc, &tensors);
  return MakeCall(desc, tensors);
}

OneDnnKernel::Call OneDnnKernel::MakeCall(PrimitiveDesc desc,
                                          const std::vector<std::pair<int, int>>& tensors) {
  Primitive primitive = nullptr;
  Check(api_.primitive_create(&primitive, desc), "a primitive");
  Call call;
  call.primitive = {primitive, api_.primitive_destroy};
  for (const auto& [which, index] : tensors) {
    call.arguments.push_back({which, tensors_[index].memory.get()});
  }
  return call;
}

void OneDnnKernel::Run() {
  const TeamGuard team(api_, threads_);
  const ScratchLease lease(scratch_);
  BindAddresses(lease.data());
  Execute(running_.data(), running_.size());
}

void OneDnnKernel::Repack() {
  const TeamGuard team(api_, threads_);
  const ScratchLease lease(scratch_);
  BindAddresses(lease.data());
  for (const Packing& packing : packing_) {
    Tensor& packed = tensors_[packing.to];
    const Tensor& given = tensors_[packing.from];
    const uint64_t hash = packing.is_read_only ? 0 : HashOf(given.bound, packing.bytes);
    packed.own = PackedConstants::Global().Get(
        given.bound, hash, {&api_, CopyOf(given.desc.get()), CopyOf(packed.desc.get())},
        api_.memory_desc_get_size(packed.desc.get()), [&](void* memory) {
          Check(api_.memory_set_data_handle(packed.memory.get(), memory), "packed memory");
          Execute(&packing.call, 1);
        });
    Check(api_.memory_set_data_handle(packed.memory.get(), packed.own.get()), "packed memory");
  }
}

void OneDnnKernel::BindAddresses(char* scratch) {
  for (Tensor& tensor : tensors_) {
    if (tensor.address == nullptr && !tensor.is_scratch) continue;
    char* const base = tensor.is_scratch ? scratch : static_cast<char*>(*tensor.address);
    void* const now = base + tensor.offset;
    if (now == tensor.bound) continue;
    tensor.bound = now;
    Check(api_.memory_set_data_handle(tensor.memory.get(), tensor.bound), "an address");
  }
}

void OneDnnKernel::Execute(const Call* calls, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Call& call = calls[i];
    Check(api_.primitive_execute(call.primitive.get(), stream_.get(),
                                 static_cast<int>(call.arguments.size()), call.arguments.data()),
          "running a primitive");
  }
  if (count > 0) Check(api_.stream_wait(stream_.get()), "waiting for a primitive");
}

}  // namespace onednn
}  // namespace tvm_interop
