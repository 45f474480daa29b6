// A fake CUDA that needs no GPU: the declarations that the fake libraries share. Memory is the
// host's, and the host does all work at once, in the order of the calls. Every call is logged. A
// checker reads the log, and says whether a GPU could choose another order with wrong results. Only
// one host thread may use the fake CUDA.
#ifndef TESTS_FAKE_CUDA_FAKE_CUDA_H_
#define TESTS_FAKE_CUDA_FAKE_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fake_cuda {

enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidDevice = 101,
  kInvalidHandle = 400,
  kPeerAccessAlreadyEnabled = 704,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
};

struct Graph {
  int id = 0;
  std::vector<std::function<void()>> nodes;
  int num_children = 0;
};

// A capture in progress. Work that is put on its streams goes into the graph.
struct Capture {
  Graph* graph = nullptr;
  bool is_valid = true;
};

struct Stream {
  int id = 0;
  int device = 0;
  bool is_alive = true;
  Capture* capture = nullptr;
};

struct Event {
  int id = 0;
  int device = 0;
  bool is_alive = true;
  Capture* capture = nullptr;  // The capture in which the event was recorded last.
  double time_ms = 0;
};

struct GraphExec {
  int id = 0;
  std::vector<std::function<void()>> nodes;
};

struct State {
  int num_devices = 3;
  int device = 0;  // The current device. There is only one calling thread.
  int next_id = 1;
  Stream null_stream;
  std::vector<Stream*> streams;
  std::vector<Event*> events;
  Capture* capture = nullptr;  // The capture in progress. There is at most one at a time.
  double clock_ms = 0;
  std::vector<std::pair<int, int>> peers;
  bool can_access_peers = true;
};

State& TheState();

// Returns the status with which a test made the next call of this name fail, or success.
int Injected(const char* call);
#define FAKE_CUDA_CALL(name)                                \
  do {                                                      \
    const int injected = ::fake_cuda::Injected(name);       \
    if (injected != ::fake_cuda::kSuccess) return injected; \
  } while (false)

// For calls that a GPU cannot capture: they make the capture in progress fail.
int RefuseWhileCapturing();

// Puts work on a stream. If the stream is being captured, the work goes into the graph. Otherwise
// it is done now.
int Enqueue(Stream* stream, std::function<void()> work);

// Does the work. On the fake GPU's clock it takes one microsecond.
void Do(const std::function<void()>& work);

Stream* Resolve(void* stream);

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

}  // namespace fake_cuda

#endif  // TESTS_FAKE_CUDA_FAKE_CUDA_H_
