#include "passes/schedulers/lios.h"

#include "passes/schedulers/list_schedule.h"

namespace tvm_interop {

Schedule ScheduleLios(const OpGraph& graph, const std::vector<double>& op_us, int num_streams) {
  return ListSchedule(graph, op_us, num_streams, PriorityWaitList(op_us),
                      [](int, double ready_us, const FreeStreams& free, const std::vector<int>&) {
                        return EarliestStream(ready_us, free);
                      });
}

}  // namespace tvm_interop
