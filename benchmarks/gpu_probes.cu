// Measures what a GPU and its driver cost apart from kernels: launches, gaps, events, allocations.
//
// `gpu_steps.py` builds this file with nvcc on the GPU's machine and runs it. Each line of the output
// is one JSON object with the name of a probe. Times are in microseconds, and are medians unless the
// name says otherwise.

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

// Waits for a number of clock cycles. The clock is that of the multiprocessor.
__global__ void Spin(long long cycles) {
  const long long began = clock64();
  while (clock64() - began < cycles) {
  }
}

// Lets the next kernel of the stream start early, and itself waits for the kernel before it.
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

// A graph of what `issue` puts on `stream`.
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

// Puts `each` on all `streams`, which fork from the first stream and join it again.
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

// Two events with nothing, an empty kernel, or a graph of one empty kernel between them.
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

// What one launch of a graph costs the host and the GPU, by nodes and parallel branches.
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

// How many kernels of one block run at once, each on its stream, launched and in a graph.
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
  CHECK(cudaDeviceSynchronize());
  return 0;
}
