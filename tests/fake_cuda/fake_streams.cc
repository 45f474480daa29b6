// A fake libcudart.so.13: streams and events.

#include "fake_cuda.h"

using fake_cuda::Capture;
using fake_cuda::Event;
using fake_cuda::kInvalidHandle;
using fake_cuda::kSuccess;
using fake_cuda::Line;
using fake_cuda::Moment;
using fake_cuda::Moments;
using fake_cuda::Resolve;
using fake_cuda::RuntimeCall;
using fake_cuda::Stream;
using fake_cuda::TheState;

namespace {

int Invalidate(Capture* capture, int status) {
  capture->is_valid = false;
  return status;
}

// Puts the wait for an event into a capture. If the stream is not captured, it joins the capture in
// which the event was recorded.
int WaitInCapture(Stream* stream, Event* event) {
  Capture* own = stream->capture.get();
  if (event->capture == nullptr) return Invalidate(own, fake_cuda::kCaptureIsolation);
  if (event->capture->is_over) {
    return own == nullptr ? int{fake_cuda::kCapturedEvent}
                          : Invalidate(own, fake_cuda::kCaptureIsolation);
  }
  if (!event->capture->is_valid) return fake_cuda::kCaptureInvalidated;
  if (own != nullptr && own != event->capture.get()) {
    Invalidate(own, fake_cuda::kCaptureMerge);
    return Invalidate(event->capture.get(), fake_cuda::kCaptureMerge);
  }
  if (own == nullptr) stream->frontier.clear();
  stream->capture = event->capture;
  stream->frontier.insert(stream->frontier.end(), event->frontier.begin(), event->frontier.end());
  return kSuccess;
}

// Whether an event may be asked for its time, or waited for by the host.
int RefuseEvent(const Event* event) {
  if (!event->is_alive) return kInvalidHandle;
  // "The operation is not permitted on an event which was last recorded in a capturing stream."
  return event->capture != nullptr ? fake_cuda::kCapturedEvent : kSuccess;
}

}  // namespace

extern "C" {

// Streams.

int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return RuntimeCall("cudaStreamCreate", [&] {
    auto* made = new Stream;  // Never freed, so that a use after its destruction is noticed.
    made->id = TheState().next_id++;
    made->device = fake_cuda::CurrentDevice();
    made->is_blocking = (flags & 1) == 0;
    TheState().streams.push_back(made);
    Line("cudaStreamCreate")
        .Add("stream", int64_t{made->id})
        .Add("device", int64_t{made->device})
        .Add("flags", int64_t{flags})
        .Add("priority", int64_t{priority});
    *stream = made;
    return kSuccess;
  });
}
int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
int cudaStreamCreate(void** stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

// CUDA's documentation: "The function will return immediately and the resources will be released
// once the device has completed all work in stream."
int cudaStreamDestroy(void* stream) {
  return RuntimeCall("cudaStreamDestroy", [&]() -> int {
    Stream* on = Resolve(stream);
    Line("cudaStreamDestroy").Add("stream", int64_t{on->id});
    if (!on->is_alive || on->id == 0) return kInvalidHandle;
    on->is_alive = false;
    if (on->capture != nullptr) on->capture->is_valid = false;
    fake_cuda::EndWorker(on);
    return kSuccess;
  });
}

int cudaStreamSynchronize(void* stream) {
  Moments ends;
  const int status = RuntimeCall("cudaStreamSynchronize", [&]() -> int {
    Stream* on = Resolve(stream);
    Line("cudaStreamSynchronize").Add("stream", int64_t{on->id});
    if (const int refused = fake_cuda::RefuseStream(on)) return refused;
    if (on->capture != nullptr) {
      return Invalidate(on->capture.get(), fake_cuda::kCaptureUnsupported);
    }
    if (const int refused = fake_cuda::RefuseWhileCapturing()) return refused;
    if (!fake_cuda::IsWithoutWait("cudaStreamSynchronize")) ends.push_back(fake_cuda::EndOf(on));
    return kSuccess;
  });
  return status == kSuccess ? fake_cuda::AwaitAll(ends) : status;
}

int cudaDeviceSynchronize() {
  Moments ends;
  const int status = RuntimeCall("cudaDeviceSynchronize", [&]() -> int {
    if (const int refused = fake_cuda::RefuseWhileCapturing()) return refused;
    ends = fake_cuda::EndsOfAll();
    return kSuccess;
  });
  return status == kSuccess ? fake_cuda::AwaitAll(ends) : status;
}

// "Makes all future work submitted to stream wait for all work captured in event." "Before the
// first call to cudaEventRecord(), an event represents an empty set of work."
int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  return RuntimeCall("cudaStreamWaitEvent", [&]() -> int {
    Stream* on = Resolve(stream);
    auto* awaited = static_cast<Event*>(event);
    Line("cudaStreamWaitEvent").Add("stream", int64_t{on->id}).Add("event", int64_t{awaited->id});
    if (!awaited->is_alive) return kInvalidHandle;
    if (const int refused = fake_cuda::RefuseStream(on)) return refused;
    if (on->capture != nullptr || awaited->capture != nullptr) return WaitInCapture(on, awaited);
    if (awaited->moment == nullptr) return kSuccess;
    if (fake_cuda::IsWithoutWait("cudaStreamWaitEvent")) return kSuccess;
    fake_cuda::EnqueueMark(on, [moment = awaited->moment] { moment->Await(); });
    return kSuccess;
  });
}

// Events.

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  return RuntimeCall("cudaEventCreate", [&] {
    auto* made = new Event;  // Never freed, so that a use after its destruction is noticed.
    made->id = TheState().next_id++;
    made->device = fake_cuda::CurrentDevice();
    made->has_timing = (flags & 2) == 0;
    TheState().events.push_back(made);
    Line("cudaEventCreate")
        .Add("event", int64_t{made->id})
        .Add("device", int64_t{made->device})
        .Add("flags", int64_t{flags});
    *event = made;
    return kSuccess;
  });
}
int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(void* event) {
  return RuntimeCall("cudaEventDestroy", [&]() -> int {
    auto* destroyed = static_cast<Event*>(event);
    Line("cudaEventDestroy").Add("event", int64_t{destroyed->id});
    if (!destroyed->is_alive) return kInvalidHandle;
    destroyed->is_alive = false;
    return kSuccess;
  });
}

// CUDA's documentation: "cudaEventRecordExternal: Event is captured in the graph as an external
// event node when performing stream capture." The event then has the time of the graph's last run,
// and may not be waited for in the capture.
int cudaEventRecordWithFlags(void* event, void* stream, unsigned flags) {
  return RuntimeCall("cudaEventRecord", [&]() -> int {
    Stream* on = Resolve(stream);
    auto* recorded = static_cast<Event*>(event);
    const bool is_external = (flags & 1) != 0 && on->capture != nullptr;
    Line(is_external ? "cudaEventRecordExternal" : "cudaEventRecord")
        .Add("event", int64_t{recorded->id})
        .Add("stream", int64_t{on->id});
    if (!recorded->is_alive) return kInvalidHandle;
    if (const int refused = fake_cuda::RefuseStream(on)) return refused;
    if (on->device != recorded->device || flags > 1) return kInvalidHandle;
    if (is_external) {
      recorded->capture = nullptr;
      recorded->moment = std::make_shared<Moment>();
      return fake_cuda::Enqueue(on, [moment = recorded->moment] { moment->Happen(); });
    }
    recorded->capture = on->capture;
    recorded->frontier = on->frontier;
    recorded->moment = on->capture == nullptr ? fake_cuda::EndOf(on) : nullptr;
    return kSuccess;
  });
}

int cudaEventRecord(void* event, void* stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

int cudaEventSynchronize(void* event) {
  Moments moments;
  const int status = RuntimeCall("cudaEventSynchronize", [&]() -> int {
    const auto* awaited = static_cast<Event*>(event);
    Line("cudaEventSynchronize").Add("event", int64_t{awaited->id});
    if (const int refused = RefuseEvent(awaited)) {
      if (awaited->capture != nullptr) awaited->capture->is_valid = false;
      return refused;
    }
    if (const int refused = fake_cuda::RefuseWhileCapturing()) return refused;
    if (awaited->moment == nullptr || fake_cuda::IsWithoutWait("cudaEventSynchronize")) {
      return kSuccess;
    }
    moments.push_back(awaited->moment);
    return kSuccess;
  });
  return status == kSuccess ? fake_cuda::AwaitAll(moments) : status;
}

// "If cudaEventRecord() has not been called on either event, then cudaErrorInvalidResourceHandle is
// returned. If one or both of them has not yet been completed, cudaErrorNotReady is returned. If
// either event was created with the cudaEventDisableTiming flag, then this function will return
// cudaErrorInvalidResourceHandle."
int cudaEventElapsedTime(float* ms, void* from, void* to) {
  return RuntimeCall("cudaEventElapsedTime", [&]() -> int {
    const auto* start = static_cast<Event*>(from);
    const auto* end = static_cast<Event*>(to);
    for (const Event* event : {start, end}) {
      if (const int refused = RefuseEvent(event)) return refused;
      if (!event->has_timing || event->moment == nullptr) return kInvalidHandle;
    }
    if (start->device != end->device) return kInvalidHandle;
    if (!start->moment->has_happened() || !end->moment->has_happened()) {
      return fake_cuda::kNotReady;
    }
    *ms = static_cast<float>(end->moment->time_ms() - start->moment->time_ms());
    return kSuccess;
  });
}
}
