#ifndef PASSES_SIMULATE_COMBINED_H_
#define PASSES_SIMULATE_COMBINED_H_

#include <vector>

#include "passes/simulate/served_program.h"

namespace tvm_interop {

// A request that arrives when another of some model has been served.
struct Follower {
  int model;  // whose end brings it
  int next_model;
  double delay_us;
};

// What arrives: `at_us` ascending, and followers without end.
struct ArrivalList {
  std::vector<double> at_us;
  std::vector<int> models;
  std::vector<Follower> followers;
};

// TOP's way of execution (Lin et al., TPDS 36(2), 2025, section IV): each model is a chain of
// blocks, and the set of all blocks is partitioned into combined blocks.
struct Combination {
  // The program of each combined block; its parts are its blocks.
  std::vector<const ServedProgram*> programs;
  // By model and block: its combined block, and the part that it is there.
  std::vector<std::vector<int>> program_of;
  std::vector<std::vector<int>> part_of;
  // Of each model: a request leaves its queue no sooner than so long after the one before it.
  std::vector<double> interval_us;
  int buffer;  // the most requests that wait for a block other than in the queue
};

// One request; times are NaN where it did not come so far.
struct ServedRequest {
  int model;
  double arrived_us;
  double dequeued_us;
  double finished_us;
};

struct CombinedRun {
  std::vector<ServedRequest> requests;  // in order of arrival
  double busy_us = 0;
  int64_t rounds = 0;
};

// Serves until `until_us`, one combined block after the other. Of those that have input for some of
// their blocks, that runs next of whose blocks the largest share has input; ties: whose oldest
// input has waited longest, then the lowest index. Each of these blocks takes its oldest request;
// the others' operators are left out. A block whose next block's buffer is full counts as one
// without input, a full first buffer blocks the queue.
//
// Throws ScheduleError where a block has no place in a program.
CombinedRun SimulateCombined(const ServingDevice& device, const Combination& combination,
                             const ArrivalList& arrivals, double until_us);

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_COMBINED_H_
