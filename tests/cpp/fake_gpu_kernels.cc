// Kernels for a GPU in the form that TVM compiles them to, for tests without TVM: code for the host
// that launches code for the GPU. The code for the GPU is put in place by `fake_gpu_artifact.h`.

#include <cstdint>

#include "tests/cpp/kernel_arguments.h"

namespace {

constexpr int32_t kInteger = 1, kPointer = 4;

}  // namespace

extern "C" {

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count);

void* __tvm_ffi__library_ctx = nullptr;
int (*__TVMFFIHandleInitOnce)(void**, int (*)(void**)) = nullptr;
int (*__TVMFFIEnvModLookupFromImports)(void*, const char*, void**) = nullptr;
int (*__TVMFFIFunctionCall)(void*, const Value*, int32_t, Value*) = nullptr;

// `gpu_instance_test` replaces these bytes by GPU code when it writes its artifact.
char __tvm_ffi__library_bin[8192] = "PLACE OF THE GPU'S CODE";
}

namespace {

// Calls the kernel `handle`. Its arguments are the tensors' data and the number of elements.
template <typename Make>
int Launch(void** handle, Make make, const Value* args, int32_t count) {
  const auto* first = static_cast<const Tensor*>(args[0].pointer);
  if (first->device_type != 2) {
    const char* parts[] = {"the tensor is not on a GPU"};
    TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 1);
    return -1;
  }
  if (__TVMFFIHandleInitOnce(handle, make) != 0) return -1;
  Value passed[8] = {};
  int32_t n = 0;
  for (; n < count; ++n) {
    passed[n] = {kPointer, 0, {static_cast<const Tensor*>(args[n].pointer)->data}};
  }
  // The arguments of the kernel that are not tensors: numbers of elements, blocks and threads.
  const int64_t numbers[] = {first->shape[0], 1, 32};
  for (const int64_t number : numbers) {
    passed[n].type_index = kInteger;
    passed[n++].integer = number;
  }
  Value result = {};
  return __TVMFFIFunctionCall(*handle, passed, n, &result);
}

}  // namespace

extern "C" {

#define KERNEL(name)                                                                         \
  int __tvm_ffi_##name(void*, const Value* args, int32_t count, Value*) {                    \
    static void* handle = nullptr;                                                           \
    const auto make = [](void** made) {                                                      \
      return __TVMFFIEnvModLookupFromImports(__tvm_ffi__library_ctx, #name "_kernel", made); \
    };                                                                                       \
    return Launch(&handle, +make, args, count);                                              \
  }

KERNEL(twice)
KERNEL(add_one)
KERNEL(add)
KERNEL(checked)
KERNEL(missing)
}
