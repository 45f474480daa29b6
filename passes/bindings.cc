// The only file here that knows tvm-ffi. It turns arrays into the core's types and back, and the
// core's errors into the Python classes of the same name. Long lists of numbers travel as bytes
// (int64 or double, as numpy lays them out), short ones as arrays.
#include <tvm/ffi/tvm_ffi.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "passes/blocks.h"
#include "passes/check_plan.h"
#include "passes/error.h"
#include "passes/fold_streams.h"
#include "passes/greedy.h"
#include "passes/ios.h"
#include "passes/ios_pricing.h"
#include "passes/lios.h"
#include "passes/lios_plus.h"
#include "passes/lios_random.h"
#include "passes/memory_order.h"
#include "passes/memory_plan.h"
#include "passes/nimble.h"
#include "passes/op_graph.h"
#include "passes/opara.h"
#include "passes/pack_groups.h"
#include "passes/schedule.h"
#include "passes/simulate.h"
#include "passes/simulate_contention.h"
#include "passes/stage_batch.h"
#include "passes/sync_plan.h"

namespace tvm_interop {
namespace {

namespace ffi = tvm::ffi;
namespace refl = tvm::ffi::reflection;

using IntList = ffi::Array<int64_t>;
using IntLists = ffi::Array<IntList>;

class OpGraphObj : public ffi::Object {
 public:
  explicit OpGraphObj(OpGraph graph) : graph(std::move(graph)) {}
  const OpGraph graph;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.OpGraph", OpGraphObj, ffi::Object);
};

class OpGraphRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(OpGraphRef, ffi::ObjectRef, OpGraphObj);
};

class IosSearchObj : public ffi::Object {
 public:
  IosSearchObj(OpGraphRef graph, const IosOptions& options)
      : graph(std::move(graph)), search(this->graph->graph, options) {}
  const OpGraphRef graph;  // which the search refers to
  const IosSearch search;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.IosSearch", IosSearchObj, ffi::Object);
};

class IosSearchRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(IosSearchRef, ffi::ObjectRef, IosSearchObj);
};

class IosPricingObj : public ffi::Object {
 public:
  explicit IosPricingObj(IosSearchRef search)
      : search(std::move(search)), pricing(this->search->search) {}
  const IosSearchRef search;  // which the pricing refers to
  mutable IosPricing pricing;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.IosPricing", IosPricingObj, ffi::Object);
};

class IosPricingRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(IosPricingRef, ffi::ObjectRef, IosPricingObj);
};

// Saturates: an id that far out is refused as one that the graph does not have.
int ToInt(int64_t value) {
  return static_cast<int>(
      std::clamp<int64_t>(value, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
}

std::vector<int> ToVector(const IntList& list) {
  std::vector<int> values;
  values.reserve(list.size());
  for (int64_t value : list) values.push_back(ToInt(value));
  return values;
}

std::vector<std::vector<int>> ToVectors(const IntLists& lists) {
  std::vector<std::vector<int>> values;
  values.reserve(lists.size());
  for (const IntList& list : lists) values.push_back(ToVector(list));
  return values;
}

IntList ToArray(const std::vector<int>& values) {
  IntList list;
  list.reserve(static_cast<int64_t>(values.size()));
  for (int value : values) list.push_back(value);
  return list;
}

IntLists ToArrays(const std::vector<std::vector<int>>& lists) {
  IntLists arrays;
  arrays.reserve(static_cast<int64_t>(lists.size()));
  for (const auto& list : lists) arrays.push_back(ToArray(list));
  return arrays;
}

template <typename T>
std::vector<T> Unpack(const ffi::Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <typename T>
ffi::Bytes Pack(const std::vector<T>& values) {
  return ffi::Bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::vector<Edge> UnpackEdges(const ffi::Bytes& bytes) {
  const std::vector<int64_t> ids = Unpack<int64_t>(bytes);
  std::vector<Edge> edges;
  for (size_t i = 0; i + 1 < ids.size(); i += 2)
    edges.emplace_back(ToInt(ids[i]), ToInt(ids[i + 1]));
  return edges;
}

// A stage crosses as lists of numbers: {kind, barrier}, the groups' streams, then each group.
std::vector<Stage> ToStages(const ffi::Array<IntLists>& lists) {
  std::vector<Stage> stages;
  for (const IntLists& list : lists) {
    Stage stage;
    stage.kind = static_cast<Stage::Kind>(list[0][0]);
    stage.barrier = list[0][1] != 0;
    stage.streams = ToVector(list[1]);
    for (size_t g = 2; g < list.size(); ++g) stage.groups.push_back(ToVector(list[g]));
    stages.push_back(std::move(stage));
  }
  return stages;
}

ffi::Array<IntLists> FromStages(const std::vector<Stage>& stages) {
  ffi::Array<IntLists> lists;
  for (const Stage& stage : stages) {
    IntLists list = {{static_cast<int64_t>(stage.kind), stage.barrier}, ToArray(stage.streams)};
    for (const auto& group : stage.groups) list.push_back(ToArray(group));
    lists.push_back(list);
  }
  return lists;
}

ffi::Array<ffi::Bytes> FromBatch(const StageBatch& batch) {
  return {Pack(batch.ops), Pack(batch.group_ends), Pack(batch.stage_ends)};
}

StageBatch ToBatch(const ffi::Array<ffi::Bytes>& parts) {
  return {Unpack<int64_t>(parts[0]), Unpack<int64_t>(parts[1]), Unpack<int64_t>(parts[2])};
}

std::vector<Buffer> ToBuffers(const IntList& nbytes, const IntLists& producers,
                              const IntLists& users) {
  std::vector<Buffer> buffers;
  for (size_t b = 0; b < nbytes.size(); ++b) {
    buffers.push_back({nbytes[b], ToVector(producers[b]), ToVector(users[b])});
  }
  return buffers;
}

// The function with the core's errors turned into tvm-ffi's, which Python raises by their kind.
template <typename Result, typename... Args>
auto Guarded(Result (*function)(Args...)) {
  return [function](Args... args) -> Result {
    try {
      return function(std::move(args)...);
    } catch (const PassError& error) {
      throw ffi::Error(error.kind(), error.what(), "");
    }
  };
}

OpGraphRef MakeGraph(ffi::Array<ffi::String> names, ffi::Bytes edges) {
  std::vector<std::string> copied(names.begin(), names.end());
  return OpGraphRef(ffi::make_object<OpGraphObj>(OpGraph(std::move(copied), UnpackEdges(edges))));
}
int64_t Width(OpGraphRef graph) { return graph->graph.Width(); }
bool Reaches(OpGraphRef graph, int64_t from, int64_t to) {
  return graph->graph.Reaches(ToInt(from), ToInt(to));
}
IntList Predecessors(OpGraphRef graph, int64_t op) {
  return ToArray(graph->graph.predecessors(ToInt(op)));
}
IntList Successors(OpGraphRef graph, int64_t op) {
  return ToArray(graph->graph.successors(ToInt(op)));
}
IntList TopologicalOrderOf(OpGraphRef graph) { return ToArray(graph->graph.topological_order()); }
IntLists Blocks(OpGraphRef graph) { return ToArrays(FindBlocks(graph->graph)); }

void ValidateStagesOf(OpGraphRef graph, ffi::Array<IntLists> stages) {
  ValidateStages(graph->graph, ToStages(stages));
}
void ValidateStreamsOf(OpGraphRef graph, IntLists streams) {
  ValidateStreams(graph->graph, ToVectors(streams));
}
double Simulate(OpGraphRef graph, IntLists streams, ffi::Bytes op_us) {
  return SimulateStreams(graph->graph, ToVectors(streams), Unpack<double>(op_us));
}

ffi::Array<ffi::Bytes> PackStagesOf(ffi::Array<ffi::Bytes> batch, ffi::Bytes op_us,
                                    int64_t streams) {
  return FromBatch(PackStages(ToBatch(batch), Unpack<double>(op_us), ToInt(streams)));
}
ffi::Bytes PriceStagesOf(ffi::Array<ffi::Bytes> batch, ffi::Bytes op_us) {
  return Pack(PriceStages(ToBatch(batch), Unpack<double>(op_us)));
}
IntList PackGroupsOf(ffi::Bytes group_us, int64_t streams) {
  return ToArray(PackGroups(Unpack<double>(group_us), ToInt(streams)));
}

IosSearchRef IosEnumerate(OpGraphRef graph, int64_t max_group_ops, int64_t max_groups,
                          bool single_root, int64_t max_transitions) {
  const IosOptions options = {{ToInt(max_group_ops), ToInt(max_groups), single_root},
                              max_transitions};
  return IosSearchRef(ffi::make_object<IosSearchObj>(graph, options));
}
ffi::Array<ffi::Bytes> IosStages(IosSearchRef search) { return FromBatch(search->search.stages()); }
ffi::Map<ffi::String, ffi::Any> IosStatsOf(IosSearchRef search) {
  const IosStats& stats = search->search.stats();
  return {{"blocks", stats.blocks}, {"parts_cut", stats.parts_cut},
          {"states", stats.states}, {"transitions", stats.transitions},
          {"stages", stats.stages}, {"schedules", stats.schedules}};
}
// The stages, and the predicted makespan in microseconds.
ffi::Array<ffi::Any> IosSolve(IosSearchRef search, ffi::Bytes price_us) {
  const Schedule schedule = search->search.Solve(Unpack<double>(price_us));
  return {FromStages(schedule.stages), schedule.makespan_us};
}

// Indices of the stages to price next, the most important first.
ffi::Bytes IosWanted(IosSearchRef search, ffi::Bytes value_us, ffi::Bytes is_priced,
                     int64_t at_least) {
  PricingProgress progress(search->search.parts().size());
  const std::vector<size_t> wanted =
      WantedStages(search->search, Unpack<double>(value_us), Unpack<char>(is_priced),
                   static_cast<size_t>(at_least), &progress);
  return Pack(std::vector<int64_t>(wanted.begin(), wanted.end()));
}

IosPricingRef IosPricingMake(IosSearchRef search) {
  return IosPricingRef(ffi::make_object<IosPricingObj>(search));
}
ffi::Array<ffi::Bytes> IosPricingSingles(IosPricingRef pricing) {
  const std::vector<size_t> singles = pricing->pricing.SingleOperators();
  return FromBatch(pricing->search->search.stages().Select(singles));
}
// `op_us` and `streams` are empty and 0 where the stages are not packed; `work_us` is empty where
// operators have one core each.
void IosPricingBounds(IosPricingRef pricing, ffi::Bytes single_us, ffi::Bytes op_us,
                      int64_t streams, int64_t cores, ffi::Bytes work_us, double tolerance,
                      double slack_us) {
  pricing->pricing.SetBounds(Unpack<double>(single_us),
                             {Unpack<double>(op_us), ToInt(streams), ToInt(cores),
                              Unpack<double>(work_us), tolerance, slack_us});
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
// How many prices were below their bound, and what the bounds are scaled to now.
ffi::Array<ffi::Any> IosPricingPrices(IosPricingRef pricing, ffi::Bytes price_us) {
  const int64_t below = pricing->pricing.SetPrices(Unpack<double>(price_us));
  return {below, pricing->pricing.scale()};
}
ffi::Bytes IosPricingValues(IosPricingRef pricing) { return Pack(pricing->pricing.value_us()); }

// The streams, the timeline as {operator, stream} and {start, finish} of each placement, and the
// predicted makespan in microseconds.
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
  return FromTimeline(ScheduleLios(graph->graph, Unpack<double>(op_us), ToInt(streams)));
}
ffi::Array<ffi::Any> LiosRand1(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, int64_t seed) {
  return FromTimeline(ScheduleLiosRand1(graph->graph, Unpack<double>(op_us), ToInt(streams),
                                        static_cast<uint64_t>(seed)));
}
ffi::Array<ffi::Any> LiosRand2(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, int64_t seed) {
  return FromTimeline(ScheduleLiosRand2(graph->graph, Unpack<double>(op_us), ToInt(streams),
                                        static_cast<uint64_t>(seed)));
}
ffi::Array<ffi::Any> LiosRand(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, int64_t seed) {
  return FromTimeline(ScheduleLiosRand(graph->graph, Unpack<double>(op_us), ToInt(streams),
                                       static_cast<uint64_t>(seed)));
}
ffi::Array<ffi::Any> LiosPlus(OpGraphRef graph, ffi::Bytes op_us, int64_t streams, double wait_us) {
  return FromTimeline(
      ScheduleLiosPlus(graph->graph, Unpack<double>(op_us), ToInt(streams), wait_us));
}
ffi::Array<ffi::Any> SimulateContentionOf(OpGraphRef graph, IntLists streams, IntLists waits,
                                          ffi::Bytes op_us, double cores, double bandwidth,
                                          ffi::Bytes op_cores, ffi::Bytes memory_share,
                                          double wait_us) {
  const Contention contention = {cores, bandwidth, Unpack<double>(op_cores),
                                 Unpack<double>(memory_share), wait_us};
  return FromTimeline(SimulateContention(graph->graph, ToVectors(streams), ToVectors(waits),
                                         Unpack<double>(op_us), contention));
}
ffi::Array<IntLists> Greedy(OpGraphRef graph, int64_t max_groups) {
  return FromStages(ScheduleGreedy(graph->graph, ToInt(max_groups)).stages);
}

// The streams, then how many reduced edges, matched ones, chains and waits there are.
ffi::Array<ffi::Any> Nimble(OpGraphRef graph) {
  const NimbleSchedule schedule = ScheduleNimble(graph->graph);
  return {ToArrays(schedule.streams), schedule.reduced_edges, schedule.matching, schedule.chains,
          schedule.waits()};
}
// The streams and the launch order.
ffi::Array<ffi::Any> Opara(OpGraphRef graph, ffi::Bytes demand, ffi::Bytes is_memory_bound) {
  const OparaSchedule schedule =
      ScheduleOpara(graph->graph, Unpack<double>(demand), Unpack<char>(is_memory_bound));
  return {ToArrays(schedule.streams), ToArray(schedule.launch_order)};
}
// Operators of the same stream run in `order`; in order of earliest start where that is empty.
IntLists FoldStreamsOf(OpGraphRef graph, IntLists streams, ffi::Bytes op_us_bytes,
                       int64_t num_streams, IntList order) {
  const std::vector<double> op_us = Unpack<double>(op_us_bytes);
  return ToArrays(
      FoldStreams(ToVectors(streams), op_us, ToInt(num_streams),
                  order.empty() ? EarliestFirst(graph->graph, op_us) : ToVector(order)));
}

IntLists PlanSyncOf(OpGraphRef graph, IntLists streams, ffi::Bytes extra_edges) {
  return ToArrays(PlanSync(graph->graph, ToVectors(streams), UnpackEdges(extra_edges)));
}
void CheckSyncOf(OpGraphRef graph, IntLists streams, IntLists waits, ffi::Bytes extra_edges) {
  CheckSync(graph->graph, ToVectors(streams), ToVectors(waits), UnpackEdges(extra_edges));
}
ffi::Array<ffi::Any> PlanMemoryOf(OpGraphRef graph, IntLists streams, IntLists waits,
                                  IntList nbytes, IntLists producers, IntLists users,
                                  int64_t alignment) {
  const MemoryPlan plan = PlanMemory(graph->graph, ToVectors(streams), ToVectors(waits),
                                     ToBuffers(nbytes, producers, users), alignment);
  return {IntList(plan.offsets.begin(), plan.offsets.end()), plan.arena_bytes};
}
// The order, and the most bytes in use at once in it and in the topological order.
ffi::Array<ffi::Any> MemoryOrderOf(OpGraphRef graph, IntList nbytes, IntLists producers,
                                   IntLists users) {
  const std::vector<Buffer> buffers = ToBuffers(nbytes, producers, users);
  const std::vector<int> order = MemoryOrder(graph->graph, buffers);
  return {ToArray(order), PeakBytes(order, buffers),
          PeakBytes(graph->graph.topological_order(), buffers)};
}
void CheckMemoryOf(OpGraphRef graph, IntLists streams, IntLists waits, IntList nbytes,
                   IntLists producers, IntLists users, int64_t alignment, IntList offsets,
                   int64_t arena_bytes) {
  const MemoryPlan plan = {{offsets.begin(), offsets.end()}, arena_bytes};
  CheckMemory(graph->graph, ToVectors(streams), ToVectors(waits),
              ToBuffers(nbytes, producers, users), alignment, plan);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::ObjectDef<OpGraphObj>();
  refl::ObjectDef<IosSearchObj>();
  refl::ObjectDef<IosPricingObj>();
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
      .def("tvm_interop.pack_groups", Guarded(PackGroupsOf))
      .def("tvm_interop.pack_stages", Guarded(PackStagesOf))
      .def("tvm_interop.price_stages", Guarded(PriceStagesOf))
      .def("tvm_interop.ios_enumerate", Guarded(IosEnumerate))
      .def("tvm_interop.ios_stages", Guarded(IosStages))
      .def("tvm_interop.ios_stats", Guarded(IosStatsOf))
      .def("tvm_interop.ios_solve", Guarded(IosSolve))
      .def("tvm_interop.ios_wanted", Guarded(IosWanted))
      .def("tvm_interop.ios_pricing_make", Guarded(IosPricingMake))
      .def("tvm_interop.ios_pricing_singles", Guarded(IosPricingSingles))
      .def("tvm_interop.ios_pricing_bounds", Guarded(IosPricingBounds))
      .def("tvm_interop.ios_pricing_give", Guarded(IosPricingGive))
      .def("tvm_interop.ios_pricing_next", Guarded(IosPricingNext))
      .def("tvm_interop.ios_pricing_prices", Guarded(IosPricingPrices))
      .def("tvm_interop.ios_pricing_values", Guarded(IosPricingValues))
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
      .def("tvm_interop.check_sync", Guarded(CheckSyncOf))
      .def("tvm_interop.plan_memory", Guarded(PlanMemoryOf))
      .def("tvm_interop.memory_order", Guarded(MemoryOrderOf))
      .def("tvm_interop.check_memory", Guarded(CheckMemoryOf));
}

}  // namespace
}  // namespace tvm_interop
