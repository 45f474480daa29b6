// The bindings that export the schedulers over several GPUs to Python.
#include "passes/simulate/gpus.h"

#include <tvm/ffi/tvm_ffi.h>

#include <string>
#include <utility>
#include <vector>

#include "passes/ffi/convert.h"
#include "passes/schedulers/gpu_costs.h"
#include "passes/schedulers/gpu_refine.h"
#include "passes/schedulers/gpu_windows.h"
#include "passes/schedulers/heft.h"
#include "passes/schedulers/hios_lp.h"
#include "passes/schedulers/hios_mr.h"
#include "passes/schedulers/list_on_gpus.h"
#include "passes/schedulers/schedule.h"
#include "passes/schedulers/stage_prices.h"

namespace tvm_interop {
namespace {

GpuCosts ToCosts(const OpGraphRef& graph, const ffi::Bytes& op_us, const ffi::Bytes& edge_us) {
  return GpuCosts(graph->graph, Unpack<double>(op_us), Unpack<double>(edge_us));
}
int ToGpus(int64_t gpus) {
  if (gpus < 1) throw ScheduleError("`gpus` is " + std::to_string(gpus) + "; it must be 1 or more");
  return ToInt(gpus);
}
StagePrices ToPrices(const ffi::Array<ffi::Bytes>& stages, const ffi::Bytes& price_us,
                     const ffi::Bytes& op_us) {
  return StagePrices(ToBatch(stages, Unpack<double>(op_us)), Unpack<double>(price_us));
}
ffi::Array<ffi::Any> FromGpuSchedule(const GpuSchedule& schedule) {
  ffi::Array<IntLists> gpus;
  for (const auto& stages : schedule.stages) gpus.push_back(ToArrays(stages));
  return {gpus, schedule.makespan_us};
}

IntList LaunchOrderOf(OpGraphRef graph, ffi::Array<IntLists> stages, IntList devices) {
  return ToArray(LaunchOrder(graph->graph, ToStages(stages, devices)));
}

// Returns the paths in the order in which `HiosLp` maps them to GPUs. The paths do not depend on
// the GPUs to which earlier paths are mapped.
IntLists LongestPathsOf(OpGraphRef graph, ffi::Bytes op_us, ffi::Bytes edge_us) {
  const GpuCosts costs = ToCosts(graph, op_us, edge_us);
  PathSearch search(costs);
  std::vector<std::vector<int>> paths;
  while (!search.done()) {
    paths.emplace_back();
    for (int rank : search.TakeLongest().ranks) paths.back().push_back(costs.op(rank));
  }
  return ToArrays(paths);
}
// Returns the operators of each GPU in running order.
IntLists HiosLp(OpGraphRef graph, ffi::Bytes op_us, ffi::Bytes edge_us, int64_t gpus) {
  return ToArrays(MapLongestPaths(ToCosts(graph, op_us, edge_us), ToGpus(gpus)));
}
IntLists HiosMr(OpGraphRef graph, ffi::Bytes op_us, ffi::Bytes edge_us, int64_t gpus) {
  return ToArrays(MapByRecurrence(ToCosts(graph, op_us, edge_us), ToGpus(gpus)));
}
IntLists Heft(OpGraphRef graph, ffi::Bytes op_us, ffi::Bytes edge_us, int64_t gpus,
              bool look_ahead) {
  return ToArrays(ScheduleHeft(ToCosts(graph, op_us, edge_us), ToGpus(gpus), look_ahead));
}

ffi::Array<ffi::Bytes> WindowCandidatesOf(OpGraphRef graph, ffi::Bytes op_us, ffi::Bytes edge_us,
                                          IntLists orders, int64_t window) {
  return FromBatch(
      WindowCandidates(ToCosts(graph, op_us, edge_us), ToVectors(orders), ToInt(window)));
}
// Returns the stages of each GPU, and the makespan in microseconds.
ffi::Array<ffi::Any> OpenWindowsOf(OpGraphRef graph, ffi::Bytes op_us, ffi::Bytes edge_us,
                                   IntLists orders, int64_t window, ffi::Array<ffi::Bytes> priced,
                                   ffi::Bytes price_us, bool by_start) {
  return FromGpuSchedule(OpenWindows(ToCosts(graph, op_us, edge_us), ToVectors(orders),
                                     ToInt(window), ToPrices(priced, price_us, op_us),
                                     by_start ? WindowOrder::kStart : WindowOrder::kPriority));
}
// Returns the stages of each GPU, the makespan in microseconds, how many changes were tried, and
// whether the time limit ended the search.
ffi::Array<ffi::Any> RefineOnGpusOf(OpGraphRef graph, ffi::Bytes op_us, ffi::Bytes edge_us,
                                    ffi::Array<IntLists> initial, int64_t window,
                                    ffi::Array<ffi::Bytes> priced, ffi::Bytes price_us,
                                    int64_t trials, double time_limit_s, int64_t seed) {
  GpuStages stages;
  for (const IntLists& gpu : initial) stages.push_back(ToVectors(gpu));
  const RefineOptions options = {ToInt(window), trials, time_limit_s, static_cast<uint64_t>(seed)};
  const RefineResult result = RefineOnGpus(ToCosts(graph, op_us, edge_us), stages,
                                           ToPrices(priced, price_us, op_us), options);
  ffi::Array<ffi::Any> found = FromGpuSchedule(result.schedule);
  found.push_back(result.trials);
  found.push_back(result.is_cut_short);
  return found;
}

// Returns the start times and the end times of the launches. Launch i has the operators `ops[i]`,
// the lane `lanes[i]`, the device `devices[i]` and the latency `launch_us[i]`.
ffi::Array<ffi::Bytes> SimulateGpusOf(OpGraphRef graph, IntLists ops, IntList lanes,
                                      IntList devices, ffi::Bytes launch_us, ffi::Bytes edge_us,
                                      bool fifo) {
  std::vector<Launch> launches;
  const std::vector<double> us = Unpack<double>(launch_us);
  for (size_t i = 0; i < us.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    launches.push_back({ToVector(ops[at]), ToInt(lanes[at]), ToInt(devices[at]), us[i]});
  }
  const Times times = SimulateGpus(graph->graph, launches, Unpack<double>(edge_us),
                                   fifo ? Links::kFifo : Links::kDelay);
  return {Pack(times.start_us), Pack(times.end_us)};
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::GlobalDef()
      .def("tvm_interop.launch_order", Guarded(LaunchOrderOf))
      .def("tvm_interop.longest_paths", Guarded(LongestPathsOf))
      .def("tvm_interop.hios_lp", Guarded(HiosLp))
      .def("tvm_interop.hios_mr", Guarded(HiosMr))
      .def("tvm_interop.heft", Guarded(Heft))
      .def("tvm_interop.window_candidates", Guarded(WindowCandidatesOf))
      .def("tvm_interop.open_windows", Guarded(OpenWindowsOf))
      .def("tvm_interop.refine_on_gpus", Guarded(RefineOnGpusOf))
      .def("tvm_interop.simulate_gpus", Guarded(SimulateGpusOf));
}

}  // namespace
}  // namespace tvm_interop
