#ifndef RUNTIME_CUDA_GRAPH_H_
#define RUNTIME_CUDA_GRAPH_H_

#include <functional>
#include <vector>

#include "runtime/cuda/api.h"

namespace tvm_interop {

// Captures a graph of the work that `issue` puts on `origin`, and on streams that `issue` forks off
// and joins again. None of this work runs. If `issue` throws, the capture is ended and the
// exception is passed on.
cuda::OwnedGraph CaptureGraph(cuda::Stream origin, const std::function<void()>& issue);

// Makes one graph out of several. Part `parts[i]` starts when all parts whose indices are in
// `after[i]` have ended. Each index in `after[i]` must be less than i.
cuda::OwnedGraph LinkGraphs(const std::vector<cuda::OwnedGraph>& parts,
                            const std::vector<std::vector<int>>& after);

// Makes the graph ready to launch and uploads it to the GPU on `stream`. If `use_priorities` is
// true, each kernel keeps the priority of the stream that it was captured from.
cuda::OwnedGraphExec InstantiateGraph(cuda::Graph graph, bool use_priorities, cuda::Stream stream);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_GRAPH_H_
