#ifndef PASSES_SIMULATE_COMBINED_H_
#define PASSES_SIMULATE_COMBINED_H_

#include <memory>
#include <vector>

#include "passes/simulate/served_program.h"

namespace tvm_interop {

// A rule that brings new requests: when a request of `model` has been served, a request of
// `next_model` arrives `delay_us` later.
struct Follower {
  int model;  // the model whose request has been served
  int next_model;
  double delay_us;
};

// The requests of a run. `at_us` holds the times of the given arrivals, ascending, and `models`
// holds the model of each arrival. `followers` are rules that add further requests while the run
// lasts.
struct ArrivalList {
  std::vector<double> at_us;
  std::vector<int> models;
  std::vector<Follower> followers;
};

// How models are executed together in TOP (Lin et al., TPDS 36(2), 2025, section IV). Each model is
// a chain of blocks, and the blocks of all models are partitioned into combined blocks. Each
// combined block runs as one program.
struct Combination {
  // The program of each combined block. The parts of the program are the blocks of the combined
  // block.
  std::vector<const ServedProgram*> programs;
  // For each model and block, `program_of` is the combined block that holds the block, and
  // `part_of` is the block's part in that program.
  std::vector<std::vector<int>> program_of;
  std::vector<std::vector<int>> part_of;
  // For each model, the least time between two requests that leave its queue.
  std::vector<double> interval_us;
  int buffer;  // the most requests that the buffer in front of a block holds
};

// One request, and the times of its events. A time is NaN if the event did not happen before the
// end of the simulation.
struct ServedRequest {
  int model;
  double arrived_us;
  double dequeued_us;
  double finished_us;
};

struct CombinedRun {
  std::vector<ServedRequest> requests;  // the requests in order of arrival
  double busy_us = 0;
  int64_t rounds = 0;
};

// The requests and the states of one window of a `CombinedServing`.
struct CombinedWindow {
  // The requests that were served in the window come first. The requests that waited for a block or
  // ran in a block at the end of the window follow.
  std::vector<ServedRequest> requests;
  // A row for each time of observation. It holds the length of each queue, and then, for each block
  // of each model, the number of requests that wait for the block or run in it.
  std::vector<int64_t> observed;
  double busy_us = 0;
  int64_t rounds = 0;
};

// Serves requests by combined blocks, window by window. Queues, buffers and the running combined
// block stay as they are from one window to the next.
//
// Combined blocks run one after the other. The next is the combined block with the largest share of
// blocks that have input. A tie goes to the combined block whose oldest input has waited longest,
// then to the lowest index. When a combined block runs, each of its blocks with input takes its
// oldest request. The operators of its other blocks are left out. A block counts as a block without
// input while the buffer of the model's next block is full. No request leaves the queue of a model
// while the buffer of the model's first block is full.
class CombinedServing {
 public:
  CombinedServing(const ServingDevice& device, std::vector<Follower> followers);
  ~CombinedServing();

  // From now on, serves by another decision (`combination`). A running combined block ends first.
  // The programs must live until the next decision. All decisions have the same numbers of models
  // and blocks.
  //
  // Throws ScheduleError for a model without blocks, and a block that is in no combined block.
  void Decide(const Combination& combination);

  // Adds requests in order of time, after all earlier requests. Throws ScheduleError for a request
  // of an unknown model, and for a time before the time of an earlier request.
  void Add(const std::vector<double>& at_us, const std::vector<int>& models);

  // Serves until `until_us`. At each of the times `at_us`, which are ascending, it records the
  // state of the queues and blocks.
  CombinedWindow Run(double until_us, const std::vector<double>& at_us);

  // All requests so far, in order of arrival.
  const std::vector<ServedRequest>& requests() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Serves requests until `until_us` by one decision (`combination`); see `CombinedServing`.
//
// Throws ScheduleError for a model without blocks, a block that is in no combined block, and a
// request of an unknown model.
CombinedRun SimulateCombined(const ServingDevice& device, const Combination& combination,
                             const ArrivalList& arrivals, double until_us);

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_COMBINED_H_
