// Tests the runtime library in a process that closes the library while threads run its code, that
// forks, and that receives signals. The test opens the library with `dlopen`, and is not linked to
// it.

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/include/tvm_interop/runtime.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_artifact.h"

namespace {

using namespace tvm_interop;  // NOLINT: the artifact's numbers and helpers.

// Pointers to the functions of the opened library that the tests call.
struct Interface {
  explicit Interface(void* library) {
    Find(library, "tvi_model_load", &load);
    Find(library, "tvi_model_free", &free_model);
    Find(library, "tvi_instance_create", &create);
    Find(library, "tvi_instance_free", &free_instance);
    Find(library, "tvi_run", &run);
    Find(library, "tvi_set_num_threads", &set_num_threads);
    Find(library, "tvi_last_error", &last_error);
  }

  template <typename Function>
  static void Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    CHECK(*function != nullptr);
  }

  void Check(tvi_status status) const {
    if (status != TVI_OK) check::Fail(__FILE__, __LINE__, last_error());
  }

  decltype(&tvi_model_load) load;
  decltype(&tvi_model_free) free_model;
  decltype(&tvi_instance_create) create;
  decltype(&tvi_instance_free) free_instance;
  decltype(&tvi_run) run;
  decltype(&tvi_set_num_threads) set_num_threads;
  decltype(&tvi_last_error) last_error;
};

void* OpenLibrary() {
  void* const library = dlopen(RUNTIME_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) check::Fail(__FILE__, __LINE__, dlerror());
  return library;
}

// The file of the artifact, which is removed when the test program ends.
const std::string& ArtifactFile() {
  static const std::string path = [] {
    char name[] = "/tmp/tvm_interop_test_XXXXXX";
    close(mkstemp(name));
    const std::string artifact = ArtifactOf(PlanText(), KernelCode());
    std::ofstream(name, std::ios::binary) << artifact;
    std::atexit([] { unlink(ArtifactFile().c_str()); });
    return std::string(name);
  }();
  return path;
}

// The loaded artifact, and one instance of it.
class Loaded {
 public:
  explicit Loaded(const Interface& interface) : interface_(interface) {
    interface_.Check(interface_.load(ArtifactFile().c_str(), nullptr, &model_));
    interface_.Check(interface_.create(model_, 0, &instance_));
  }
  ~Loaded() {
    interface_.free_instance(instance_);
    interface_.free_model(model_);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  void RunAndCheck(float first) {
    const Buffer x, y, z;
    Fill(x, first);
    const void* inputs[] = {x.data()};
    void* outputs[] = {y.data(), z.data()};
    interface_.Check(interface_.run(instance_, inputs, outputs));
    CHECK(IsRight(y.data(), z.data(), first));
  }

 private:
  const Interface interface_;
  tvi_model* model_ = nullptr;
  tvi_instance* instance_ = nullptr;
};

// Threads that run the artifact, each on an instance of its own, until this object is destroyed.
// When the constructor returns, each thread has run the artifact once.
class Runners {
 public:
  Runners(const Interface& interface, int number) {
    for (int t = 0; t < number; ++t) {
      threads_.emplace_back([this, interface, t] {
        Loaded loaded(interface);
        for (int i = 0; i == 0 || !ends_.load(); ++i) {
          loaded.RunAndCheck(static_cast<float>(100 * t + i % 100));
          if (i == 0) begun_.fetch_add(1);
        }
      });
    }
    while (begun_.load() < number) std::this_thread::yield();
  }
  ~Runners() {
    ends_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

  void Signal(int signal) {
    for (std::thread& thread : threads_) pthread_kill(thread.native_handle(), signal);
  }

 private:
  std::vector<std::thread> threads_;
  std::atomic<int> begun_{0};
  std::atomic<bool> ends_{false};
};

int ThreadsNow() {
  int threads = 0;
  DIR* const folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) threads += entry->d_name[0] != '.';
  closedir(folder);
  return threads;
}

std::atomic<int> signals{0}, on_other_threads{0};
std::atomic<pid_t> expected{0};

void Count(int) {
  signals.fetch_add(1);
  if (static_cast<pid_t>(syscall(SYS_gettid)) != expected.load()) on_other_threads.fetch_add(1);
}

// Calls `Count` on a signal. System calls that the signal interrupts are not restarted.
void CountSignals(int signal) {
  signals.store(0);
  on_other_threads.store(0);
  struct sigaction action = {};
  action.sa_handler = Count;
  CHECK_EQ(sigaction(signal, &action, nullptr), 0);
}

TEST_CASE(HelpersOutliveTheClosingOfTheLibrary) {
  void* const library = OpenLibrary();
  const Interface interface(library);
  interface.Check(interface.set_num_threads(3, 0));
  // Another thread than the thread that closes the library runs the model. A run leaves
  // thread-local variables of the library in its thread, and a library stays in memory while a
  // living thread has such variables.
  std::thread([&] { Loaded loaded(interface); }).join();
  CHECK(ThreadsNow() > 1);
  dlclose(library);
  usleep(1000);
  Loaded(interface).RunAndCheck(1);
}

TEST_CASE(TheLibraryMayBeClosedWhileThreadsAreInside) {
  void* library = OpenLibrary();
  const Interface interface(library);
  interface.Check(interface.set_num_threads(3, 0));
  {
    Runners runners(interface, 3);
    dlclose(library);
    for (int i = 0; i < 50; ++i) {
      dlclose(OpenLibrary());
      usleep(1000);
    }
  }
  // The closed library must stay in memory: helper threads may still run its code, and objects that
  // it made earlier can still be used and freed.
  Loaded(interface).RunAndCheck(1);
  library = OpenLibrary();
  CHECK(Interface(library).run == interface.run);
  Loaded(Interface(library)).RunAndCheck(2);
  dlclose(library);
}

TEST_CASE(SignalsInterruptNothing) {
  const Interface interface(OpenLibrary());
  CountSignals(SIGALRM);
  const itimerval often{{0, 300}, {0, 300}}, never{};
  setitimer(ITIMER_REAL, &often, nullptr);
  {
    Runners runners(interface, 2);
    for (int i = 0; i < 100; ++i) {
      Loaded loaded(interface);
      for (int run = 0; run < 10; ++run) loaded.RunAndCheck(static_cast<float>(run));
      runners.Signal(SIGALRM);
    }
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  CHECK(signals.load() > 0);
}

TEST_CASE(SignalsGoToTheProgramsThreads) {
  const Interface interface(OpenLibrary());
  interface.Check(interface.set_num_threads(4, 0));
  Loaded loaded(interface);
  for (int run = 0; run < 20; ++run) loaded.RunAndCheck(static_cast<float>(run));
  CHECK(ThreadsNow() > 1);
  // At first the handler must run on this thread alone. Then this thread blocks the signal and
  // waits for it. No helper thread of the library may receive the signal instead.
  CountSignals(SIGTERM);
  expected.store(static_cast<pid_t>(syscall(SYS_gettid)));
  for (int i = 0; i < 20; ++i) {
    kill(getpid(), SIGTERM);
    loaded.RunAndCheck(static_cast<float>(i));
  }
  CHECK(signals.load() > 0);
  CHECK_EQ(on_other_threads.load(), 0);
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, nullptr);
  const int taken = signals.load();
  for (int i = 0; i < 20; ++i) {
    loaded.RunAndCheck(static_cast<float>(i));
    kill(getpid(), SIGTERM);
    const timespec long_enough{5, 0};
    CHECK_EQ(sigtimedwait(&term, nullptr, &long_enough), SIGTERM);
  }
  CHECK_EQ(signals.load(), taken);
  pthread_sigmask(SIG_UNBLOCK, &term, nullptr);
}

TEST_CASE(AChildOfABusyProcessGoesOn) {
#if !defined(__SANITIZE_THREAD__)
  const Interface interface(OpenLibrary());
  Loaded loaded(interface);
  loaded.RunAndCheck(1);
  Runners runners(interface, 2);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      signal(SIGALRM, SIG_DFL);
      alarm(60);  // A child that hangs ends here.
      for (int run = 0; run < 10; ++run) loaded.RunAndCheck(static_cast<float>(run));
      Loaded(interface).RunAndCheck(3);
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    loaded.RunAndCheck(2);
  }
#endif
}

}  // namespace
