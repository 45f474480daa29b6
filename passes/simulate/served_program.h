#ifndef PASSES_SIMULATE_SERVED_PROGRAM_H_
#define PASSES_SIMULATE_SERVED_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/simulate/shared_device.h"

namespace tvm_interop {

// A simulated device that serves requests, and the delays that its host adds to a run.
struct ServingDevice {
  DeviceLimits limits;
  double wait_us = 0;     // how long a wait delays the stream that waits
  double barrier_us = 0;  // how long the host takes to notice the end of a segment
  double launch_us = 0;   // how long the host's one thread takes to launch an operator
};

// One operator of a program: how much of the device it needs, and when it may run.
struct ServedOp {
  double work_us;
  double cores;
  double memory_share;
  int num_waits;  // number of waits for operators of the segment on other streams

  // The operator's segment, counted from 0; a segment starts when the segment before it has ended.
  int segment;
  int part;  // the operator's part of the program, counted from 0
};

// The duration of one run of a program on a device that runs nothing else.
struct AloneRun {
  double us;
  double busy_us;  // see SharedDevice::busy_us
};

// The operators that an instance runs. A program consists of one part or of several parts, such as
// the blocks of a combined block. There are no edges between parts, and a run may leave out any
// parts. Within a segment, an operator waits for the operator before it on its stream and for the
// operators it reads. A segment starts when all operators of the segment before it have ended.
class ServedProgram {
 public:
  // A variant of the program: the operators that run if only some of the parts run, renumbered in
  // launch order.
  struct Variant {
    struct Op {
      double work_us, cores, memory_share;
      int num_waits;
      int waits_for;                        // how many operators of its segment it waits for
      int first_successor, last_successor;  // its range of indices into `successors`
    };
    std::vector<Op> ops;
    std::vector<int> successors;
    // The bounds of the segments that are not empty: the first operator of each segment, and at the
    // end the number of all operators.
    std::vector<int> segment_begin;
    bool has_barriers;  // whether the host waits for the end of each segment
    std::vector<int> segment_of;
    mutable AloneRun alone = {-1, 0};
  };

  // `ops` describes each operator by its id, and `streams` holds each operator once. Throws
  // ScheduleError for streams that ValidateStreams refuses, for a part outside 0 to 63, and for an
  // edge between two parts. Also throws it if segments are out of order: an operator must not read
  // an operator of a later segment, or come after one on its stream.
  ServedProgram(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                const std::vector<ServedOp>& ops, bool has_barriers);

  int num_parts() const { return num_parts_; }
  uint64_t all_parts() const { return num_parts_ == 64 ? ~0ull : (1ull << num_parts_) - 1; }

  // The variant of the program that has only the parts in `present`. `present` has one bit for each
  // part.
  const Variant& Of(uint64_t present) const;

  // The time of a run of the parts in `present` if nothing else runs on the device. The program
  // stores one time for each `present`, for the device of the first call. So all calls must name
  // the same device.
  AloneRun Alone(uint64_t present, const ServingDevice& device) const;

 private:
  Variant Make(uint64_t present) const;

  std::vector<ServedOp> ops_;
  std::vector<std::vector<int>> predecessors_;  // the predecessors of each operator in the graph
  std::vector<std::vector<int>> streams_;
  // All operators, sorted by segment, and in topological order within a segment.
  std::vector<int> launch_order_;
  bool has_barriers_;
  int num_parts_ = 1;
  mutable std::unordered_map<uint64_t, std::unique_ptr<Variant>> variants_;
};

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_SERVED_PROGRAM_H_
