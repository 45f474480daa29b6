#ifndef PASSES_SIMULATE_SERVED_PROGRAM_H_
#define PASSES_SIMULATE_SERVED_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "passes/graph/op_graph.h"
#include "passes/simulate/shared_device.h"

namespace tvm_interop {

// A device that serves, and what its host adds.
struct ServingDevice {
  DeviceLimits limits;
  double wait_us = 0;     // what a wait costs the stream that waits
  double barrier_us = 0;  // what the host takes to notice that a segment has ended
  double launch_us = 0;   // what the one host thread takes to launch an operator
};

// What an operator of a program asks of the device.
struct ServedOp {
  double work_us;
  double cores;
  double memory_share;
  int num_waits;  // across streams, within its segment
  int segment;    // starts when the segment before it has ended; from 0
  int part;       // of a program of several parts, the one that it belongs to; from 0
};

// What one run of a program takes on a device that runs nothing else.
struct AloneRun {
  double us;
  double busy_us;  // SharedDevice::busy_us
};

// The operators that an instance runs: those of a model, or of several parts that have no edges
// between them, of which any may be absent in a run. Within a segment an operator waits for its
// stream and for what it reads; a segment waits for the whole segment before it.
class ServedProgram {
 public:
  // With what a run of some parts goes through: operators renumbered, in launch order.
  struct Variant {
    struct Op {
      double work_us, cores, memory_share;
      int num_waits;
      int waits_for;                        // operators of its segment
      int first_successor, last_successor;  // in `successors`
    };
    std::vector<Op> ops;
    std::vector<int> successors;
    std::vector<int> segment_begin;  // of each segment that is not empty, then ops.size()
    bool has_barriers;               // whether the host waits for the end of each segment
    std::vector<int> segment_of;
    mutable AloneRun alone = {-1, 0};
  };

  // `ops` by id; `streams` hold each operator once. Throws ScheduleError for an operator that reads
  // one of a later segment, and as ValidateStreams does; for parts that are not 0 to 63, and for an
  // edge between two parts.
  ServedProgram(const OpGraph& graph, const std::vector<std::vector<int>>& streams,
                const std::vector<ServedOp>& ops, bool has_barriers);

  int num_parts() const { return num_parts_; }
  uint64_t all_parts() const { return num_parts_ == 64 ? ~0ull : (1ull << num_parts_) - 1; }

  // The parts in the set `present` alone.
  const Variant& Of(uint64_t present) const;

  // Remembered by `present`: a program belongs to one device.
  AloneRun Alone(uint64_t present, const ServingDevice& device) const;

 private:
  Variant Make(uint64_t present) const;

  std::vector<ServedOp> ops_;
  std::vector<std::vector<int>> predecessors_;  // in the graph
  std::vector<std::vector<int>> streams_;
  std::vector<int> launch_order_;  // by segment, then topological
  bool has_barriers_;
  int num_parts_ = 1;
  mutable std::unordered_map<uint64_t, std::unique_ptr<Variant>> variants_;
};

}  // namespace tvm_interop

#endif  // PASSES_SIMULATE_SERVED_PROGRAM_H_
