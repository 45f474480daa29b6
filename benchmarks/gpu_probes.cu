// Measures what a GPU and its driver cost apart from kernels: launches, gaps, events, allocations.
//
// `gpu_steps.py` builds this file with nvcc on the GPU's machine and runs it. Each line of the output
// is one JSON object with the name of a probe. Times are in microseconds, and are medians unless the
// name says otherwise.

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

#define CHECK(call)                                                                      \
  do {                                                                                   \
    const cudaError_t status = (call);                                                   \
    if (status != cudaSuccess) {                                                         \
      std::fprintf(stderr, "%s failed: %s\n", #call, cudaGetErrorString(status));        \
      std::exit(1);                                                                      \
    }                                                                                    \
  } while (false)

constexpr int kRounds = 31;

__global__ void Nothing() {}

// A kernel that waits for a number of clock cycles of its multiprocessor.
__global__ void Spin(long long cycles) {
  const long long began = clock64();
  while (clock64() - began < cycles) {
  }
}

// A kernel that lets the next kernel of its stream start early, and waits for the kernel before it.
__global__ void SpinDependent(long long cycles) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  const long long began = clock64();
  while (clock64() - began < cycles) {
  }
}

double Median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers[numbers.size() / 2];
}

long long CyclesOf(double us) {
  int khz = 0;
  CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
  return static_cast<long long>(us * khz / 1000);
}

cudaStream_t NewStream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

cudaEvent_t NewEvent(unsigned flags = cudaEventDefault) {
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, flags));
  return event;
}

double Between(cudaEvent_t began, cudaEvent_t ended) {
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, began, ended));
  return static_cast<double>(ms) * 1e3;
}

// The GPU's time for `work`, between two events on `stream`.
double GpuUs(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t began = NewEvent(), ended = NewEvent();
  std::vector<double> us;
  for (int round = -3; round < kRounds; ++round) {
    CHECK(cudaEventRecord(began, stream));
    work();
    CHECK(cudaEventRecord(ended, stream));
    CHECK(cudaStreamSynchronize(stream));
    if (round >= 0) us.push_back(Between(began, ended));
  }
  CHECK(cudaEventDestroy(began));
  CHECK(cudaEventDestroy(ended));
  return Median(us);
}

// The host's time for `work`, which does not wait for the GPU.
double HostUs(cudaStream_t stream, const std::function<void()>& work) {
  std::vector<double> us;
  for (int round = -3; round < kRounds; ++round) {
    const auto began = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    CHECK(cudaStreamSynchronize(stream));
    if (round >= 0) us.push_back(took.count());
  }
  return Median(us);
}

// A CUDA graph of the work that `issue` puts on `stream`.
cudaGraphExec_t Captured(cudaStream_t stream, const std::function<void()>& issue) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  issue();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  return exec;
}

// Puts the work `each` on every one of `streams`. All other streams wait for the first stream
// before this work, and the first stream waits for them after the work.
void ForkAndJoin(const std::vector<cudaStream_t>& streams,
                 const std::function<void(cudaStream_t)>& each) {
  static const cudaEvent_t fork = NewEvent(cudaEventDisableTiming);
  static std::vector<cudaEvent_t> joins;
  while (joins.size() < streams.size()) joins.push_back(NewEvent(cudaEventDisableTiming));
  CHECK(cudaEventRecord(fork, streams[0]));
  for (size_t s = 1; s < streams.size(); ++s) CHECK(cudaStreamWaitEvent(streams[s], fork, 0));
  for (cudaStream_t stream : streams) each(stream);
  for (size_t s = 1; s < streams.size(); ++s) {
    CHECK(cudaEventRecord(joins[s], streams[s]));
    CHECK(cudaStreamWaitEvent(streams[0], joins[s], 0));
  }
}

void LaunchDependent(cudaStream_t stream, long long cycles) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(1);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, SpinDependent, cycles));
}

void Device() {
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  int driver = 0, runtime = 0, least = 0, greatest = 0;
  size_t free_bytes = 0, total_bytes = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  std::printf(
      "{\"probe\": \"device\", \"name\": \"%s\", \"arch\": %d, \"multiprocessors\": %d, "
      "\"driver\": %d, \"runtime\": %d, \"priorities\": %d, \"free_bytes\": %zu, "
      "\"total_bytes\": %zu, \"l2_bytes\": %d, \"connections\": %s}\n",
      device.name, device.major * 10 + device.minor, device.multiProcessorCount, driver, runtime,
      least - greatest + 1, free_bytes, total_bytes, device.l2CacheSize,
      connections == nullptr ? "null" : connections);
}

// The time between two events. Between the events is nothing, an empty kernel, or a graph of one
// empty kernel.
void Events(cudaStream_t stream) {
  const auto nothing = [] {};
  const auto kernel = [&] { Nothing<<<1, 1, 0, stream>>>(); };
  cudaGraphExec_t exec = Captured(stream, kernel);
  const auto graph = [&] { CHECK(cudaGraphLaunch(exec, stream)); };
  const double of_nothing = GpuUs(stream, nothing), of_kernel = GpuUs(stream, kernel);
  std::printf(
      "{\"probe\": \"between events\", \"nothing\": %.2f, \"kernel\": %.2f, \"graph\": %.2f}\n",
      of_nothing, of_kernel, GpuUs(stream, graph));
  CHECK(cudaGraphExecDestroy(exec));
}

// The gap between kernels that follow each other, from chains of 100 and 200 kernels.
void Gaps(cudaStream_t stream) {
  const double kernel_us = 10;
  const long long cycles = CyclesOf(kernel_us);
  const auto plain = [&] { Spin<<<1, 1, 0, stream>>>(cycles); };
  const auto dependent = [&] { LaunchDependent(stream, cycles); };
  struct Way {
    const char* name;
    std::function<void()> launch;
    bool in_graph;
  };
  for (const Way& way : {Way{"launched", plain, false}, Way{"in a graph", plain, true},
                         Way{"in a graph, launched early", dependent, true}}) {
    double us[2];
    for (int twice = 0; twice < 2; ++twice) {
      const auto chain = [&] {
        for (int i = 0; i < 100 << twice; ++i) way.launch();
      };
      if (!way.in_graph) {
        us[twice] = GpuUs(stream, chain);
        continue;
      }
      cudaGraphExec_t exec = Captured(stream, chain);
      us[twice] = GpuUs(stream, [&] { CHECK(cudaGraphLaunch(exec, stream)); });
      CHECK(cudaGraphExecDestroy(exec));
    }
    std::printf("{\"probe\": \"gap\", \"way\": \"%s\", \"kernel_and_gap\": %.2f, \"kernel\": %.2f}\n",
                way.name, (us[1] - us[0]) / 100, kernel_us);
  }
}

// The time that one launch of a graph takes on the host and on the GPU, by the numbers of nodes and
// parallel branches.
void Launches(const std::vector<cudaStream_t>& streams) {
  for (int nodes : {8, 64, 512, 2048}) {
    for (int branches : {1, 2, 8}) {
      const std::vector<cudaStream_t> used(streams.begin(), streams.begin() + branches);
      cudaGraphExec_t exec = Captured(used[0], [&] {
        ForkAndJoin(used, [&](cudaStream_t stream) {
          for (int i = 0; i < nodes / branches; ++i) Nothing<<<1, 1, 0, stream>>>();
        });
      });
      const auto launch = [&] { CHECK(cudaGraphLaunch(exec, used[0])); };
      const double host = HostUs(used[0], launch);
      std::printf(
          "{\"probe\": \"launch\", \"nodes\": %d, \"branches\": %d, \"host\": %.2f, "
          "\"gpu\": %.2f}\n",
          nodes, branches, host, GpuUs(used[0], launch));
      CHECK(cudaGraphExecDestroy(exec));
    }
  }
}

// How many kernels run at once if each has one block and a stream of its own. The number is
// measured for kernels that the host launches, and for kernels in a graph.
void Concurrency(const std::vector<cudaStream_t>& streams) {
  const long long cycles = CyclesOf(500);
  double alone[2] = {0, 0};
  for (int number : {1, 2, 4, 8, 16, 32, 64}) {
    const std::vector<cudaStream_t> used(streams.begin(), streams.begin() + number);
    const auto issue = [&] {
      ForkAndJoin(used, [&](cudaStream_t stream) { Spin<<<1, 1, 0, stream>>>(cycles); });
    };
    cudaGraphExec_t exec = Captured(used[0], issue);
    const double launched = GpuUs(used[0], issue);
    const double in_graph = GpuUs(used[0], [&] { CHECK(cudaGraphLaunch(exec, used[0])); });
    CHECK(cudaGraphExecDestroy(exec));
    if (number == 1) {
      alone[0] = launched;
      alone[1] = in_graph;
    }
    std::printf(
        "{\"probe\": \"concurrency\", \"streams\": %d, \"at_once_launched\": %.2f, "
        "\"at_once_in_graph\": %.2f}\n",
        number, number * alone[0] / launched, number * alone[1] / in_graph);
  }
}

// The time from an event on one stream to an event on a stream that waits for the first event. If
// it is negative, the clocks of the streams differ.
void AcrossStreams(cudaStream_t first, cudaStream_t second) {
  const long long cycles = CyclesOf(20);
  std::vector<double> us;
  cudaEvent_t ended = NewEvent(), began = NewEvent();
  for (int round = 0; round < 1000; ++round) {
    Spin<<<1, 1, 0, first>>>(cycles);
    CHECK(cudaEventRecord(ended, first));
    CHECK(cudaStreamWaitEvent(second, ended, 0));
    CHECK(cudaEventRecord(began, second));
    CHECK(cudaStreamSynchronize(second));
    us.push_back(Between(ended, began));
  }
  std::sort(us.begin(), us.end());
  std::printf(
      "{\"probe\": \"across streams\", \"least\": %.3f, \"median\": %.3f, \"most\": %.3f}\n",
      us.front(), us[us.size() / 2], us.back());
}

// Finds a function of the driver, which this program is not linked with.
template <typename Function>
Function* DriverFunction(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12050, cudaEnableDefault, &status);
  if (error == cudaSuccess && status == cudaDriverEntryPointSuccess) {
    return reinterpret_cast<Function*>(found);
  }
  cudaGetLastError();
  return nullptr;
}

// A stream that has some multiprocessors of the GPU for itself, or null and the reason.
struct Partition {
  cudaStream_t stream = nullptr;
  unsigned multiprocessors = 0;
  const char* failed = "";
};

Partition NewPartition(const CUdevResource& part) {
  auto* describe = DriverFunction<decltype(cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc");
  auto* make = DriverFunction<decltype(cuGreenCtxCreate)>("cuGreenCtxCreate");
  auto* make_stream = DriverFunction<decltype(cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate");
  if (!describe || !make || !make_stream) return {nullptr, 0, "a function is missing"};
  CUdevResource resource = part;
  CUdevResourceDesc description;
  CUgreenCtx context;
  CUstream stream;
  if (describe(&description, &resource, 1)) return {nullptr, 0, "cuDevResourceGenerateDesc"};
  if (make(&context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM)) {
    return {nullptr, 0, "cuGreenCtxCreate"};
  }
  if (make_stream(&stream, context, CU_STREAM_NON_BLOCKING, 0)) {
    return {nullptr, 0, "cuGreenCtxStreamCreate"};
  }
  return {stream, part.sm.smCount, ""};
}

// Two streams of green contexts have multiprocessors of their own. This probe tells whether each
// stream keeps its multiprocessors in a graph that is captured from both. One stream has a kernel
// that fills the GPU, and the other stream has a chain of short kernels. `alone` is the time of the
// chain by itself, and the other numbers are the time of the chain beside the kernel.
void GreenContexts(const std::vector<cudaStream_t>& streams) {
  auto* get = DriverFunction<decltype(cuDeviceGetDevResource)>("cuDeviceGetDevResource");
  auto* split = DriverFunction<decltype(cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
  CUdevResource all, parts[1], rest;
  unsigned number = 1;
  const char* failed = !get || !split ? "a function is missing" : "";
  if (!*failed && get(0, &all, CU_DEV_RESOURCE_TYPE_SM)) failed = "cuDeviceGetDevResource";
  if (!*failed && split(parts, &number, &all, &rest, 0, all.sm.smCount / 2)) {
    failed = "cuDevSmResourceSplitByCount";
  }
  Partition large, small;
  if (!*failed) large = NewPartition(parts[0]), failed = large.failed;
  if (!*failed) small = NewPartition(rest), failed = small.failed;
  if (*failed) {
    std::printf("{\"probe\": \"green contexts\", \"failed\": \"%s\"}\n", failed);
    return;
  }
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  const int blocks = device.multiProcessorCount * 4;
  const long long long_cycles = CyclesOf(200), short_cycles = CyclesOf(5);
  const auto chain = [&](cudaStream_t stream) {
    for (int i = 0; i < 20; ++i) Spin<<<8, 128, 0, stream>>>(short_cycles);
  };
  // The time of the chain on the second stream, beside the large kernel on the first.
  const auto beside_us = [&](cudaStream_t first, cudaStream_t second, bool is_captured) {
    cudaEvent_t fork = NewEvent(cudaEventDisableTiming), join = NewEvent(cudaEventDisableTiming);
    cudaEvent_t began = NewEvent(), ended = NewEvent();
    const unsigned flags = is_captured ? cudaEventRecordExternal : cudaEventRecordDefault;
    const auto issue = [&]() -> cudaError_t {
      cudaEventRecord(fork, first);
      cudaStreamWaitEvent(second, fork, 0);
      Spin<<<blocks, 1024, 0, first>>>(long_cycles);
      cudaEventRecordWithFlags(began, second, flags);
      chain(second);
      cudaEventRecordWithFlags(ended, second, flags);
      cudaEventRecord(join, second);
      return cudaStreamWaitEvent(first, join, 0);
    };
    std::vector<double> us;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (is_captured) {
      CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
      issue();
      if (cudaStreamEndCapture(first, &graph) || cudaGraphInstantiate(&exec, graph, 0)) {
        cudaGetLastError();
        return -1.0;
      }
    }
    for (int round = 0; round < kRounds; ++round) {
      CHECK(is_captured ? cudaGraphLaunch(exec, first) : issue());
      CHECK(cudaStreamSynchronize(first));
      us.push_back(Between(began, ended));
    }
    if (exec != nullptr) CHECK(cudaGraphExecDestroy(exec));
    return Median(us);
  };
  const double alone = GpuUs(streams[0], [&] { chain(streams[0]); });
  const double shared = beside_us(streams[0], streams[1], false);
  const double shared_in_graph = beside_us(streams[0], streams[1], true);
  const double apart = beside_us(large.stream, small.stream, false);
  const double apart_in_graph = beside_us(large.stream, small.stream, true);
  std::printf(
      "{\"probe\": \"green contexts\", \"multiprocessors\": [%u, %u], \"alone\": %.2f, "
      "\"beside\": %.2f, \"beside_in_graph\": %.2f, \"apart\": %.2f, \"apart_in_graph\": "
      "%.2f}\n",
      large.multiprocessors, small.multiprocessors, alone, shared, shared_in_graph, apart,
      apart_in_graph);
}

// The host's time to allocate and to free a workspace.
void Allocations() {
  for (size_t mebibytes : {1, 32, 256}) {
    std::vector<double> us;
    for (int round = 0; round < 5; ++round) {
      void* memory = nullptr;
      const auto began = std::chrono::steady_clock::now();
      CHECK(cudaMalloc(&memory, mebibytes << 20));
      CHECK(cudaFree(memory));
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - began;
      us.push_back(took.count());
    }
    std::printf("{\"probe\": \"allocate and free\", \"mebibytes\": %zu, \"host\": %.1f}\n",
                mebibytes, Median(us));
  }
}

}  // namespace

int main() {
  Device();
  std::vector<cudaStream_t> streams;
  for (int s = 0; s < 64; ++s) streams.push_back(NewStream());
  Events(streams[0]);
  Gaps(streams[0]);
  Launches(streams);
  Concurrency(streams);
  AcrossStreams(streams[0], streams[1]);
  Allocations();
  GreenContexts(streams);  // It comes last, because a GPU may refuse it.
  CHECK(cudaDeviceSynchronize());
  return 0;
}
