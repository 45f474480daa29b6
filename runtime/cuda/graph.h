#ifndef RUNTIME_CUDA_GRAPH_H_
#define RUNTIME_CUDA_GRAPH_H_

#include <functional>
#include <vector>

#include "runtime/cuda/api.h"

namespace tvm_interop {

// What `issue` puts on `origin`, and on streams that it forks off and joins again, as a graph;
// nothing of it runs. Whatever `issue` throws is passed on once the capture has been ended.
cuda::OwnedGraph CaptureGraph(cuda::Stream origin, const std::function<void()>& issue);

// A graph of graphs: `parts[i]` starts when those of the earlier parts that `after[i]` names have
// ended.
cuda::OwnedGraph LinkGraphs(const std::vector<cuda::OwnedGraph>& parts,
                            const std::vector<std::vector<int>>& after);

// The graph made ready to launch, its memory on the GPU already. With `use_priorities` each kernel
// keeps the priority of the stream that it was captured from.
cuda::OwnedGraphExec InstantiateGraph(cuda::Graph graph, bool use_priorities, cuda::Stream stream);

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_GRAPH_H_
