#include "runtime/cuda/executor.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>

#include "runtime/core/check_plan.h"
#include "runtime/cuda/graph.h"
#include "runtime/cuda/timing.h"

namespace tvm_interop {
CudaExecutor::CudaExecutor(std::shared_ptr<CudaStreams> streams,
                           const std::vector<CudaPlannedOp>& ops, CudaDispatch dispatch)
    : streams_(std::move(streams)),
      origin_(streams_->stream(0).handle),
      is_over_devices_(streams_->devices().size() > 1) {
  CheckPlan(ops, streams_->num_streams());
  CudaStreams::Lease lease(streams_.get());
  MakeSteps(ops);
  MakeJoins(ops);
  ReserveWorkspaces();
  UseWorkspaces();
  streams_->Settle();
  WarmUp();
  if (dispatch == CudaDispatch::kStreams) return;
  try {
    MakeGraph(ops, dispatch);
    dispatch_ = dispatch;
  } catch (const cuda::LostError&) {
    throw;
  } catch (const std::exception& error) {
    why_no_graph_ = error.what();
    Drain(why_no_graph_);
  }
}

CudaExecutor::~CudaExecutor() {
  // A run may still need the graph, the events and the kernels. So wait for the end of the run.
  if (is_started_ && cuda::IsUsable() &&
      cuda::Api::Get().StreamSynchronize(origin_) != cuda::kSuccess) {
    cuda::Api::Get().GetLastError();
  }
  graph_.reset();
  for (auto& [device, event] : events_) streams_->ReleaseEvent(device, std::move(event));
}

void CudaExecutor::MakeSteps(const std::vector<CudaPlannedOp>& ops) {
  std::vector<bool> is_awaited(ops.size());
  for (const CudaPlannedOp& op : ops) {
    for (int wait : op.waits) is_awaited[wait] = true;
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    Step step;
    step.kernel = ops[i].kernel;
    step.stream = streams_->stream(ops[i].stream);
    step.record = is_awaited[i] ? NewEvent(step.stream.device) : nullptr;
    step.waits_begin = static_cast<uint32_t>(waits_.size());
    for (int wait : ops[i].waits) waits_.push_back(steps_[wait].record);
    step.waits_end = static_cast<uint32_t>(waits_.size());
    steps_.push_back(step);
    names_.push_back(ops[i].name);
    stream_of_.push_back(ops[i].stream);
  }
}

// A run begins and ends on the first stream. Every other stream waits until the run has begun. This
// wait is left out if the stream's first operator waits for another operator. At its end, the run
// waits for the last operator of each stream. This wait is left out if an operator on another
// stream waits for that last operator.
void CudaExecutor::MakeJoins(const std::vector<CudaPlannedOp>& ops) {
  std::vector<int> first(streams_->num_streams(), -1);
  std::vector<int> last(streams_->num_streams(), -1);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (first[ops[i].stream] < 0) first[ops[i].stream] = static_cast<int>(i);
    last[ops[i].stream] = static_cast<int>(i);
  }
  for (int s = 1; s < streams_->num_streams(); ++s) {
    if (first[s] < 0) continue;
    if (ops[first[s]].waits.empty()) forked_.push_back(streams_->stream(s).handle);
    Step& end = steps_[last[s]];
    if (end.record != nullptr) continue;
    end.record = NewEvent(end.stream.device);
    joined_.push_back(end.record);
  }
  if (!forked_.empty()) fork_ = NewEvent(streams_->stream(0).device);
}

cuda::Event CudaExecutor::NewEvent(int device) {
  events_.emplace_back(device, streams_->AcquireEvent(device));
  return events_.back().second.get();
}

// Each stream has one workspace, which is as large as the largest that a kernel of the stream
// needs. Nothing can be allocated while a graph is captured, so the workspaces are made before the
// capture.
void CudaExecutor::ReserveWorkspaces() {
  std::vector<size_t> most(streams_->num_streams());
  for (size_t i = 0; i < steps_.size(); ++i) {
    size_t& nbytes = most[stream_of_[i]];
    nbytes = std::max(nbytes, steps_[i].kernel->workspace_nbytes());
  }
  workspaces_.resize(most.size());
  for (size_t s = 0; s < most.size(); ++s) {
    if (most[s] == 0) continue;
    workspaces_[s] = streams_->stream(static_cast<int>(s)).resources->Reserve(most[s]);
  }
}

// Makes the streams use this executor's workspaces. Other executors that share the streams may have
// other workspaces.
void CudaExecutor::UseWorkspaces() {
  for (size_t s = 0; s < workspaces_.size(); ++s) {
    streams_->stream(static_cast<int>(s)).resources->Use(workspaces_[s].get());
  }
}

// CUDA reports the failure of a kernel long after its launch, and does not name the kernel. So here
// the host waits for each kernel. The first launch also loads the kernel's code. TVM does not
// protect the loading from other threads that load the same code.
void CudaExecutor::WarmUp() {
  static std::mutex loading;
  const std::lock_guard<std::mutex> lock(loading);
  const cuda::Api& api = cuda::Api::Get();
  for (size_t i = 0; i < steps_.size(); ++i) {
    LaunchKernel(i);
    const int status = api.StreamSynchronize(steps_[i].stream.handle);
    if (status == cuda::kSuccess) continue;
    api.GetLastError();
    cuda::ThrowFailure(
        status, "operator `" + names_[i] + "` failed on the GPU: " + api.GetErrorString(status));
  }
}

void CudaExecutor::MakeGraph(const std::vector<CudaPlannedOp>& ops, CudaDispatch dispatch) {
  const cuda::OwnedGraph graph = dispatch == CudaDispatch::kCapturedGraph
                                     ? CaptureGraph(origin_, [this] { LaunchStreams(); })
                                     : LinkOperators(ops);
  graph_ = InstantiateGraph(graph.get(), streams_->has_urgent(), origin_);
  Synchronize();
}

cuda::OwnedGraph CudaExecutor::LinkOperators(const std::vector<CudaPlannedOp>& ops) {
  std::vector<cuda::OwnedGraph> parts;
  std::vector<std::vector<int>> after;
  std::vector<int> last(streams_->num_streams(), -1);
  for (size_t i = 0; i < ops.size(); ++i) {
    parts.push_back(CaptureGraph(steps_[i].stream.handle, [this, i] { LaunchKernel(i); }));
    after.push_back(ops[i].waits);
    int& before = last[ops[i].stream];
    if (before >= 0) after.back().push_back(before);
    before = static_cast<int>(i);
  }
  return LinkGraphs(parts, after);
}

void CudaExecutor::Start() {
  CudaStreams::Lease lease(streams_.get());
  Launch();
  is_started_ = true;
}

double CudaExecutor::Time(int number) {
  CudaStreams::Lease lease(streams_.get());
  const cuda::Api& api = cuda::Api::Get();
  const int device = streams_->stream(0).device;
  const cuda::OwnedEvent began = TimingEvent(device);
  const cuda::OwnedEvent ended = TimingEvent(device);
  TVM_INTEROP_CUDA(api, EventRecord, began.get(), origin_);
  for (int i = 0; i < number; ++i) Launch();
  TVM_INTEROP_CUDA(api, EventRecord, ended.get(), origin_);
  Synchronize();
  float ms = 0;
  TVM_INTEROP_CUDA(api, EventElapsedTime, &ms, began.get(), ended.get());
  return static_cast<double>(ms) * 1e-3;
}

double CudaExecutor::TimeLaunches(int number) {
  CudaStreams::Lease lease(streams_.get());
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < number; ++i) Launch();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  Synchronize();
  return took.count();
}

std::vector<OpTiming> CudaExecutor::Profile() {
  CudaStreams::Lease lease(streams_.get());
  Marks marks;
  for (int device : streams_->devices()) marks.began.emplace(device, TimingEvent(device));
  for (const Step& step : steps_) {
    marks.start.push_back(TimingEvent(step.stream.device));
    marks.end.push_back(TimingEvent(step.stream.device));
  }
  if (graph_ == nullptr || is_over_devices_) {
    OnStreams([&] { LaunchMarked(marks, cuda::kNow); });
  } else {
    const cuda::Api& api = cuda::Api::Get();
    const auto issue = [&] { LaunchMarked(marks, cuda::kExternal); };
    const cuda::OwnedGraph graph = CaptureGraph(origin_, issue);
    const auto exec = InstantiateGraph(graph.get(), streams_->has_urgent(), origin_);
    TVM_INTEROP_CUDA(api, GraphLaunch, exec.get(), origin_);
    Synchronize();  // The graph must not be destroyed while it runs.
  }
  Synchronize();
  return TimingsOf(marks);
}

void CudaExecutor::LaunchMarked(const Marks& marks, cuda::RecordFlags flags) {
  const cuda::Api& api = cuda::Api::Get();
  const cuda::Event first = marks.began.at(streams_->stream(0).device).get();
  TVM_INTEROP_CUDA(api, EventRecordWithFlags, first, origin_, flags);
  for (const auto& [device, event] : marks.began) {
    if (event.get() == first) continue;
    const cuda::Stream stream = streams_->first_on(device).handle;
    TVM_INTEROP_CUDA(api, StreamWaitEvent, stream, first, 0);
    TVM_INTEROP_CUDA(api, EventRecord, event.get(), stream);
    TVM_INTEROP_CUDA(api, StreamWaitEvent, origin_, event.get(), 0);
  }
  UseWorkspaces();
  Fork();
  for (size_t i = 0; i < steps_.size(); ++i) {
    const cuda::Stream stream = steps_[i].stream.handle;
    Await(steps_[i]);
    TVM_INTEROP_CUDA(api, EventRecordWithFlags, marks.start[i].get(), stream, flags);
    LaunchKernel(i);
    TVM_INTEROP_CUDA(api, EventRecordWithFlags, marks.end[i].get(), stream, flags);
    Record(steps_[i]);
  }
  Join();
}

std::vector<OpTiming> CudaExecutor::TimingsOf(const Marks& marks) const {
  const cuda::Api& api = cuda::Api::Get();
  const auto since_begin_ns = [&](int device, const cuda::OwnedEvent& mark) {
    float ms = 0;
    TVM_INTEROP_CUDA(api, EventElapsedTime, &ms, marks.began.at(device).get(), mark.get());
    return static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  };
  std::vector<OpTiming> timings;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const int device = steps_[i].stream.device;
    timings.push_back({static_cast<int>(i), stream_of_[i], since_begin_ns(device, marks.start[i]),
                       since_begin_ns(device, marks.end[i])});
  }
  return timings;
}

void CudaExecutor::Launch() {
  if (graph_ == nullptr) return OnStreams([this] { LaunchStreams(); });
  const cuda::Api& api = cuda::Api::Get();
  TVM_INTEROP_CUDA(api, GraphLaunch, graph_.get(), origin_);
}

void CudaExecutor::OnStreams(const std::function<void()>& issue) {
  try {
    issue();
  } catch (const std::exception& error) {
    // The launch failed before all streams were joined to the first one.
    Drain(error.what());
    throw;
  }
}

void CudaExecutor::LaunchStreams() {
  UseWorkspaces();
  Fork();
  for (size_t i = 0; i < steps_.size(); ++i) {
    Await(steps_[i]);
    LaunchKernel(i);
    Record(steps_[i]);
  }
  Join();
}

void CudaExecutor::Fork() {
  if (fork_ == nullptr) return;
  const cuda::Api& api = cuda::Api::Get();
  TVM_INTEROP_CUDA(api, EventRecord, fork_, origin_);
  for (cuda::Stream stream : forked_) TVM_INTEROP_CUDA(api, StreamWaitEvent, stream, fork_, 0);
}

void CudaExecutor::Await(const Step& step) {
  const cuda::Api& api = cuda::Api::Get();
  for (uint32_t w = step.waits_begin; w < step.waits_end; ++w) {
    TVM_INTEROP_CUDA(api, StreamWaitEvent, step.stream.handle, waits_[w], 0);
  }
}

void CudaExecutor::LaunchKernel(size_t op) {
  const Step& step = steps_[op];
  try {
    // Set the current device first: a kernel that loads code or calls a library uses it.
    if (is_over_devices_) TVM_INTEROP_CUDA(cuda::Api::Get(), SetDevice, step.stream.device);
    step.kernel->Launch(step.stream);
  } catch (const cuda::LostError& error) {
    throw cuda::LostError("operator `" + names_[op] + "` failed: " + error.what());
  } catch (const std::exception& error) {
    throw std::runtime_error("operator `" + names_[op] + "` failed: " + error.what());
  }
}

void CudaExecutor::Record(const Step& step) {
  if (step.record == nullptr) return;
  const cuda::Api& api = cuda::Api::Get();
  TVM_INTEROP_CUDA(api, EventRecord, step.record, step.stream.handle);
}

void CudaExecutor::Join() {
  const cuda::Api& api = cuda::Api::Get();
  for (cuda::Event end : joined_) TVM_INTEROP_CUDA(api, StreamWaitEvent, origin_, end, 0);
}

void CudaExecutor::Drain(const std::string& error) {
  if (!cuda::IsUsable()) return;
  const cuda::Api& api = cuda::Api::Get();
  for (int s = 0; s < streams_->num_streams(); ++s) {
    const int status = api.StreamSynchronize(streams_->stream(s).handle);
    if (status == cuda::kSuccess) continue;
    api.GetLastError();
    cuda::ThrowFailure(status, error + "; then the GPU failed: " + api.GetErrorString(status));
  }
}

void CudaExecutor::Synchronize() {
  const cuda::Api& api = cuda::Api::Get();
  TVM_INTEROP_CUDA(api, StreamSynchronize, origin_);
  is_started_ = false;
}

}  // namespace tvm_interop
