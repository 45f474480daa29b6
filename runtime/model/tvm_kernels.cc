#include "runtime/model/tvm_kernels.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "runtime/cpu/kernel_share.h"
#include "runtime/model/elf_imports.h"
#include "runtime/model/error.h"
#include "runtime/model/gpu_code.h"
#include "runtime/model/gpu_kernels.h"
#include "runtime/model/tvm_imports.h"

namespace tvm_interop {
namespace {

constexpr int32_t kTensorPointer = 7;  // kTVMFFIDLTensorPtr
constexpr int kCpu = 1;                // kDLCPU
// The name of the variable that holds the saved modules, such as GPU code. The library's host code
// calls these modules.
constexpr const char* kSavedModules = "__tvm_ffi__library_bin";

// The latest error that a kernel reported on this thread.
thread_local std::string raised;

void Raise(const char* /*kind*/, const char** parts, int32_t count) {
  raised.clear();
  for (int32_t i = 0; i < count; ++i) {
    if (parts[i] != nullptr) raised += parts[i];
  }
}

// The memory that kernels asked for on one thread. It is kept for the thread's next kernels,
// because a call of the C library for each kernel would take longer than a small kernel.
class Workspaces {
 public:
  ~Workspaces() {
    for (const Block& block : blocks_) std::free(block.memory);
  }

  void* Allocate(uint64_t nbytes) {
    Block* place = nullptr;
    for (Block& block : blocks_) {
      if (block.in_use) continue;
      if (block.nbytes >= nbytes && block.memory != nullptr) {
        block.in_use = true;
        return block.memory;
      }
      place = &block;
    }
    void* const memory = std::aligned_alloc(kAlignment, (nbytes / kAlignment + 1) * kAlignment);
    if (place != nullptr && nbytes <= kMostKept && memory != nullptr) {
      std::free(place->memory);
      *place = {memory, nbytes, true};
    }
    return memory;
  }

  void Free(void* memory) {
    for (Block& block : blocks_) {
      if (block.memory != memory) continue;
      block.in_use = false;
      return;
    }
    std::free(memory);
  }

 private:
  static constexpr uint64_t kAlignment = 64;
  // A block larger than this many bytes is freed at once. Otherwise a thread would hold it during
  // other work.
  static constexpr uint64_t kMostKept = uint64_t{1} << 22;
  struct Block {
    void* memory = nullptr;
    uint64_t nbytes = 0;
    bool in_use = false;
  };
  std::array<Block, 4> blocks_;
};

thread_local Workspaces workspaces;

// Kernels call `Allocate` for the memory of large intermediate tensors. Its parameters are those of
// TVM's `TVMBackendAllocWorkspace`. A kernel frees its memory on the thread that asked for it.
void* Allocate(int device_type, int /*device_id*/, uint64_t nbytes, int /*type_code*/,
               int /*type_bits*/) {
  if (device_type != kCpu) {
    RaiseInKernel("the kernel asks for memory of the GPU while it runs, which is not supported");
    return nullptr;
  }
  return workspaces.Allocate(nbytes);
}

int Free(int /*device_type*/, int /*device_id*/, void* memory) {
  workspaces.Free(memory);
  return 0;
}

[[noreturn]] void RefuseToLoad(const std::string& why) {
  throw ModelError(ErrorCode::kUnsupported,
                   "the kernels do not load here: " + why + "; compile the model on this machine");
}

std::string SystemError() { return std::generic_category().message(errno); }

std::string PathOf(int file) { return "/proc/self/fd/" + std::to_string(file); }

// Whether the loader has a library that it loaded from `path`.
bool IsLoaded(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

// Returns the descriptor of a new file in memory, or -1 if there is none.
//
// A program may have closed the descriptors of loaded libraries, as programs do that become
// daemons. The loader still has these libraries, and would take the new file for the library that
// was loaded from the same path. So the file gets a number whose path has no library.
int FileInMemory() {
  int file = memfd_create("tvm_interop_kernels", MFD_CLOEXEC);
  while (file >= 0 && IsLoaded(PathOf(file))) {
    const int other = fcntl(file, F_DUPFD_CLOEXEC, file + 1);
    close(file);
    file = other;
  }
  return file;
}

void WriteAll(int file, const std::string& data) {
  for (size_t done = 0; done < data.size();) {
    const ssize_t wrote = write(file, data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) RefuseToLoad("they cannot be written to memory or a file: " + SystemError());
    done += static_cast<size_t>(wrote);
  }
}

template <typename Slot>
void FillSlot(void* handle, const char* name, Slot function) {
  // Compiled code has a variable for each function that its loader must provide. A library
  // that does not use the function has no such variable.
  void* slot = dlsym(handle, name);
  if (slot != nullptr) std::memcpy(slot, &function, sizeof(function));
}

}  // namespace

void RaiseInKernel(const std::string& text) noexcept {
  try {
    raised = text;
  } catch (...) {
    raised.clear();  // There is not even memory for the text.
  }
}

TvmKernels::TvmKernels(std::string code) {
  std::vector<std::string> replaced;
  try {
    for (const std::string& name : ImportsOf(code)) {
      if (!IsKnownImport(name)) {
        RefuseToLoad("they need the function `" + name + "`, which this library does not have");
      }
    }
    MakeWeak(&code, {kRaiseImport});
  } catch (const ModelError&) {
    throw;
  } catch (const std::runtime_error& error) {
    RefuseToLoad(error.what());
  }
  // A file in memory needs no writable folder. Its descriptor stays open, so that no other file in
  // memory gets the same path. The loader would mistake two libraries with one path for the same
  // library.
  std::string path;
  bool is_named = false;
  file_ = FileInMemory();
  if (file_ >= 0) {
    path = PathOf(file_);
    if (access(path.c_str(), R_OK) != 0) close(file_), file_ = -1;
  }
  if (file_ < 0) {
    const char* folder = std::getenv("TMPDIR");
    path = std::string(folder != nullptr ? folder : "/tmp") + "/tvm_interop_XXXXXX";
    file_ = mkstemp(path.data());
    if (file_ < 0) {
      RefuseToLoad("no file can be written to the folder for temporary files: " + SystemError() +
                   "; set TMPDIR to another folder");
    }
    is_named = true;
  }
  try {
    WriteAll(file_, code);
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) RefuseToLoad(dlerror());
    SetImport(handle_, kRaiseImport, reinterpret_cast<void*>(&Raise));
  } catch (const std::exception& error) {
    if (handle_ != nullptr) dlclose(handle_);
    if (is_named) unlink(path.c_str());
    close(file_);
    if (dynamic_cast<const ModelError*>(&error) != nullptr) throw;
    RefuseToLoad(error.what());
  }
  if (is_named) unlink(path.c_str());
  try {
    PrepareGpuCode();
  } catch (const std::runtime_error& error) {
    dlclose(handle_);
    close(file_);
    RefuseToLoad(error.what());
  }
  FillSlot(handle_, "__TVMBackendParallelLaunch", ParallelLoopFunction());
  FillSlot(handle_, "__TVMBackendAllocWorkspace", &Allocate);
  FillSlot(handle_, "__TVMBackendFreeWorkspace", &Free);
}

void TvmKernels::PrepareGpuCode() {
  const void* saved = dlsym(handle_, kSavedModules);
  if (saved == nullptr) return;
  Dl_info info;
  ElfW(Sym)* symbol = nullptr;
  if (dladdr1(saved, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr) {
    throw std::runtime_error("the size of `" + std::string(kSavedModules) + "` is not known");
  }
  std::vector<GpuCode> codes = ReadGpuCode(static_cast<const char*>(saved), symbol->st_size);
  if (codes.empty()) return;
  gpu_ = std::make_unique<GpuKernels>(std::move(codes));
  FillSlot(handle_, "__tvm_ffi__library_ctx", gpu_.get());
  FillSlot(handle_, "__TVMFFIHandleInitOnce", &GpuKernels::InitOnce);
  FillSlot(handle_, "__TVMFFIEnvModLookupFromImports", &GpuKernels::Lookup);
  FillSlot(handle_, "__TVMFFIFunctionCall", &GpuKernels::Call);
}

TvmKernels::~TvmKernels() {
  gpu_.reset();
  dlclose(handle_);
  close(file_);
}

TvmKernels::Function TvmKernels::Find(const std::string& name) const {
  void* function = dlsym(handle_, ("__tvm_ffi_" + name).c_str());
  if (function == nullptr) {
    throw ArtifactError("the kernel library has no `" + name + "`");
  }
  return reinterpret_cast<Function>(function);
}

TvmKernel::TvmKernel(std::shared_ptr<const TvmKernels> kernels, const std::string& name,
                     const std::vector<TensorHeader*>& args)
    : kernels_(std::move(kernels)), function_(kernels_->Find(name)) {
  for (TensorHeader* arg : args) args_.push_back({kTensorPointer, 0, arg});
}

void TvmKernel::Run() {
  KernelValue result{};
  if (function_(nullptr, args_.data(), static_cast<int32_t>(args_.size()), &result) == 0) return;
  std::string text;
  text.swap(raised);
  throw std::runtime_error(text.empty() ? "the kernel failed and did not say why" : text);
}

}  // namespace tvm_interop
