#ifndef PASSES_SIMULATE_GPUS_H_
#define PASSES_SIMULATE_GPUS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// A launch is a unit of execution: one operator of a stream, or one stage on a GPU.
struct Launch {
  std::vector<int> ops;
  int lane;  // the operator's stream or the stage's GPU; a lane runs one launch at a time
  int device;
  double us;
};

struct Times {
  std::vector<double> start_us, end_us;  // by launch
};

enum class Links {
  kDelay,  // each edge between GPUs delays its reader (HIOS)

  // An output is copied once to each GPU that reads it. Each link makes one copy at a time.
  kFifo,
};

// Computes when each launch starts and ends. A launch starts once its lane (its stream or its GPU)
// is free and all inputs of all its operators have arrived. In `launches`, each launch must come
// after the launches it waits for. The copies over a link follow the order of `launches` too, as in
// plans. `edge_us` holds the transfer time of each edge of `graph.edges()`. If `links` is kFifo, a
// copy to a GPU takes the longest transfer time of all edges to readers on that GPU. Takes
// O(operators + edges).
Times SimulateGpus(const OpGraph& graph, const std::vector<Launch>& launches,
                   const std::vector<double>& edge_us, Links links);

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_GPUS_H_
