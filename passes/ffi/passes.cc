// The bindings that export the passes to Python. Only the bindings, in passes/ffi, use tvm-ffi.
// They convert arrays to the C++ types of the passes and back. They convert C++ errors to the
// Python classes of the same name.
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/ffi/convert.h"
#include "passes/graph/blocks.h"
#include "passes/graph/error.h"
#include "passes/graph/op_graph.h"
#include "passes/plan/memory_order.h"
#include "passes/plan/memory_plan.h"
#include "passes/plan/sync_plan.h"
#include "passes/schedulers/fold_streams.h"
#include "passes/schedulers/greedy.h"
#include "passes/schedulers/ios.h"
#include "passes/schedulers/ios_pricing.h"
#include "passes/schedulers/lios.h"
#include "passes/schedulers/lios_plus.h"
#include "passes/schedulers/lios_random.h"
#include "passes/schedulers/nimble.h"
#include "passes/schedulers/opara.h"
#include "passes/schedulers/schedule.h"
#include "passes/schedulers/stage_batch.h"
#include "passes/schedulers/stage_beam.h"
#include "passes/schedulers/stage_book.h"
#include "passes/simulate/contention.h"
#include "passes/simulate/streams.h"

namespace tvm_interop {
namespace {

class IosSearchObj : public ffi::Object {
 public:
  template <typename... Args>
  explicit IosSearchObj(OpGraphRef graph, Args&&... args)
      : graph(std::move(graph)), search(std::forward<Args>(args)...) {}
  const OpGraphRef graph;  // kept alive for the search, which refers to it
  const IosSearch search;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.IosSearch", IosSearchObj, ffi::Object);
};

class IosSearchRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(IosSearchRef, ffi::ObjectRef, IosSearchObj);
};

class StageBookObj : public ffi::Object {
 public:
  mutable StageBook book;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.StageBook", StageBookObj, ffi::Object);
};

class StageBookRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(StageBookRef, ffi::ObjectRef, StageBookObj);
};

class IosPricingObj : public ffi::Object {
 public:
  IosPricingObj(IosSearchRef search, StageBookRef book)
      : search(std::move(search)),
        book(std::move(book)),
        pricing(this->search->search, &this->book->book) {}
  const IosSearchRef search;  // kept alive for the pricing, which refers to it
  const StageBookRef book;    // also kept alive for the pricing
  mutable IosPricing pricing;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.IosPricing", IosPricingObj, ffi::Object);
};

class IosPricingRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(IosPricingRef, ffi::ObjectRef, IosPricingObj);
};

class StageBeamObj : public ffi::Object {
 public:
  StageBeamObj(OpGraphRef graph, const std::vector<int>& ops, const std::vector<double>& op_us,
               const EndingLimits& limits, const std::vector<int>& set_of)
      : graph(std::move(graph)),
        beam(StageBeam::Make(this->graph->graph, ops, op_us, limits, set_of)) {}
  const OpGraphRef graph;  // kept alive for the beam, which refers to it
  const std::unique_ptr<StageBeam> beam;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.StageBeam", StageBeamObj, ffi::Object);
};

class StageBeamRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(StageBeamRef, ffi::ObjectRef, StageBeamObj);
};

OpGraphRef MakeGraph(ffi::Array<ffi::String> names, ffi::Bytes edges) {
  std::vector<std::string> copied(names.begin(), names.end());
  return OpGraphRef(ffi::make_object<OpGraphObj>(OpGraph(std::move(copied), UnpackEdges(edges))));
}
int64_t Width(OpGraphRef graph) { return graph->graph.Width(); }
bool Reaches(OpGraphRef graph, int64_t from, int64_t to) {
  return graph->graph.Reaches(CheckedOp(graph, from), CheckedOp(graph, to));
}
IntList Predecessors(OpGraphRef graph, int64_t op) {
  return ToArray(graph->graph.predecessors(CheckedOp(graph, op)));
}
IntList Successors(OpGraphRef graph, int64_t op) {
  return ToArray(graph->graph.successors(CheckedOp(graph, op)));
}
IntList TopologicalOrderOf(OpGraphRef graph) { return ToArray(graph->graph.topological_order()); }
IntLists Blocks(OpGraphRef graph) { return ToArrays(FindBlocks(graph->graph)); }

void ValidateStagesOf(OpGraphRef graph, ffi::Array<IntLists> stages, IntList devices) {
  ValidateStages(graph->graph, ToStages(stages, devices));
}
void ValidateStreamsOf(OpGraphRef graph, IntLists streams) {
  ValidateStreams(graph->graph, ToVectors(streams));
}
double Simulate(OpGraphRef graph, IntLists streams, ffi::Bytes op_us) {
  return SimulateStreams(graph->graph, ToVectors(streams), UnpackForOps<double>(graph, op_us));
}

ffi::Array<ffi::Bytes> PackStagesOf(ffi::Array<ffi::Bytes> batch, ffi::Bytes op_us_bytes,
                                    int64_t streams) {
  const std::vector<double> op_us = Unpack<double>(op_us_bytes);
  return FromBatch(PackStages(ToBatch(batch, op_us), op_us, ToInt(streams)));
}
IntList PackGroupsOfStagesOf(ffi::Array<ffi::Bytes> batch, ffi::Bytes op_us_bytes,
                             int64_t streams) {
  const std::vector<double> op_us = Unpack<double>(op_us_bytes);
  return ToArray(PackGroupsOfStages(ToBatch(batch, op_us), op_us, ToInt(streams)));
}
ffi::Bytes PriceStagesOf(ffi::Array<ffi::Bytes> batch, ffi::Bytes op_us_bytes) {
  const std::vector<double> op_us = Unpack<double>(op_us_bytes);
  return Pack(PriceStages(ToBatch(batch, op_us), op_us));
}

// A function of the caller that returns whether the time of a search is over. If the function is
// missing, the search has no time limit.
using IsOver = ffi::Optional<ffi::Function>;
std::function<bool()> AsksWhether(const IsOver& is_over) {
  if (!is_over.has_value()) return [] { return false; };
  return [ask = is_over.value()] { return ask().cast<bool>(); };
}

IosSearchRef IosEnumerate(OpGraphRef graph, int64_t max_group_ops, int64_t max_groups,
                          bool single_root, int64_t max_transitions, bool cuts, ffi::Bytes op_us,
                          IsOver is_over) {
  const IosOptions options = {{ToInt(max_group_ops), ToInt(max_groups), single_root},
                              max_transitions,
                              cuts,
                              AsksWhether(is_over)};
  return IosSearchRef(
      ffi::make_object<IosSearchObj>(graph, graph->graph, options, Unpack<double>(op_us)));
}
IosSearchRef IosWindows(OpGraphRef graph, int64_t max_group_ops, int64_t max_groups,
                        bool single_root, IntLists stages, int64_t first_window,
                        int64_t max_transitions, IsOver is_over) {
  const EndingLimits limits = {ToInt(max_group_ops), ToInt(max_groups), single_root};
  return IosSearchRef(ffi::make_object<IosSearchObj>(graph, graph->graph, limits, ToVectors(stages),
                                                     static_cast<size_t>(first_window),
                                                     max_transitions, AsksWhether(is_over)));
}
// Returns the number of parts of the graph that are searched separately, and how many transitions
// were looked at to find these parts. A transition is a state (the operators that are left) and a
// set of operators that may run last in this state.
IntList IosEffort(IosSearchRef search) {
  return {static_cast<int64_t>(search->search.parts().size()), search->search.transitions_tried()};
}
IntLists IosLeftOut(IosSearchRef search) { return ToArrays(search->search.left_out()); }
ffi::Array<ffi::Bytes> IosStages(IosSearchRef search) { return FromBatch(search->search.stages()); }
ffi::Map<ffi::String, ffi::Any> IosStatsOf(IosSearchRef search) {
  const IosStats& stats = search->search.stats();
  return {{"blocks", stats.blocks}, {"parts_cut", stats.parts_cut},
          {"states", stats.states}, {"transitions", stats.transitions},
          {"stages", stats.stages}, {"schedules", stats.schedules}};
}
// Returns the stages, and the predicted makespan in microseconds.
ffi::Array<ffi::Any> IosSolve(IosSearchRef search, ffi::Bytes price_us) {
  const Schedule schedule = search->search.Solve(Unpack<double>(price_us));
  return {FromStages(schedule.stages), schedule.makespan_us};
}

// Returns the indices of the stages whose latencies (prices) are needed next, in the order of
// `WantedStages`.
ffi::Bytes IosWanted(IosSearchRef search, ffi::Bytes value_us, ffi::Bytes is_priced,
                     int64_t at_least) {
  PricingProgress progress(search->search.parts().size());
  const std::vector<size_t> wanted =
      WantedStages(search->search, Unpack<double>(value_us), Unpack<char>(is_priced),
                   static_cast<size_t>(at_least), &progress);
  return Pack(std::vector<int64_t>(wanted.begin(), wanted.end()));
}

StageBookRef StageBookMake() { return StageBookRef(ffi::make_object<StageBookObj>()); }
// `op_us` holds the latency of each operator of the graph.
void StageBookWrite(StageBookRef book, ffi::Array<ffi::Bytes> stages, ffi::Bytes op_us,
                    ffi::Bytes price_us) {
  book->book.Write(ToBatch(stages, Unpack<double>(op_us)), Unpack<double>(price_us));
}
ffi::Bytes StageBookRead(StageBookRef book, ffi::Array<ffi::Bytes> stages, ffi::Bytes op_us) {
  return Pack(book->book.Read(ToBatch(stages, Unpack<double>(op_us))));
}
IosPricingRef IosPricingMake(IosSearchRef search, StageBookRef book) {
  return IosPricingRef(ffi::make_object<IosPricingObj>(search, book));
}
// `op_us` is empty and `streams` is 0 if stages are not packed onto a limited number of streams.
// `work_us` is empty if every operator uses one core.
void IosPricingBounds(IosPricingRef pricing, ffi::Bytes alone_us, ffi::Bytes op_us, int64_t streams,
                      int64_t cores, ffi::Bytes work_us, double tolerance, double slack_us,
                      double scale) {
  pricing->pricing.SetBounds(Unpack<double>(alone_us),
                             {Unpack<double>(op_us), ToInt(streams), ToInt(cores),
                              Unpack<double>(work_us), tolerance, slack_us, scale});
}
void IosPricingGive(IosPricingRef pricing, ffi::Bytes stages, ffi::Bytes price_us) {
  std::vector<size_t> indices;
  for (int64_t stage : Unpack<int64_t>(stages)) indices.push_back(static_cast<size_t>(stage));
  pricing->pricing.Give(indices, Unpack<double>(price_us));
}
ffi::Array<ffi::Bytes> IosPricingNext(IosPricingRef pricing, int64_t at_least) {
  const std::vector<size_t> next = pricing->pricing.Next(static_cast<size_t>(at_least));
  return FromBatch(pricing->search->search.stages().Select(next));
}
// Takes the latencies (prices) of the stages that the search has asked for. Returns two numbers:
// how many of these prices were below the lower bounds that the search had computed for them, and
// the factor by which all bounds are now multiplied.
ffi::Array<ffi::Any> IosPricingPrices(IosPricingRef pricing, ffi::Bytes price_us) {
  const int64_t below = pricing->pricing.SetPrices(Unpack<double>(price_us));
  return {below, pricing->pricing.scale()};
}
ffi::Bytes IosPricingValues(IosPricingRef pricing) { return Pack(pricing->pricing.value_us()); }
int64_t IosPricingNumPriced(IosPricingRef pricing) {
  return static_cast<int64_t>(pricing->pricing.num_priced());
}

StageBeamRef StageBeamMake(OpGraphRef graph, IntList ops, ffi::Bytes op_us, int64_t max_group_ops,
                           int64_t max_groups, bool single_root, IntList set_of) {
  const EndingLimits limits = {ToInt(max_group_ops), ToInt(max_groups), single_root};
  return StageBeamRef(ffi::make_object<StageBeamObj>(
      graph, ToVector(ops), UnpackForOps<double>(graph, op_us), limits, ToVector(set_of)));
}
// Returns four things: the stages, their latencies (prices), the number of transitions between
// states that the search looked at, and whether the search ran to its end.
ffi::Array<ffi::Any> StageBeamRun(StageBeamRef beam, int64_t width, bool backward, double below_us,
                                  double parallelism, double certain, int64_t max_transitions,
                                  IsOver is_over, ffi::Function ask) {
  BeamOptions options;
  options.width = static_cast<size_t>(width);
  options.backward = backward;
  options.below_us = below_us;
  options.parallelism = parallelism;
  options.certain = certain;
  options.max_transitions = max_transitions;
  options.is_over = AsksWhether(is_over);
  const BeamResult found = beam->beam->Run(options, [&](const StageBatch& batch) {
    return Unpack<double>(ask(FromBatch(batch)).cast<ffi::Bytes>());
  });
  return {FromBatch(found.stages), Pack(found.price_us), found.transitions, found.is_through};
}

// Returns the streams, the timeline and the predicted makespan in microseconds. The timeline
// consists of two lists: the first holds the operator and stream of each placement, and the second
// holds its start and finish.
ffi::Array<ffi::Any> FromTimeline(const Schedule& schedule) {
  std::vector<int64_t> where;
  std::vector<double> when_us;
  for (const Placement& placement : schedule.timeline) {
    where.insert(where.end(), {placement.op, placement.stream});
    when_us.insert(when_us.end(), {placement.start_us, placement.finish_us});
  }
  return {ToArrays(schedule.streams), Pack(where), Pack(when_us), schedule.makespan_us};
}
ffi::Array<ffi::Any> Lios(OpGraphRef graph, ffi::Bytes op_us, int64_t streams) {
  return FromTimeline(
      ScheduleLios(graph->graph, UnpackForOps<double>(graph, op_us), ToInt(streams)));
}
ffi::Array<ffi::Any> LiosRand1(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, int64_t seed) {
  return FromTimeline(ScheduleLiosRand1(graph->graph, UnpackForOps<double>(graph, op_us),
                                        ToInt(streams), static_cast<uint64_t>(seed)));
}
ffi::Array<ffi::Any> LiosRand2(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, int64_t seed) {
  return FromTimeline(ScheduleLiosRand2(graph->graph, UnpackForOps<double>(graph, op_us),
                                        ToInt(streams), static_cast<uint64_t>(seed)));
}
ffi::Array<ffi::Any> LiosRand(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, int64_t seed) {
  return FromTimeline(ScheduleLiosRand(graph->graph, UnpackForOps<double>(graph, op_us),
                                       ToInt(streams), static_cast<uint64_t>(seed)));
}
ffi::Array<ffi::Any> LiosPlus(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, double wait_us) {
  return FromTimeline(
      ScheduleLiosPlus(graph->graph, UnpackForOps<double>(graph, op_us), ToInt(streams), wait_us));
}
ffi::Array<ffi::Any> SimulateContentionOf(OpGraphRef graph, IntLists streams, IntLists waits,
                                          ffi::Bytes op_us, double cores, double bandwidth,
                                          ffi::Bytes op_cores, ffi::Bytes memory_share,
                                          double wait_us) {
  const Contention contention = {cores, bandwidth, UnpackForOps<double>(graph, op_cores),
                                 UnpackForOps<double>(graph, memory_share), wait_us};
  return FromTimeline(SimulateContention(graph->graph, ToVectors(streams), ToVectors(waits),
                                         UnpackForOps<double>(graph, op_us), contention));
}
ffi::Array<IntLists> Greedy(OpGraphRef graph, int64_t max_groups) {
  return FromStages(ScheduleGreedy(graph->graph, ToInt(max_groups)).stages);
}

// Returns the streams and four counts: the edges that are left after the transitive reduction, the
// edges of the matching, the chains and the waits.
ffi::Array<ffi::Any> Nimble(OpGraphRef graph) {
  const NimbleSchedule schedule = ScheduleNimble(graph->graph);
  return {ToArrays(schedule.streams), schedule.reduced_edges, schedule.matching, schedule.chains,
          schedule.waits()};
}
// Returns the streams and the launch order.
ffi::Array<ffi::Any> Opara(OpGraphRef graph, ffi::Bytes demand, ffi::Bytes is_memory_bound) {
  const OparaSchedule schedule = ScheduleOpara(graph->graph, UnpackForOps<double>(graph, demand),
                                               UnpackForOps<char>(graph, is_memory_bound));
  return {ToArrays(schedule.streams), ToArray(schedule.launch_order)};
}
// Operators of the same stream run in `order`. If `order` is empty, they run in order of earliest
// start.
IntLists FoldStreamsOf(OpGraphRef graph, IntLists streams, ffi::Bytes op_us_bytes,
                       int64_t num_streams, IntList order) {
  const std::vector<double> op_us = UnpackForOps<double>(graph, op_us_bytes);
  ValidateStreams(graph->graph, ToVectors(streams));
  if (!order.empty()) ValidateStreams(graph->graph, {ToVector(order)});
  return ToArrays(
      FoldStreams(ToVectors(streams), op_us, ToInt(num_streams),
                  order.empty() ? EarliestFirst(graph->graph, op_us) : ToVector(order)));
}

IntLists PlanSyncOf(OpGraphRef graph, IntLists streams, ffi::Bytes extra_edges) {
  return ToArrays(PlanSync(graph->graph, ToVectors(streams), UnpackEdges(extra_edges)));
}
ffi::Array<ffi::Any> PlanMemoryOf(OpGraphRef graph, IntLists streams, IntLists waits,
                                  IntList nbytes, IntLists producers, IntLists users,
                                  int64_t alignment) {
  const MemoryPlan plan = PlanMemory(graph->graph, ToVectors(streams), ToVectors(waits),
                                     ToBuffers(nbytes, producers, users), alignment);
  return {IntList(plan.offsets.begin(), plan.offsets.end()), plan.arena_bytes};
}
// Returns an order of the operators that needs little memory. Also returns the most bytes that are
// in use at once, in this order and in the topological order.
ffi::Array<ffi::Any> MemoryOrderOf(OpGraphRef graph, IntList nbytes, IntLists producers,
                                   IntLists users) {
  const std::vector<Buffer> buffers = ToBuffers(nbytes, producers, users);
  const std::vector<int> order = MemoryOrder(graph->graph, buffers);
  return {ToArray(order), PeakBytes(order, buffers),
          PeakBytes(graph->graph.topological_order(), buffers)};
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<OpGraphObj>();
  refl::ObjectDef<IosSearchObj>();
  refl::ObjectDef<IosPricingObj>();
  refl::ObjectDef<StageBookObj>();
  refl::ObjectDef<StageBeamObj>();
  refl::GlobalDef()
      .def("tvm_interop.graph_make", Guarded(MakeGraph))
      .def("tvm_interop.graph_width", Guarded(Width))
      .def("tvm_interop.graph_reaches", Guarded(Reaches))
      .def("tvm_interop.graph_predecessors", Guarded(Predecessors))
      .def("tvm_interop.graph_successors", Guarded(Successors))
      .def("tvm_interop.graph_topological_order", Guarded(TopologicalOrderOf))
      .def("tvm_interop.graph_blocks", Guarded(Blocks))
      .def("tvm_interop.validate_stages", Guarded(ValidateStagesOf))
      .def("tvm_interop.validate_streams", Guarded(ValidateStreamsOf))
      .def("tvm_interop.simulate_streams", Guarded(Simulate))
      .def("tvm_interop.simulate_contention", Guarded(SimulateContentionOf))
      .def("tvm_interop.pack_groups_of_stages", Guarded(PackGroupsOfStagesOf))
      .def("tvm_interop.pack_stages", Guarded(PackStagesOf))
      .def("tvm_interop.price_stages", Guarded(PriceStagesOf))
      .def("tvm_interop.ios_enumerate", Guarded(IosEnumerate))
      .def("tvm_interop.ios_windows", Guarded(IosWindows))
      .def("tvm_interop.ios_effort", Guarded(IosEffort))
      .def("tvm_interop.ios_left_out", Guarded(IosLeftOut))
      .def("tvm_interop.ios_stages", Guarded(IosStages))
      .def("tvm_interop.ios_stats", Guarded(IosStatsOf))
      .def("tvm_interop.ios_solve", Guarded(IosSolve))
      .def("tvm_interop.ios_wanted", Guarded(IosWanted))
      .def("tvm_interop.stage_book_make", Guarded(StageBookMake))
      .def("tvm_interop.stage_book_write", Guarded(StageBookWrite))
      .def("tvm_interop.stage_book_read", Guarded(StageBookRead))
      .def("tvm_interop.ios_pricing_make", Guarded(IosPricingMake))
      .def("tvm_interop.ios_pricing_bounds", Guarded(IosPricingBounds))
      .def("tvm_interop.ios_pricing_give", Guarded(IosPricingGive))
      .def("tvm_interop.ios_pricing_next", Guarded(IosPricingNext))
      .def("tvm_interop.ios_pricing_prices", Guarded(IosPricingPrices))
      .def("tvm_interop.ios_pricing_values", Guarded(IosPricingValues))
      .def("tvm_interop.ios_pricing_num_priced", Guarded(IosPricingNumPriced))
      .def("tvm_interop.stage_beam_make", Guarded(StageBeamMake))
      .def("tvm_interop.stage_beam_run", Guarded(StageBeamRun))
      .def("tvm_interop.lios", Guarded(Lios))
      .def("tvm_interop.lios_rand1", Guarded(LiosRand1))
      .def("tvm_interop.lios_rand2", Guarded(LiosRand2))
      .def("tvm_interop.lios_rand", Guarded(LiosRand))
      .def("tvm_interop.lios_plus", Guarded(LiosPlus))
      .def("tvm_interop.greedy", Guarded(Greedy))
      .def("tvm_interop.nimble", Guarded(Nimble))
      .def("tvm_interop.opara", Guarded(Opara))
      .def("tvm_interop.fold_streams", Guarded(FoldStreamsOf))
      .def("tvm_interop.plan_sync", Guarded(PlanSyncOf))
      .def("tvm_interop.plan_memory", Guarded(PlanMemoryOf))
      .def("tvm_interop.memory_order", Guarded(MemoryOrderOf));
}

}  // namespace
}  // namespace tvm_interop
