// A CUDA with no GPU: what the two fake libraries share. Work is done at once, in the order of the
// calls, on the host; memory is the host's. Every call is logged, for a checker to say whether
// another order, that a GPU may choose, would have been wrong. For one host thread.
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

// A capture under way: what is put on its streams goes into the graph.
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
  Capture* capture = nullptr;  // In which it was recorded last.
  double time_ms = 0;
};

struct GraphExec {
  int id = 0;
  std::vector<std::function<void()>> nodes;
};

struct State {
  int num_devices = 3;
  int device = 0;  // Of the calling thread; there is one.
  int next_id = 1;
  Stream null_stream;
  std::vector<Stream*> streams;
  std::vector<Event*> events;
  Capture* capture = nullptr;  // One at a time.
  double clock_ms = 0;
  std::vector<std::pair<int, int>> peers;
  bool can_access_peers = true;
};

State& TheState();

// The status that the next call of this name was told to fail with, or success.
int Injected(const char* call);
#define FAKE_CUDA_CALL(name)                                \
  do {                                                      \
    const int injected = ::fake_cuda::Injected(name);       \
    if (injected != ::fake_cuda::kSuccess) return injected; \
  } while (false)

// Calls that a GPU cannot record: the capture under way is lost.
int RefuseWhileCapturing();

// Puts work on a stream: into the graph where it is being captured, or else done now.
int Enqueue(Stream* stream, std::function<void()> work);

// Does work, which takes a microsecond.
void Do(const std::function<void()>& work);

Stream* Resolve(void* stream);

// One line of the log: a JSON object, written when the line ends.
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
