// How the fake GPU does its work: at once, or later, in a thread for each stream.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <random>

#include "fake_cuda.h"

namespace fake_cuda {
namespace {

// The largest number of a graph's nodes that run at the same time.
constexpr int kLanes = 4;

int SeedFromEnvironment() {
  const char* seed = std::getenv("FAKE_CUDA_ASYNC");
  return seed == nullptr ? 0 : std::atoi(seed);
}

// The seed of the random delays. 0 if work is done at once.
std::atomic<int>& Seed() {
  static auto* seed = new std::atomic<int>(SeedFromEnvironment());
  return *seed;
}

std::mt19937 NewRandom() {
  static std::atomic<int> count{0};
  return std::mt19937(static_cast<unsigned>(Seed() * 7919 + count++));
}

// The computed clock of the stream for which the calling thread works; null in the thread of an
// asynchronous stream.
int64_t*& CurrentClock() {
  thread_local int64_t* clock = nullptr;
  return clock;
}

// While this object lives, work that the calling thread does advances the given clock.
class OnClock {
 public:
  explicit OnClock(int64_t* clock) : before_(CurrentClock()) { CurrentClock() = clock; }
  ~OnClock() { CurrentClock() = before_; }
  OnClock(const OnClock&) = delete;
  OnClock& operator=(const OnClock&) = delete;

 private:
  int64_t* before_;
};

// Half of all work starts at once, and some starts much later than the rest.
void Delay(std::mt19937* random) {
  const unsigned drawn = (*random)() % 16;
  if (drawn < 8) return;
  std::this_thread::sleep_for(std::chrono::microseconds(drawn == 15 ? 1000 : 20 * (drawn - 7)));
}

// Does a piece of work, unless the GPU has failed.
void Do(const Work& work, double ms = kWorkMs) {
  if (CurrentClock() != nullptr) TakeTime(ms);
  if (work && TheState().unnoticed_failure == kSuccess) work();
}

void RunLanes(const std::vector<Node>& nodes) {
  std::mt19937 random = NewRandom();
  std::vector<int> lane_of(nodes.size());
  for (int& lane : lane_of) lane = static_cast<int>(random() % kLanes);
  std::vector<Moment> ends(nodes.size());
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes.emplace_back([&, lane, own = NewRandom()]() mutable {
      for (size_t i = 0; i < nodes.size(); ++i) {
        if (lane_of[i] != lane) continue;
        for (int earlier : nodes[i].after) ends[earlier].Await();
        Delay(&own);
        Do(nodes[i].work);
        ends[i].Happen();
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
}

// Does the work of a graph at once, and computes when each node would have ended.
void RunOnClocks(const std::vector<Node>& nodes) {
  if (nodes.empty()) return;
  int64_t& clock = *CurrentClock();
  const int64_t began = clock + TheState().graph_start_ns;
  std::vector<int64_t> ends(nodes.size(), began);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (int earlier : nodes[i].after) ends[i] = std::max(ends[i], ends[earlier]);
    ends[i] += TheState().node_ns;
    const OnClock on(&ends[i]);
    Do(nodes[i].work);
  }
  clock = *std::max_element(ends.begin(), ends.end());
}

}  // namespace

// Does the work of one stream in order, in a thread of its own. The thread keeps this object alive.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  void Start() {
    std::thread([self = shared_from_this()] { self->Loop(); }).detach();
  }
  void Push(Work work, bool takes_time) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({std::move(work), takes_time});
    changed_.notify_one();
  }
  void End() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    changed_.notify_one();
  }

 private:
  struct Item {
    Work work;
    bool takes_time;
  };

  void Loop() {
    std::mt19937 random = NewRandom();
    while (true) {
      Item item;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return is_ending_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
      }
      if (item.takes_time) {
        Delay(&random);
        Do(item.work);
      } else {
        item.work();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  bool is_ending_ = false;
};

void Moment::Happen() {
  const std::lock_guard<std::mutex> lock(mutex_);
  has_happened_ = true;
  time_ns_ = NowNs();
  changed_.notify_all();
}

void Moment::Await() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return has_happened_; });
  int64_t* const clock = CurrentClock();
  if (clock != nullptr) *clock = std::max(*clock, time_ns_);
}

bool Moment::has_happened() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return has_happened_;
}

double Moment::time_ms() { return static_cast<double>(time_ns()) * 1e-6; }

int64_t Moment::time_ns() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return time_ns_;
}

void Remember(const void* object) {
  static auto* remembered = new std::vector<const void*>;
  remembered->push_back(object);
}

bool IsAsynchronous() { return Seed() != 0; }

bool Toss() {
  static auto* random = new std::mt19937(NewRandom());  // The caller has the lock of its call.
  return IsAsynchronous() && (*random)() % 2 == 0;
}

void TakeTime(double ms) {
  if (CurrentClock() == nullptr) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
  } else {
    *CurrentClock() += static_cast<int64_t>(ms * 1e6);
  }
}

int64_t NowNs() {
  if (CurrentClock() != nullptr) return *CurrentClock();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// If work is not asynchronous, it is done here, after the lock of the call is released. The work
// may need Python's GIL. Another thread may hold the GIL while it waits for the lock of a call, so
// work under this lock could wait forever.
Call::~Call() {
  std::vector<Work> work;
  std::swap(work, TheState().deferred);
  lock_.unlock();
  for (const Work& piece : work) piece();
}

static void Push(Stream* stream, Work work, bool takes_time, double ms = kWorkMs) {
  if (!IsAsynchronous()) {
    // The GPU waits if the host makes its call later than the GPU could begin.
    const int64_t called_ns = TheState().host_ns;
    TheState().deferred.push_back([=, work = std::move(work)] {
      stream->clock_ns = std::max(stream->clock_ns, called_ns);
      const OnClock on(&stream->clock_ns);
      takes_time ? Do(work, ms) : work();
    });
    return;
  }
  if (stream->worker == nullptr) {
    stream->worker = std::make_shared<Worker>();
    stream->worker->Start();
  }
  stream->worker->Push(std::move(work), takes_time);
}

static void After(Stream* stream, Stream* earlier) {
  if (IsAsynchronous() && earlier->worker == nullptr) return;
  EnqueueMark(stream, [end = EndOf(earlier)] { end->Await(); });
}

// CUDA's documentation: "The legacy default stream is an implicit stream which synchronizes with
// all other streams in the same CUcontext except for non-blocking streams."
static void AwaitDefaultStream(Stream* stream) {
  if (stream->id != 0) {
    if (stream->is_blocking) After(stream, &TheState().default_streams[stream->device]);
    return;
  }
  for (Stream* other : TheState().streams) {
    if (other->is_blocking && other->device == stream->device) After(stream, other);
  }
}

int RefuseWhileCapturing() {
  bool is_refused = false;
  for (const auto& capture : TheState().captures) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    if (capture->mode != kGlobal && (capture->mode == kRelaxed || !is_own)) continue;
    capture->is_valid = false;
    is_refused = true;
  }
  return is_refused ? kCaptureUnsupported : kSuccess;
}

int RefuseStream(Stream* stream) {
  if (!stream->is_alive) return kInvalidHandle;
  if (stream->capture != nullptr) {
    return stream->capture->is_valid ? kSuccess : int{kCaptureInvalidated};
  }
  if (stream->id != 0) return kSuccess;
  // CUDA's documentation: "When any stream in the same context is being captured, and it was not
  // created with cudaStreamNonBlocking, any attempted use of the legacy stream is invalid."
  for (Stream* other : TheState().streams) {
    if (other->capture == nullptr || !other->is_blocking || other->device != stream->device) {
      continue;
    }
    other->capture->is_valid = false;
    return kCaptureImplicit;
  }
  return kSuccess;
}

int Enqueue(Stream* stream, Work work, double ms) {
  if (const int refused = RefuseStream(stream)) return refused;
  if (stream->capture != nullptr) {
    std::vector<Node>& nodes = stream->capture->graph->nodes;
    nodes.push_back({std::move(work), stream->frontier});
    stream->frontier = {static_cast<int>(nodes.size()) - 1};
  } else {
    AwaitDefaultStream(stream);
    TheState().host_ns += TheState().launch_ns;
    Push(stream, std::move(work), true, ms);
  }
  return kSuccess;
}

int Launch(Stream* stream, const std::string& name, Work work) {
  // "A kernel launch will fail if it is issued to a stream that is not associated to the current
  // device."
  if (stream->is_alive && stream->device != CurrentDevice()) return kInvalidHandle;
  const int failure = FailureOfNextWork(name);
  if (failure != kSuccess) work = [failure] { TheState().unnoticed_failure = failure; };
  return Enqueue(stream, std::move(work));
}

void EnqueueMark(Stream* stream, Work mark) { Push(stream, std::move(mark), false); }

std::shared_ptr<Moment> EndOf(Stream* stream) {
  auto end = std::make_shared<Moment>();
  EnqueueMark(stream, [end] { end->Happen(); });
  return end;
}

Moments EndsOfAll() {
  Moments ends = TheState().ends_of_destroyed;
  const auto add = [&](Stream* stream) {
    if (!IsAsynchronous() || stream->worker != nullptr) ends.push_back(EndOf(stream));
  };
  for (Stream& stream : TheState().default_streams) add(&stream);
  for (Stream* stream : TheState().streams) {
    if (stream->is_alive) add(stream);
  }
  return ends;
}

Work RunGraph(std::shared_ptr<const std::vector<Node>> nodes) {
  return [nodes = std::move(nodes)] {
    if (CurrentClock() == nullptr) {
      RunLanes(*nodes);
    } else {
      RunOnClocks(*nodes);
    }
  };
}

void EndWorker(Stream* stream) {
  if (stream->worker == nullptr) return;
  TheState().ends_of_destroyed.push_back(EndOf(stream));
  stream->worker->End();
  stream->worker = nullptr;
}

}  // namespace fake_cuda

extern "C" {

// A switch for tests: from now on, work is done later and asynchronously, with random delays from
// this seed. With seed 0, work is done at once. No work may be unfinished when this function is
// called.
void FakeCudaSetDelays(int seed) { fake_cuda::Seed() = seed; }
}
