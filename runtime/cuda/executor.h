#ifndef RUNTIME_CUDA_EXECUTOR_H_
#define RUNTIME_CUDA_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/op_timing.h"
#include "runtime/core/timed.h"
#include "runtime/cuda/api.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

// One operator whose kernel and arguments are fixed.
class CudaKernel {
 public:
  virtual ~CudaKernel() = default;
  // Puts all of the operator's work on `stream` and does not wait for it. Throws if this fails. The
  // first call may be slow and may allocate memory. Later calls must not allocate memory: they may
  // be captured in a graph, and the capture would fail.
  virtual void Launch(const CudaStream& stream) = 0;
  // The number of bytes of workspace that `Launch` needs. The executor reserves them on the stream.
  virtual size_t workspace_nbytes() const { return 0; }
};

// One operator of a plan. The operators of a plan come in the order of their launches, which is a
// topological order.
struct CudaPlannedOp {
  std::string name;
  CudaKernel* kernel = nullptr;  // The caller owns the kernel, which must outlive the executor.
  int stream = 0;                // A stream of the pool, on the operator's device.
  // The operators on other streams that must end before this operator starts, as indices of earlier
  // operators.
  std::vector<int> waits;
};

// How an executor hands its operators to the GPU.
enum class CudaDispatch {
  // Every run launches each operator on its stream.
  kStreams,
  // All streams are captured once in a graph. Every run launches this graph.
  kCapturedGraph,
  // Each operator is captured once in a small graph. The small graphs become one graph, whose edges
  // are the waits and the order within each stream. Every run launches this graph.
  kLinkedGraph,
};

// Runs a plan on CUDA streams, from one host thread. The streams wait for each other on the GPU. At
// the end of a run, the host waits for all streams. The operators are launched, or captured in a
// graph, in the given order.
class CudaExecutor : public Timed {
 public:
  // Runs each operator once alone, which loads the operator's code and shows whether the operator
  // fails. Then makes the graph. If no graph can be made, the executor works without a graph, and
  // `why_no_graph` gives the reason. Throws std::runtime_error if the pool lacks an operator's
  // stream, if an operator waits for an operator that is not earlier, or if an operator fails.
  CudaExecutor(std::shared_ptr<CudaStreams> streams, const std::vector<CudaPlannedOp>& ops,
               CudaDispatch dispatch);
  ~CudaExecutor() override;

  // Runs every operator once and returns when all operators have ended.
  void Run() {
    RunAnd([] {});
  }

  // Works like `Run`, and calls `put` after the launch. `put` may add work to the pool's first
  // stream. The host waits once for the run and this work.
  template <typename Put>
  void RunAnd(Put&& put) {
    CudaStreams::Lease lease(streams_.get());
    Launch();
    put();
    Synchronize();
  }

  // Launches every operator once and does not wait for the GPU. Later runs and copies happen after
  // this run.
  void Start();

  // Runs the plan `number` times, one run after the other, and returns the time on the GPU in
  // seconds.
  double Time(int number) override;

  // Runs every operator once, and returns when each operator began and ended on the GPU. If the
  // executor has a graph, the operators run in a graph that also records the times. Launches one by
  // one would leave the GPU idle between short operators. If there are several GPUs, the operators
  // are launched one by one, and the times of each GPU count from an event on this GPU. These
  // events are a few microseconds apart.
  std::vector<OpTiming> Profile();

  // Launches the plan `number` times and returns the time that the launches take on the host, in
  // seconds. This time does not include waiting for the GPU.
  double TimeLaunches(int number);

  CudaDispatch dispatch() const { return dispatch_; }
  // The reason why there is no graph. Empty if there is a graph, or if none was requested.
  const std::string& why_no_graph() const { return why_no_graph_; }

 private:
  struct Step {
    CudaKernel* kernel;
    CudaStream stream;
    cuda::Event record;  // The event at the operator's end. Null if nothing waits for it.
    uint32_t waits_begin;
    uint32_t waits_end;
  };

  void MakeSteps(const std::vector<CudaPlannedOp>& ops);
  void MakeJoins(const std::vector<CudaPlannedOp>& ops);
  cuda::Event NewEvent(int device);
  void ReserveWorkspaces();
  void UseWorkspaces();
  void WarmUp();
  void MakeGraph(const std::vector<CudaPlannedOp>& ops, CudaDispatch dispatch);
  cuda::OwnedGraph LinkOperators(const std::vector<CudaPlannedOp>& ops);

  // Events that take the times of a profile. CUDA can only compare times of the same device.
  struct Marks {
    std::map<int, cuda::OwnedEvent> began;  // For each device, the start of its clock.
    std::vector<cuda::OwnedEvent> start;    // For each operator.
    std::vector<cuda::OwnedEvent> end;
  };

  void Launch();
  // Calls `issue`, which puts a run on the streams. If it fails, waits for the work of all streams,
  // because this work must end before the next run begins.
  void OnStreams(const std::function<void()>& issue);
  void LaunchStreams();
  // Puts a run on the streams. Before and after each operator, an event records the time.
  void LaunchMarked(const Marks& marks, cuda::RecordFlags flags);
  std::vector<OpTiming> TimingsOf(const Marks& marks) const;
  void Fork();
  void Await(const Step& step);
  void LaunchKernel(size_t op);
  void Record(const Step& step);
  void Join();
  void Synchronize();
  // After an error, waits until the streams have ended their work. Throws if the GPU itself failed,
  // with the text of the error that came first.
  void Drain(const std::string& error);

  std::shared_ptr<CudaStreams> streams_;
  cuda::Stream origin_;  // The stream on which every run starts and ends.
  std::vector<std::string> names_;
  std::vector<int> stream_of_;
  std::vector<Step> steps_;
  std::vector<cuda::Event> waits_;
  bool is_over_devices_;
  cuda::Event fork_ = nullptr;
  // The streams that must wait until the run has begun. These are all streams whose first operator
  // has no waits, except the first stream.
  std::vector<cuda::Stream> forked_;
  // The events that the end of a run waits for: the events at the ends of all streams except the
  // first. An event is left out if an operator already waits for the stream's last operator.
  std::vector<cuda::Event> joined_;
  std::vector<std::pair<int, cuda::OwnedEvent>> events_;  // All events above, each with its device.
  // For each stream, the workspace of its kernels. Null if they need none.
  std::vector<std::shared_ptr<CudaWorkspace>> workspaces_;
  CudaDispatch dispatch_ = CudaDispatch::kStreams;
  std::string why_no_graph_;
  cuda::OwnedGraphExec graph_;
  bool is_started_ = false;  // Whether a run may still be at work that nobody has waited for.
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_EXECUTOR_H_
