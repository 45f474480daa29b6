// The bindings that export the serving simulator to Python. A set of parts of a program is passed
// as an int64, with one bit for each part.
#include "passes/simulate/serving.h"

#include <tvm/ffi/tvm_ffi.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/ffi/convert.h"
#include "passes/simulate/combined.h"

namespace tvm_interop {
namespace {

class ServedProgramObj : public ffi::Object {
 public:
  explicit ServedProgramObj(ServedProgram program) : program(std::move(program)) {}
  const ServedProgram program;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.ServedProgram", ServedProgramObj, ffi::Object);
};

class ServedProgramRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(ServedProgramRef, ffi::ObjectRef, ServedProgramObj);
};

class ServingEngineObj : public ffi::Object {
 public:
  explicit ServingEngineObj(const ServingDevice& device) : engine(device) {}
  mutable ServingEngine engine;
  // The programs of running instances. They are kept alive here, because the engine refers to them.
  mutable std::unordered_map<int, ServedProgramRef> running;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.ServingEngine", ServingEngineObj, ffi::Object);
};

class ServingEngineRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(ServingEngineRef, ffi::ObjectRef, ServingEngineObj);
};

// `figures` are the cores, the bandwidth, the interference, and the delays of a wait, a barrier and
// a launch in microseconds.
ServingDevice ToDevice(const ffi::Bytes& figures) {
  const std::vector<double> values = Unpack<double>(figures);
  return {{values.at(0), values.at(1), values.at(2)}, values.at(3), values.at(4), values.at(5)};
}

// `places` holds three numbers for each operator: its number of waits, its segment, and its part of
// the program. A segment starts when the segment before it has ended.
ServedProgramRef MakeServedProgram(OpGraphRef graph, IntLists streams, ffi::Bytes op_us,
                                   ffi::Bytes op_cores, ffi::Bytes memory_share, ffi::Bytes places,
                                   bool has_barriers) {
  const auto us = UnpackForOps<double>(graph, op_us);
  const auto cores = UnpackForOps<double>(graph, op_cores);
  const auto shares = UnpackForOps<double>(graph, memory_share);
  const auto rows = Unpack<int64_t>(places);
  std::vector<ServedOp> ops;
  for (size_t op = 0; op < us.size(); ++op) {
    ops.push_back({us[op], cores[op], shares[op], ToInt(rows.at(3 * op)),
                   ToInt(rows.at(3 * op + 1)), ToInt(rows.at(3 * op + 2))});
  }
  return ServedProgramRef(ffi::make_object<ServedProgramObj>(
      ServedProgram(graph->graph, ToVectors(streams), ops, has_barriers)));
}

// Returns two times in microseconds: the duration of the run, and its busy time. The busy time is
// the share of the cores that are busy, integrated over time.
ffi::Array<double> RunAlone(ServedProgramRef program, int64_t present, ffi::Bytes device) {
  const AloneRun run = program->program.Alone(static_cast<uint64_t>(present), ToDevice(device));
  return {run.us, run.busy_us};
}

ServingEngineRef MakeServingEngine(ffi::Bytes device) {
  return ServingEngineRef(ffi::make_object<ServingEngineObj>(ToDevice(device)));
}
int64_t StartInstance(ServingEngineRef engine, ServedProgramRef program, int64_t present,
                      bool alone) {
  const int number = engine->engine.Start(program->program, static_cast<uint64_t>(present), alone);
  engine->running[number] = program;
  return number;
}
int64_t AdvanceEngine(ServingEngineRef engine, double until_us) {
  const int number = engine->engine.Advance(until_us);
  if (number >= 0) engine->running.erase(number);
  return number;
}
double EngineNow(ServingEngineRef engine) { return engine->engine.now_us(); }
double EngineBusy(ServingEngineRef engine) { return engine->engine.busy_us(); }

class CombinedServingObj : public ffi::Object {
 public:
  CombinedServingObj(const ServingDevice& device, std::vector<Follower> followers)
      : serving(device, std::move(followers)) {}
  mutable CombinedServing serving;
  // The programs of the current decision (which blocks of models run together), kept alive because
  // `serving` refers to them.
  mutable std::vector<ServedProgramRef> programs;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("tvm_interop.CombinedServing", CombinedServingObj, ffi::Object);
};

class CombinedServingRef : public ffi::ObjectRef {
 public:
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(CombinedServingRef, ffi::ObjectRef,
                                             CombinedServingObj);
};

// A combined block consists of several blocks of models that run as one program. Each of these
// blocks is a part of the program. `places` holds two lists for each model, with an entry for each
// block of the model. The entry of the first list is the number of the combined block that holds
// the block. The entry of the second list is the number of the block's part in that program.
Combination ToCombination(const ffi::Array<ServedProgramRef>& programs,
                          const ffi::Array<IntLists>& places, const ffi::Bytes& interval_us,
                          int64_t buffer) {
  Combination combination;
  for (const ServedProgramRef& program : programs) {
    combination.programs.push_back(&program->program);
  }
  for (const IntLists& model : places) {
    combination.program_of.push_back(ToVector(model[0]));
    combination.part_of.push_back(ToVector(model[1]));
  }
  combination.interval_us = Unpack<double>(interval_us);
  combination.buffer = ToInt(buffer);
  if (combination.interval_us.size() != combination.program_of.size() || combination.buffer < 1) {
    throw ScheduleError("a combination has " + std::to_string(combination.interval_us.size()) +
                        " intervals for " + std::to_string(combination.program_of.size()) +
                        " models, and buffers of " + std::to_string(combination.buffer) +
                        "; give one interval for each model, and a buffer of 1 or more");
  }
  return combination;
}

void CheckArrivals(const std::vector<double>& at_us, const std::vector<int>& models) {
  if (at_us.size() == models.size()) return;
  throw ScheduleError("there are " + std::to_string(at_us.size()) + " times of arrival for " +
                      std::to_string(models.size()) + " requests; give one time for each request");
}

// A follower is a rule that brings a new request when a request has been served (see `Follower`).
// It is passed as three numbers: the model of the served request, the model of the new request, and
// a delay in microseconds.
std::vector<Follower> ToFollowers(const ffi::Bytes& packed) {
  const std::vector<double> numbers = Unpack<double>(packed);
  std::vector<Follower> followers;
  for (size_t i = 0; i + 2 < numbers.size(); i += 3) {
    followers.push_back(
        {static_cast<int>(numbers[i]), static_cast<int>(numbers[i + 1]), numbers[i + 2]});
  }
  return followers;
}

std::vector<int> ToModels(const ffi::Bytes& packed) {
  std::vector<int> models;
  for (int64_t model : Unpack<int64_t>(packed)) models.push_back(ToInt(model));
  return models;
}

// The models of requests, and three times of each: arrived, dequeued and finished.
ffi::Array<ffi::Bytes> PackRequests(const std::vector<ServedRequest>& requests) {
  std::vector<int64_t> models;
  std::vector<double> times;
  for (const ServedRequest& request : requests) {
    models.push_back(request.model);
    times.insert(times.end(), {request.arrived_us, request.dequeued_us, request.finished_us});
  }
  return {Pack(models), Pack(times)};
}

ffi::Bytes PackFigures(double busy_us, int64_t rounds) {
  return Pack(std::vector<double>{busy_us, static_cast<double>(rounds)});
}

// `arrivals` holds three lists: the times of the given arrivals, their models, and the followers.
//
// Returns three lists. The first holds the model of each request. The second holds three times of
// each request: arrived, dequeued and finished. The third holds the busy time in microseconds and
// the number of rounds (runs of combined blocks).
ffi::Array<ffi::Bytes> SimulateCombinedOf(ffi::Bytes device, ffi::Array<ServedProgramRef> programs,
                                          ffi::Array<IntLists> places, ffi::Bytes interval_us,
                                          int64_t buffer, ffi::Array<ffi::Bytes> arrivals,
                                          double until_us) {
  const Combination combination = ToCombination(programs, places, interval_us, buffer);
  const ArrivalList list = {Unpack<double>(arrivals[0]), ToModels(arrivals[1]),
                            ToFollowers(arrivals[2])};
  CheckArrivals(list.at_us, list.models);
  const CombinedRun run = SimulateCombined(ToDevice(device), combination, list, until_us);
  ffi::Array<ffi::Bytes> found = PackRequests(run.requests);
  found.push_back(PackFigures(run.busy_us, run.rounds));
  return found;
}

CombinedServingRef MakeCombinedServing(ffi::Bytes device, ffi::Bytes followers) {
  return CombinedServingRef(
      ffi::make_object<CombinedServingObj>(ToDevice(device), ToFollowers(followers)));
}

void DecideCombined(CombinedServingRef serving, ffi::Array<ServedProgramRef> programs,
                    ffi::Array<IntLists> places, ffi::Bytes interval_us, int64_t buffer) {
  serving->serving.Decide(ToCombination(programs, places, interval_us, buffer));
  serving->programs = {programs.begin(), programs.end()};
}

// `arrivals` holds two lists: the times of further arrivals and their models. `at_us` holds the
// times at which the state of queues and blocks is observed.
//
// Returns four lists. The first three are as for `simulate_combined`, with the requests that
// `CombinedWindow` holds. The fourth holds the observations.
ffi::Array<ffi::Bytes> RunCombined(CombinedServingRef serving, ffi::Array<ffi::Bytes> arrivals,
                                   double until_us, ffi::Bytes at_us) {
  const std::vector<double> times = Unpack<double>(arrivals[0]);
  const std::vector<int> models = ToModels(arrivals[1]);
  CheckArrivals(times, models);
  serving->serving.Add(times, models);
  const CombinedWindow window = serving->serving.Run(until_us, Unpack<double>(at_us));
  ffi::Array<ffi::Bytes> found = PackRequests(window.requests);
  found.push_back(PackFigures(window.busy_us, window.rounds));
  found.push_back(Pack(window.observed));
  return found;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  refl::GlobalDef()
      .def("tvm_interop.served_program_make", Guarded(MakeServedProgram))
      .def("tvm_interop.served_program_alone", Guarded(RunAlone))
      .def("tvm_interop.serving_engine_make", Guarded(MakeServingEngine))
      .def("tvm_interop.serving_engine_start", Guarded(StartInstance))
      .def("tvm_interop.serving_engine_advance", Guarded(AdvanceEngine))
      .def("tvm_interop.serving_engine_now", Guarded(EngineNow))
      .def("tvm_interop.serving_engine_busy", Guarded(EngineBusy))
      .def("tvm_interop.simulate_combined", Guarded(SimulateCombinedOf))
      .def("tvm_interop.combined_serving_make", Guarded(MakeCombinedServing))
      .def("tvm_interop.combined_serving_decide", Guarded(DecideCombined))
      .def("tvm_interop.combined_serving_run", Guarded(RunCombined));
}

}  // namespace
}  // namespace tvm_interop
