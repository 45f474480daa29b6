// Launches kernels twice, with the threads in two orders, and compares the results.
#pragma once

#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "device_functions.h"

namespace cuda_emulation {

struct SharedArray {
  void* data;
  std::size_t bytes;
};
inline std::vector<SharedArray> shared_arrays;
inline void* dynamic_shared = nullptr;

// The kernel's source calls this function for each of its shared arrays, before it uses the array.
inline bool DeclareShared(void* data, std::size_t bytes) {
  shared_arrays.push_back({data, bytes});
  std::memset(data, Garbage(), bytes);
  return true;
}

template <typename T>
T* DynamicShared() {
  return static_cast<T*>(dynamic_shared);
}

// Allocates exactly `bytes` bytes, so that AddressSanitizer finds accesses beyond them.
inline void* Allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes != 0 ? bytes : 1) != 0) Fail("no memory for its tensors");
  return memory;
}

// The tensors of the program, twice: one copy for the launches with the threads in order, and one
// for the launches with the threads in reverse order.
struct Tensors {
  std::vector<std::size_t> bytes;
  std::vector<void*> in_order, in_reverse;
};

// One launch, as the host's code makes it.
struct LaunchSetting {
  const char* name;
  dim3 grid, block;
  int most_threads;  // The kernel's launch bounds; 0 if it has none.
  std::size_t dynamic_shared_bytes;
  std::vector<int> tensors;  // Which tensors the kernel is given.
};

inline void RunGrid(const LaunchSetting& setting) {
  blockDim = setting.block;
  gridDim = setting.grid;
  num_threads = static_cast<int>(setting.block.x * setting.block.y * setting.block.z);
  while (static_cast<int>(threads.size()) < num_threads) threads.push_back(NewThread());
  int number = 0;
  for (unsigned z = 0; z < setting.block.z; ++z) {
    for (unsigned y = 0; y < setting.block.y; ++y) {
      for (unsigned x = 0; x < setting.block.x; ++x) threads[number++]->index = {x, y, z};
    }
  }
  dynamic_shared = Allocate(setting.dynamic_shared_bytes);
  const dim3 grid = setting.grid;
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::size_t block = is_reverse ? blocks - 1 - i : i;
    blockIdx = {static_cast<unsigned>(block % grid.x),
                static_cast<unsigned>(block / grid.x % grid.y),
                static_cast<unsigned>(block / grid.x / grid.y)};
    for (const SharedArray& array : shared_arrays) std::memset(array.data, Garbage(), array.bytes);
    std::memset(dynamic_shared, Garbage(), setting.dynamic_shared_bytes);
    RunBlock();
  }
  std::free(dynamic_shared);
}

inline void CheckSetting(const LaunchSetting& setting) {
  const std::size_t count = std::size_t{setting.block.x} * setting.block.y * setting.block.z;
  const std::size_t most = setting.most_threads != 0 ? setting.most_threads : 1024;
  if (count == 0 || count > most) {
    Fail("it is launched with " + std::to_string(count) + " threads a block, and takes 1 to " +
         std::to_string(most));
  }
  if (setting.grid.x == 0 || setting.grid.y == 0 || setting.grid.z == 0 || setting.grid.y > 65535 ||
      setting.grid.z > 65535) {
    Fail("it is launched with a grid that a GPU refuses");
  }
}

inline void CompareOrders(const Tensors& tensors) {
  for (std::size_t i = 0; i < tensors.bytes.size(); ++i) {
    if (std::memcmp(tensors.in_order[i], tensors.in_reverse[i], tensors.bytes[i]) == 0) continue;
    blockIdx = {0, 0, 0};
    Fail("tensor " + std::to_string(i) +
         " differs if the threads run in reverse order: a barrier is missing, or the kernel reads "
         "memory that no thread wrote");
  }
}

template <typename... P, std::size_t... I>
void Call(void (*kernel)(P...), const std::vector<void*>& given, std::index_sequence<I...>) {
  kernel(static_cast<P>(given[I])...);
}

template <typename... P>
void Launch(const LaunchSetting& setting, void (*kernel)(P...), const Tensors& tensors) {
  struct Given {
    void (*kernel)(P...);
    std::vector<void*> tensors;
  };
  kernel_name = setting.name;
  CheckSetting(setting);
  if (setting.tensors.size() != sizeof...(P)) Fail("it is given too few or too many tensors");
  for (const bool reverse : {false, true}) {
    is_reverse = reverse;
    Given given{kernel, {}};
    for (const int i : setting.tensors) {
      given.tensors.push_back((reverse ? tensors.in_reverse : tensors.in_order)[i]);
    }
    arguments = &given;
    body = [](const void* pointer) {
      const auto& of = *static_cast<const Given*>(pointer);
      Call(of.kernel, of.tensors, std::index_sequence_for<P...>{});
    };
    RunGrid(setting);
  }
  CompareOrders(tensors);
}

// Reads the tensors from standard input, one after the other, and writes them to standard output
// after all launches.
inline int Main(const std::vector<std::size_t>& bytes, void (*launches)(const Tensors&)) {
  Tensors tensors{bytes, {}, {}};
  for (const std::size_t size : bytes) {
    tensors.in_order.push_back(Allocate(size));
    tensors.in_reverse.push_back(Allocate(size));
    if (std::fread(tensors.in_order.back(), 1, size, stdin) != size) {
      Fail("standard input ends before the tensors do");
    }
    std::memcpy(tensors.in_reverse.back(), tensors.in_order.back(), size);
  }
  launches(tensors);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (std::fwrite(tensors.in_order[i], 1, bytes[i], stdout) != bytes[i]) {
      Fail("its results cannot be written");
    }
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace cuda_emulation

// Several fibers use the same pointers, so the compiler must not rely on `__restrict__`.
#define __restrict__
