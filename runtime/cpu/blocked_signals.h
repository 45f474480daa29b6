#ifndef RUNTIME_CPU_BLOCKED_SIGNALS_H_
#define RUNTIME_CPU_BLOCKED_SIGNALS_H_

#include <signal.h>

#include <initializer_list>

namespace tvm_interop {

// Blocks all signals except `others` for the calling thread while this object lives. A thread that
// is started meanwhile inherits the blocked signals. So the new thread takes no signal that a
// thread of the program waits for, and runs no handler of the program.
class BlockedSignals {
 public:
  explicit BlockedSignals(std::initializer_list<int> others = {}) {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int signal : others) sigdelset(&blocked, signal);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// The signals that a computing thread must be able to receive. They are the thread's own faults,
// and the signal that profilers use to sample threads.
constexpr std::initializer_list<int> kSignalsOfComputing = {SIGSEGV, SIGBUS,  SIGFPE, SIGILL,
                                                            SIGTRAP, SIGABRT, SIGSYS, SIGPROF};

}  // namespace tvm_interop

#endif  // RUNTIME_CPU_BLOCKED_SIGNALS_H_
