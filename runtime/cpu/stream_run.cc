#include "runtime/cpu/stream_run.h"

#include "runtime/cpu/preemption_point.h"

namespace tvm_interop {

StreamRun::StreamRun(int num_streams, const std::vector<Op>& ops, OperatorWork* work)
    : work_(work), streams_(num_streams) {
  std::vector<Point> end_of(ops.size());
  std::vector<uint32_t> waiters(ops.size(), 0);
  for (const Op& op : ops) {
    for (int wait : op.waits) ++waiters[wait];
  }
  for (size_t i = 0; i < ops.size(); ++i) {
    Stream& stream = streams_[ops[i].stream];
    Step step;
    step.op = static_cast<int>(i);
    step.waiters = waiters[i];
    step.waits_begin = static_cast<uint32_t>(stream.waits.size());
    for (int wait : ops[i].waits) stream.waits.push_back(end_of[wait]);
    step.waits_end = static_cast<uint32_t>(stream.waits.size());
    stream.steps.push_back(step);
    end_of[i] = {static_cast<uint32_t>(ops[i].stream), stream.size()};
    if (waiters[i] > 0) ++num_signals_;
  }
}

void StreamRun::Run(ThreadPool* pool) {
  float_mode_ = FloatMode::OfThisThread();
  ++run_;
  for (Stream& stream : streams_) {
    // The store to `word` is a release, and the claim of the stream is an acquire. So the thread
    // that claims the stream sees everything that the caller wrote before the run.
    stream.word.store(Word(run_, 0, false).bits(), std::memory_order_release);
    PreemptionPoint();
  }
  pool->Run(this, static_cast<int>(streams_.size()) - 1);
}

bool StreamRun::Help(int thread) noexcept {
  bool helped = false;
  const size_t first = static_cast<size_t>(thread) % streams_.size();
  for (size_t i = 0; i < streams_.size(); ++i) {
    const size_t s = first + i < streams_.size() ? first + i : first + i - streams_.size();
    helped = TryToServe(&streams_[s], thread) || helped;
  }
  return helped;
}

bool StreamRun::HasEnded() const noexcept {
  for (const Stream& stream : streams_) {
    // The load of `word` is an acquire, so this thread sees what the operators of the stream wrote.
    const Word word(stream.word.load(std::memory_order_acquire));
    if (word.ended() != stream.size()) return false;
  }
  return true;
}

Job::Helper* StreamRun::HelperAtWork() const noexcept {
  for (const Stream& stream : streams_) {
    if (!Word(stream.word.load(std::memory_order_relaxed)).is_owned()) continue;
    Helper* const owner = stream.owner.load(std::memory_order_relaxed);
    if (owner != nullptr) return owner;
  }
  return nullptr;
}

bool StreamRun::TryToServe(Stream* stream, int thread) noexcept {
  const Word seen(stream->word.load(std::memory_order_relaxed));
  if (seen.is_owned() || seen.ended() == stream->size()) return false;
  if (!IsReady(*stream, seen.ended(), seen.run())) return false;
  PreemptionPoint();
  const Word owned(seen.run(), seen.ended(), true);
  uint64_t expected = seen.bits();
  // The claim is an acquire, so this thread sees everything that the ended operators of the stream
  // wrote, also on other threads. Waits of later operators rely on this.
  if (!stream->word.compare_exchange_strong(expected, owned.bits(), std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
    return false;
  }
  stream->owner.store(ThisHelper(), std::memory_order_relaxed);
  PreemptionPoint();
  Serve(stream, owned, thread);
  return true;
}

void StreamRun::Serve(Stream* stream, Word claimed, int thread) noexcept {
  if (thread != 0) float_mode_.Apply();
  const uint32_t run = claimed.run();
  for (uint32_t position = claimed.ended();;) {
    const Step& step = stream->steps[position];
    work_->RunOperator(step.op, thread);
    ++position;
    const bool goes_on =
        position < stream->size() && !HasBorrowedItsCore() && IsReady(*stream, position, run);
    if (goes_on && step.waiters == 0) continue;
    PreemptionPoint();
    // The store to `word` is a release, so the next thread sees what the operator wrote. If
    // `goes_on` is false, the store also gives the stream back.
    stream->word.store(Word(run, position, goes_on).bits(), std::memory_order_seq_cst);
    PreemptionPoint();
    Announce(static_cast<int>(step.waiters) - (goes_on ? 0 : 1));
    if (!goes_on) return;
  }
}

bool StreamRun::IsReady(const Stream& stream, uint32_t position, uint32_t run) const noexcept {
  const Step& step = stream.steps[position];
  for (uint32_t i = step.waits_begin; i < step.waits_end; ++i) {
    const Point& wait = stream.waits[i];
    const Word word(streams_[wait.stream].word.load(std::memory_order_acquire));
    if (word.run() != run || word.ended() < wait.ended) return false;
  }
  return true;
}

}  // namespace tvm_interop
