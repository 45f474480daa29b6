// Kernels in the form that TVM compiles them to, for tests without TVM.

#include <atomic>
#include <cstdint>

#include "tests/cpp/kernel_arguments.h"

namespace {

float* Data(const Value& value) {
  return static_cast<float*>(static_cast<Tensor*>(value.pointer)->data);
}

int64_t Count(const Value& value) {
  const auto* tensor = static_cast<Tensor*>(value.pointer);
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->rank; ++i) count *= tensor->shape[i];
  return count;
}

struct Group {
  void* handle;
  int32_t num_task;
};

int AddOneTask(int task, Group* group, void* data) {
  const Value* args = static_cast<const Value*>(data);
  const int64_t count = Count(args[0]);
  const int64_t begin = count * task / group->num_task, end = count * (task + 1) / group->num_task;
  for (int64_t i = begin; i < end; ++i) Data(args[1])[i] = Data(args[0])[i] + 1;
  return 0;
}

}  // namespace

extern "C" {

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count);

int (*__TVMBackendParallelLaunch)(int (*)(int, Group*, void*), void*, int) = nullptr;
void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = nullptr;
int (*__TVMBackendFreeWorkspace)(int, int, void*) = nullptr;

// out = 2 * in, through six workspaces, which all live at the same time. Each call asks for other
// sizes than the call before it.
int __tvm_ffi_twice(void*, const Value* args, int32_t, Value*) {
  constexpr int kWorkspaces = 6;
  static std::atomic<int> calls{0};
  const int call = ++calls;
  const int64_t count = Count(args[0]);
  const uint64_t more = call % 3 == 0 ? uint64_t{8} << 20 : call % 3 * 100;
  float* own[kWorkspaces];
  for (float*& each : own) {
    each = static_cast<float*>(__TVMBackendAllocWorkspace(
        1, 0, static_cast<uint64_t>(count) * sizeof(float) + more, 2, 32));
    for (int64_t i = 0; i < count; ++i) each[i] = Data(args[0])[i];
  }
  // Two workspaces that share memory would give another sum.
  for (int64_t i = 0; i < count; ++i) {
    for (int k = 1; k < kWorkspaces; ++k) own[k][i] = own[k - 1][i] + Data(args[0])[i];
  }
  for (int64_t i = 0; i < count; ++i) Data(args[1])[i] = own[1][i];
  for (float* each : own) {
    if (__TVMBackendFreeWorkspace(1, 0, each) != 0) return -1;
  }
  return 0;
}

// out = in + 1, in a parallel loop.
int __tvm_ffi_add_one(void*, const Value* args, int32_t, Value*) {
  return __TVMBackendParallelLaunch(AddOneTask, const_cast<Value*>(args), 0);
}

// out = one + other.
int __tvm_ffi_add(void*, const Value* args, int32_t, Value*) {
  for (int64_t i = 0; i < Count(args[0]); ++i) {
    Data(args[2])[i] = Data(args[0])[i] + Data(args[1])[i];
  }
  return 0;
}

// Fails if the first number of its input is negative.
int __tvm_ffi_checked(void*, const Value* args, int32_t, Value*) {
  if (Data(args[0])[0] < 0) {
    const char* parts[] = {"the input ", nullptr, "is negative"};
    TVMFFIErrorSetRaisedFromCStrParts("ValueError", parts, 3);
    return -1;
  }
  for (int64_t i = 0; i < Count(args[0]); ++i) Data(args[1])[i] = Data(args[0])[i];
  return 0;
}
}
