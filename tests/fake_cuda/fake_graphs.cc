// A fake libcudart.so.13: captures and graphs.

#include <algorithm>
#include <set>

#include "fake_cuda.h"

using fake_cuda::Capture;
using fake_cuda::Graph;
using fake_cuda::GraphExec;
using fake_cuda::kInvalidValue;
using fake_cuda::kSuccess;
using fake_cuda::Line;
using fake_cuda::Node;
using fake_cuda::Resolve;
using fake_cuda::RuntimeCall;
using fake_cuda::Stream;
using fake_cuda::TheState;

namespace {

std::unique_ptr<Graph> NewGraph() {
  auto graph = std::make_unique<Graph>();
  graph->id = TheState().next_id++;
  return graph;
}

// The last nodes of a graph: the nodes that no other node waits for.
std::vector<int> EndsOf(const std::vector<Node>& nodes) {
  std::set<int> inside;
  for (const Node& node : nodes) inside.insert(node.after.begin(), node.after.end());
  std::vector<int> ends;
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    if (inside.count(i) == 0) ends.push_back(i);
  }
  return ends;
}

// Whether all work of the capture has been joined to the stream on which the capture began.
bool IsJoined(const Capture& capture) {
  const std::vector<int>& joined = capture.origin->frontier;
  for (int end : EndsOf(capture.graph->nodes)) {
    if (std::find(joined.begin(), joined.end(), end) == joined.end()) return false;
  }
  return true;
}

void Leave(Capture* capture) {
  for (Stream* stream : TheState().streams) {
    if (stream->capture.get() != capture) continue;
    stream->frontier.clear();
    stream->capture = nullptr;
  }
  auto& captures = TheState().captures;
  captures.erase(std::find_if(captures.begin(), captures.end(),
                              [&](const auto& other) { return other.get() == capture; }));
  capture->is_over = true;
}

}  // namespace

extern "C" {

// "Capture may not be initiated if stream is cudaStreamLegacy." "It may only be initiated if the
// stream is not already in capture mode."
int cudaStreamBeginCapture(void* stream, int mode) {
  return RuntimeCall("cudaStreamBeginCapture", [&]() -> int {
    Stream* on = Resolve(stream);
    Line("cudaStreamBeginCapture").Add("stream", int64_t{on->id}).Add("mode", int64_t{mode});
    if (on->id == 0) return fake_cuda::kCaptureUnsupported;
    if (!on->is_alive) return fake_cuda::kInvalidHandle;
    if (on->capture != nullptr || mode < 0 || mode > fake_cuda::kRelaxed) return kInvalidValue;
    auto capture = std::make_shared<Capture>();
    capture->graph = NewGraph();
    capture->origin = on;
    capture->thread = std::this_thread::get_id();
    capture->mode = mode;
    on->capture = capture;
    TheState().captures.push_back(capture);
    return kSuccess;
  });
}

// "Capture must be ended on the same stream in which it was initiated." "If the mode argument to
// cudaStreamBeginCapture was not cudaStreamCaptureModeRelaxed, this call must be from the same
// thread." "If capture was invalidated, then a NULL graph will be returned."
int cudaStreamEndCapture(void* stream, void** graph) {
  *graph = nullptr;
  return RuntimeCall("end of a capture", [&]() -> int {
    const std::shared_ptr<Capture> capture = Resolve(stream)->capture;
    if (capture == nullptr) return kInvalidValue;
    if (capture->origin != Resolve(stream)) {
      capture->is_valid = false;
      return fake_cuda::kCaptureUnmatched;
    }
    if (capture->mode != fake_cuda::kRelaxed && capture->thread != std::this_thread::get_id()) {
      capture->is_valid = false;
      return fake_cuda::kCaptureWrongThread;
    }
    int status = fake_cuda::FailureOfNextCall("cudaStreamEndCapture");
    if (!capture->is_valid) {
      status = fake_cuda::kCaptureInvalidated;
    } else if (!IsJoined(*capture)) {
      status = fake_cuda::kCaptureUnjoined;
    }
    Leave(capture.get());
    Line("cudaStreamEndCapture")
        .Add("stream", int64_t{Resolve(stream)->id})
        .Add("graph", int64_t{status == kSuccess ? capture->graph->id : 0})
        .Add("status", int64_t{status});
    if (status == kSuccess) *graph = capture->graph.release();
    return status;
  });
}

int cudaGraphCreate(void** graph, unsigned) {
  return RuntimeCall("cudaGraphCreate", [&] {
    Graph* made = NewGraph().release();
    Line("cudaGraphCreate").Add("graph", int64_t{made->id});
    *graph = made;
    return kSuccess;
  });
}

// Adds a copy of the graph `child`. The handle of the new node is its number among the child graphs
// of `graph`, counted from 1.
int cudaGraphAddChildGraphNode(void** node, void* graph, void* const* dependencies,
                               size_t num_dependencies, void* child) {
  return RuntimeCall("cudaGraphAddChildGraphNode", [&]() -> int {
    auto* parent = static_cast<Graph*>(graph);
    const auto* part = static_cast<Graph*>(child);
    std::string after;
    std::vector<int> earlier;
    for (size_t i = 0; i < num_dependencies; ++i) {
      const auto number = reinterpret_cast<intptr_t>(dependencies[i]);
      if (number < 1 || number > static_cast<intptr_t>(parent->ends.size())) return kInvalidValue;
      after += (i == 0 ? "" : " ") + std::to_string(number);
      const std::vector<int>& ends = parent->ends[number - 1];
      earlier.insert(earlier.end(), ends.begin(), ends.end());
    }
    const int shift = static_cast<int>(parent->nodes.size());
    for (const Node& inner : part->nodes) {
      Node copy{inner.work, inner.after.empty() ? earlier : inner.after};
      if (!inner.after.empty()) {
        for (int& index : copy.after) index += shift;
      }
      parent->nodes.push_back(std::move(copy));
    }
    std::vector<int> ends = EndsOf(part->nodes);
    for (int& index : ends) index += shift;
    parent->ends.push_back(ends.empty() ? earlier : ends);
    *node = reinterpret_cast<void*>(static_cast<intptr_t>(parent->ends.size()));
    Line("cudaGraphAddChildGraphNode")
        .Add("graph", int64_t{parent->id})
        .Add("child", int64_t{part->id})
        .Add("node", *node)
        .Add("after", after);
    return kSuccess;
  });
}

int cudaGraphDestroy(void* graph) {
  return RuntimeCall("cudaGraphDestroy", [&]() -> int {
    if (graph == nullptr) return kInvalidValue;
    Line("cudaGraphDestroy").Add("graph", int64_t{static_cast<Graph*>(graph)->id});
    delete static_cast<Graph*>(graph);
    return kSuccess;
  });
}

int cudaGraphInstantiate(void** exec, void* graph, unsigned long long flags) {
  return RuntimeCall("cudaGraphInstantiate", [&]() -> int {
    if (graph == nullptr) return kInvalidValue;
    const auto* from = static_cast<Graph*>(graph);
    auto* made = new GraphExec;
    fake_cuda::Remember(made);
    made->id = TheState().next_id++;
    made->nodes = std::make_shared<const std::vector<Node>>(from->nodes);
    Line("cudaGraphInstantiate")
        .Add("exec", int64_t{made->id})
        .Add("graph", int64_t{from->id})
        .Add("flags", static_cast<int64_t>(flags));
    *exec = made;
    return kSuccess;
  });
}

// Refuses a call that puts work on the stream if a capture cannot contain this work. The capture
// then becomes invalid.
static int RefuseInCapture(Stream* stream) {
  if (const int refused = fake_cuda::RefuseStream(stream)) return refused;
  if (stream->capture == nullptr) return kSuccess;
  stream->capture->is_valid = false;
  return fake_cuda::kCaptureUnsupported;
}

int cudaGraphUpload(void*, void* stream) {
  return RuntimeCall("cudaGraphUpload", [&] { return RefuseInCapture(Resolve(stream)); });
}

// "Each launch is ordered behind both any previous work in stream and any previous launches of
// graphExec."
int cudaGraphLaunch(void* exec, void* stream) {
  return RuntimeCall("cudaGraphLaunch", [&]() -> int {
    if (exec == nullptr) return kInvalidValue;
    auto* launched = static_cast<GraphExec*>(exec);
    Stream* on = Resolve(stream);
    Line("cudaGraphLaunch").Add("exec", int64_t{launched->id}).Add("stream", int64_t{on->id});
    if (const int refused = RefuseInCapture(on)) return refused;
    if (const auto last = launched->last_launch) {
      fake_cuda::EnqueueMark(on, [last] { last->Await(); });
    }
    TheState().host_ns += TheState().node_launch_ns * static_cast<int64_t>(launched->nodes->size());
    const int status = fake_cuda::Enqueue(on, fake_cuda::RunGraph(launched->nodes), 0);
    launched->last_launch = fake_cuda::EndOf(on);
    return status;
  });
}

int cudaGraphExecDestroy(void* exec) {
  return RuntimeCall("cudaGraphExecDestroy", [&]() -> int {
    if (exec == nullptr) return kInvalidValue;
    Line("cudaGraphExecDestroy").Add("exec", int64_t{static_cast<GraphExec*>(exec)->id});
    delete static_cast<GraphExec*>(exec);  // A launch that has not ended keeps the nodes alive.
    return kSuccess;
  });
}
}
