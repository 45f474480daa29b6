#include "runtime/cuda/graph.h"

namespace tvm_interop {

cuda::OwnedGraph CaptureGraph(cuda::Stream origin, const std::function<void()>& issue) {
  const cuda::Api& api = cuda::Api::Get();
  TVM_INTEROP_CUDA(api, StreamBeginCapture, origin, cuda::kThreadLocal);
  cuda::Graph graph = nullptr;
  try {
    issue();
  } catch (...) {
    // End the capture, because the streams cannot be used before. Ignore the status of the call: it
    // is known that the capture has failed.
    api.StreamEndCapture(origin, &graph);
    if (graph != nullptr) api.GraphDestroy(graph);
    api.GetLastError();
    throw;
  }
  TVM_INTEROP_CUDA(api, StreamEndCapture, origin, &graph);
  return cuda::OwnedGraph(graph);
}

cuda::OwnedGraph LinkGraphs(const std::vector<cuda::OwnedGraph>& parts,
                            const std::vector<std::vector<int>>& after) {
  const cuda::Api& api = cuda::Api::Get();
  cuda::Graph graph = nullptr;
  TVM_INTEROP_CUDA(api, GraphCreate, &graph, 0);
  cuda::OwnedGraph owned(graph);
  std::vector<cuda::GraphNode> nodes(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<cuda::GraphNode> dependencies;
    for (int earlier : after[i]) dependencies.push_back(nodes.at(earlier));
    // This call copies the graph `parts[i]` into `graph`.
    TVM_INTEROP_CUDA(api, GraphAddChildGraphNode, &nodes[i], graph, dependencies.data(),
                     dependencies.size(), parts[i].get());
  }
  return owned;
}

cuda::OwnedGraphExec InstantiateGraph(cuda::Graph graph, bool use_priorities, cuda::Stream stream) {
  const cuda::Api& api = cuda::Api::Get();
  cuda::GraphExec exec = nullptr;
  TVM_INTEROP_CUDA(api, GraphInstantiate, &exec, graph,
                   use_priorities ? cuda::kUseNodePriority : cuda::kPlain);
  cuda::OwnedGraphExec owned(exec);
  TVM_INTEROP_CUDA(api, GraphUpload, exec, stream);
  return owned;
}

}  // namespace tvm_interop
