#ifndef RUNTIME_CUDA_EXECUTOR_H_
#define RUNTIME_CUDA_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/op_timing.h"
#include "runtime/core/timed.h"
#include "runtime/cuda/api.h"
#include "runtime/cuda/streams.h"

namespace tvm_interop {

// One operator, its arguments bound.
class CudaKernel {
 public:
  virtual ~CudaKernel() = default;
  // Puts the operator's work on `stream`, all of it, and does not wait for it. Throws where that
  // fails. The first call may be slower and may allocate; later ones must not, or no graph can be
  // captured.
  virtual void Launch(const CudaStream& stream) = 0;
};

// One operator of a plan, in the order of launching: it respects the dependencies.
struct CudaPlannedOp {
  std::string name;
  CudaKernel* kernel = nullptr;  // Owned by the plan's maker; outlives the executor.
  int stream = 0;                // Of the pool; its device is the operator's.
  // Operators on other streams that must have ended first: indices of earlier operators.
  std::vector<int> waits;
};

// How an executor hands its operators to the GPU.
enum class CudaDispatch {
  kStreams,        // Each operator in turn, on its stream, in every run.
  kCapturedGraph,  // All streams recorded once into a graph, which is launched in every run.
  kLinkedGraph,    // A graph made of each operator's own, linked by the plan's waits.
};

// Runs a plan on CUDA streams, from one host thread. Streams wait for each other on the GPU, the
// host for all of them at the end of a run. Operators are launched, and recorded into a graph, in
// the order given.
class CudaExecutor : public Timed {
 public:
  // Runs each operator once, to load its code and to see it fail by itself if it does, then makes
  // the graph. Where no graph can be made the executor works without, and `why_no_graph` tells.
  // Throws std::runtime_error for a stream the pool lacks, a wait for an operator that is not
  // earlier, and an operator that fails.
  CudaExecutor(std::shared_ptr<CudaStreams> streams, const std::vector<CudaPlannedOp>& ops,
               CudaDispatch dispatch);
  ~CudaExecutor() override;

  // Runs every operator once and returns when all have ended.
  void Run();

  // Seconds the GPU took for `number` runs, one after the other.
  double Time(int number) override;

  // Runs once, without a graph, and tells when each operator began and ended on the GPU. On several
  // GPUs each has a clock of its own, set by an event: a few microseconds lie between them.
  std::vector<OpTiming> Profile();

  // Seconds the host took to launch `number` runs, without waiting for the GPU.
  double TimeLaunches(int number);

  CudaDispatch dispatch() const { return dispatch_; }
  // Empty where there is the graph asked for.
  const std::string& why_no_graph() const { return why_no_graph_; }

 private:
  struct Step {
    CudaKernel* kernel;
    CudaStream stream;
    cuda::Event record;  // Null where nobody waits for this operator.
    uint32_t waits_begin;
    uint32_t waits_end;
  };

  void MakeSteps(const std::vector<CudaPlannedOp>& ops);
  void MakeJoins(const std::vector<CudaPlannedOp>& ops);
  cuda::Event NewEvent(int device);
  void WarmUp();
  void MakeGraph(const std::vector<CudaPlannedOp>& ops, CudaDispatch dispatch);
  cuda::OwnedGraph LinkOperators(const std::vector<CudaPlannedOp>& ops);

  void Launch();
  void LaunchStreams();
  void Fork();
  void Await(const Step& step);
  void LaunchKernel(size_t op);
  void Record(const Step& step);
  void Join();
  void Synchronize();

  std::shared_ptr<CudaStreams> streams_;
  cuda::Stream origin_;  // Starts and ends every run.
  std::vector<std::string> names_;
  std::vector<int> stream_of_;
  std::vector<Step> steps_;
  std::vector<cuda::Event> waits_;
  bool is_over_devices_;
  cuda::Event fork_ = nullptr;
  std::vector<cuda::Stream> forked_;  // Streams that nothing else holds back at first.
  std::vector<cuda::Event> joined_;   // Ends of streams that nobody else waits for.
  std::vector<std::pair<int, cuda::OwnedEvent>> events_;  // All of the above, with their devices.
  CudaDispatch dispatch_ = CudaDispatch::kStreams;
  std::string why_no_graph_;
  cuda::OwnedGraphExec graph_;
};

}  // namespace tvm_interop

#endif  // RUNTIME_CUDA_EXECUTOR_H_
