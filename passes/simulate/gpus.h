#ifndef PASSES_SIMULATE_GPUS_H_
#define PASSES_SIMULATE_GPUS_H_

#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

// What runs as one: an operator of a stream, or a stage.
struct Launch {
  std::vector<int> ops;
  int lane;  // a stream, or of stages their GPU: what runs one launch after the other
  int device;
  double us;
};

struct Times {
  std::vector<double> start_us, end_us;  // of each launch
};

enum class Links {
  kDelay,  // each edge between GPUs is a delay of its own (HIOS)
  kFifo,   // one copy for each operator and GPU that reads it, one after the other on each link
};

// When each launch starts and ends: once its lane is free and all inputs of all its operators are
// there. `launches` are in an order in which each comes behind those that it waits for; copies go
// over a link in that order too, as plans have them. `edge_us` is by edge of `graph.edges()`. Where
// copies are one for each operator and GPU, the longest of its readers' edges there counts.
// O(operators + edges).
Times SimulateGpus(const OpGraph& graph, const std::vector<Launch>& launches,
                   const std::vector<double>& edge_us, Links links);

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_GPUS_H_
