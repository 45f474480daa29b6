// A fake CUDA that needs no GPU: the declarations that the fake libraries share. Memory is the
// host's. Every call is logged. A checker reads the log, and says whether a GPU could do the work
// in another order that gives wrong results.
//
// There are two ways to do work. By default, the calling thread does the work of a call before the
// call returns. If the environment variable FAKE_CUDA_ASYNC is set, each stream has a thread of its
// own, which does the stream's work later, after random delays. The variable's value is the seed of
// the delays. Then only events order the threads.
//
// The calls refuse everything that CUDA refuses according to its documentation. The comments quote
// the documentation. Where CUDA leaves the behaviour open, the fake chooses what is worst for the
// caller.
#ifndef TESTS_FAKE_CUDA_FAKE_CUDA_H_
#define TESTS_FAKE_CUDA_FAKE_CUDA_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fake_cuda {

// The numbers of `cudaError_t`. The driver's numbers are the same.
enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kMemoryAllocation = 2,
  kInitializationError = 3,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kNoImageForDevice = 209,
  kPeerAccessUnsupported = 217,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kPeerAccessAlreadyEnabled = 704,
  kLaunchFailure = 719,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureMerge = 902,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};

// The modes of `cudaStreamBeginCapture`.
enum CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

using Work = std::function<void()>;

// A moment that happens once, such as the end of all work that was put on a stream until now.
class Moment {
 public:
  void Happen();
  void Await();
  bool has_happened();
  double time_ms();
  int64_t time_ns();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_happened_ = false;
  int64_t time_ns_ = 0;
};
using Moments = std::vector<std::shared_ptr<Moment>>;

// A node of a graph: its work, and the earlier nodes that must end before it.
struct Node {
  Work work;
  std::vector<int> after;
};

struct Graph {
  int id = 0;
  std::vector<Node> nodes;
  std::vector<std::vector<int>> ends;  // For each child graph, the nodes at its end.
};

struct Stream;

// A capture that has begun. Work that is put on its streams goes into the graph.
struct Capture {
  std::unique_ptr<Graph> graph;
  Stream* origin = nullptr;
  std::thread::id thread;
  int mode = kGlobal;
  bool is_valid = true;
  bool is_over = false;
};

class Worker;

struct Stream {
  int id = 0;  // The streams that nobody made, one for each device, all have the number 0.
  int device = 0;
  bool is_blocking = false;  // Whether the stream and the default stream wait for each other.
  bool is_alive = true;
  std::shared_ptr<Capture> capture;
  std::vector<int> frontier;       // In a capture, the nodes that the next node comes after.
  std::shared_ptr<Worker> worker;  // The stream's thread. Null until the first asynchronous work.
  int64_t clock_ns = 0;  // Unless work is asynchronous: when the stream's work so far ends.
};

struct Event {
  int id = 0;
  int device = 0;
  bool has_timing = true;
  bool is_alive = true;
  std::shared_ptr<Moment> moment;    // Null until the event is recorded outside of a capture.
  std::shared_ptr<Capture> capture;  // The capture in which the event was recorded last, if any.
  std::vector<int> frontier;         // The nodes of the capture that the event comes after.
};

struct GraphExec {
  int id = 0;
  std::shared_ptr<const std::vector<Node>> nodes;
  std::shared_ptr<Moment> last_launch;
};

// A block of memory on a device, or of pinned memory of the host (then the device is -1).
struct Block {
  size_t nbytes = 0;
  int device = -1;
};

struct State {
  int num_devices = 3;
  int next_id = 1;
  std::vector<Stream> default_streams;  // One for each device.
  std::vector<Stream*> streams;         // Destroyed streams too.
  std::vector<Event*> events;           // Destroyed events too, so that nothing is leaked.
  Moments ends_of_destroyed;            // The ends of the work of destroyed streams.
  std::vector<std::shared_ptr<Capture>> captures;  // The captures that have not ended.
  std::map<const char*, Block> blocks;             // By address.
  std::vector<std::pair<int, int>> peers;
  bool can_access_peers = true;
  std::vector<Work> deferred;  // What this call does at its end, if work is not asynchronous.
  int owner = 0;               // The process that first used CUDA.
  std::atomic<int> failure{
      0};  // The failure of the GPU that the host has noticed. All later calls return it.
  std::atomic<int> unnoticed_failure{0};  // The failure that the GPU has had.
  // If work is not asynchronous, time is computed. Each stream has a clock. Work begins when the
  // stream's earlier work has ended and the host has made its call. Streams, and nodes of a graph
  // that do not wait for each other, overlap without slowing each other down.
  int64_t host_ns = 0;         // When the host makes its next call.
  int64_t launch_ns = 0;       // How long the host takes to put one piece of work on a stream.
  int64_t node_launch_ns = 0;  // How long the host takes for each node of a graph that it launches.
  int64_t graph_start_ns = 0;  // The time from the launch of a graph to its first node.
  int64_t node_ns = 0;         // The time from the end of a node to the start of the next.
};

State& TheState();

// The name of a status, as CUDA gives it.
const char* NameOf(int status);

// The state of the calling thread.
int& CurrentDevice();
int& LastError();

// A call of the fake CUDA, from its beginning to its end. Calls of several threads take turns.
class Call {
 public:
  explicit Call(const char* name);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // The status with which CUDA refuses every call of this process after a failure of the GPU or a
  // fork.
  int process_status() const { return process_status_; }
  // The status that this call must return because a test injected a failure; `kSuccess` if no
  // failure was injected.
  int injected() const { return injected_; }

 private:
  std::unique_lock<std::mutex> lock_;
  int process_status_ = kSuccess;
  int injected_ = kSuccess;
};

// Makes a call of the driver: returns what `body` returns, unless the call is refused before.
template <typename Body>
int DriverCall(const char* name, Body&& body) {
  const Call call(name);
  if (call.process_status() != kSuccess) return call.process_status();
  if (call.injected() != kSuccess) return call.injected();
  return body();
}

// Makes a call of the runtime, which remembers its last error for each thread.
template <typename Body>
int RuntimeCall(const char* name, Body&& body) {
  const int status = DriverCall(name, std::forward<Body>(body));
  if (status != kSuccess) LastError() = status;
  return status;
}

// Waits until all given moments (see `Moment`) have happened, and notices a failure of the GPU.
// Other threads may call the fake CUDA while this one waits.
int AwaitAll(const Moments& moments);

// Called for a call that "may be unsafe" during a capture. Refuses the call if this thread has a
// capture that is not relaxed, or if any thread has a global capture. The capture then becomes
// invalid.
int RefuseWhileCapturing();

// The error status if no work can be put on a stream now. There are three cases: the stream is
// destroyed, its capture is invalid, or it is the default stream and would have to wait for a
// captured stream.
int RefuseStream(Stream* stream);

// The least time that the fake GPU takes for a kernel or a copy. It has no effect if work is
// asynchronous.
constexpr double kWorkMs = 1e-3;
// Puts work on a stream. If the stream is being captured, the work goes into the graph.
int Enqueue(Stream* stream, Work work, double ms = kWorkMs);
// Puts the work of a kernel on a stream of the current device.
int Launch(Stream* stream, const std::string& name, Work work);
// Puts work that takes no time on a stream that is not captured: the record of an event, or a wait.
void EnqueueMark(Stream* stream, Work mark);
// A moment that happens when the stream's work so far has ended.
std::shared_ptr<Moment> EndOf(Stream* stream);
// A moment that happens when the work so far of all streams has ended.
Moments EndsOfAll();
Work RunGraph(std::shared_ptr<const std::vector<Node>> nodes);
// Lets the thread of a destroyed stream end after the stream's work.
void EndWorker(Stream* stream);

// Advances the clock of the stream for which this thread works.
void TakeTime(double ms);
int64_t NowNs();
bool IsAsynchronous();
// Whether a test has switched off the waits of a function, such as `cudaStreamWaitEvent`.
bool IsWithoutWait(const char* call);
// Returns true or false at random, where CUDA may behave in either way. Always false unless work is
// asynchronous.
bool Toss();

Stream* Resolve(void* stream);
// Remembers an object that the program may never destroy. So leak checkers do not report it. The
// caller must hold the lock of its call.
void Remember(const void* object);
// The block of memory in which some bytes lie, or null.
const Block* BlockOf(const void* address, size_t nbytes);

// One line of the log, a JSON object. The line is written when this object is destroyed.
class Line {
 public:
  explicit Line(const char* call);
  ~Line();
  Line& Add(const char* key, int64_t value);
  Line& Add(const char* key, const void* address);
  Line& Add(const char* key, const std::string& text);

 private:
  bool is_on_;
  std::string text_;
};

// The status that a test injected for the next call of this name; `kSuccess` if there is none.
int FailureOfNextCall(const std::string& name);
// The status that a test injected for the next kernel or copy of this name, which then fails on the
// GPU; `kSuccess` if there is none.
int FailureOfNextWork(const std::string& name);

}  // namespace fake_cuda

#endif  // TESTS_FAKE_CUDA_FAKE_CUDA_H_
