// Runs a model on the program's own threads, in C++. The library then starts no thread.
//
//     own_pool MODEL.tar [THREADS [RUNS]]

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <queue>
#include <string>
#include <thread>
#include <tvm_interop/runtime.hpp>
#include <vector>

namespace {

// A small thread pool. Most programs with threads of their own already have a pool.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    wakes_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Submit(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push(std::move(task));
    }
    wakes_.notify_one();
  }

  // Describes this pool in the form that the library takes.
  tvi_thread_pool AsSeenByTheLibrary() {
    tvi_thread_pool seen{};
    seen.struct_size = sizeof(seen);
    seen.context = this;
    seen.num_threads = static_cast<int32_t>(threads_.size());
    seen.submit = [](void* context, void (*task)(void*), void* argument) -> int32_t {
      try {
        static_cast<Pool*>(context)->Submit([=] { task(argument); });
        return 0;
      } catch (const std::bad_alloc&) {
        return 1;  // The run goes on without this thread.
      }
    };
    return seen;
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wakes_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wakes_;
  std::queue<std::function<void()>> tasks_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

void Main(const std::string& path, int num_threads, int runs) {
  Pool pool(num_threads);
  const tvm_interop::Model model(path);
  // The instance is made after the pool, so the instance is destroyed before the pool ends.
  tvm_interop::Instance instance(model, pool.AsSeenByTheLibrary());
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < runs; ++i) instance.Run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::cout << runs / took.count() << " runs a second with " << num_threads
            << " threads of the pool\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: own_pool MODEL.tar [THREADS [RUNS]]\n";
    return 2;
  }
  try {
    Main(argv[1], argc > 2 ? std::atoi(argv[2]) : 1, argc > 3 ? std::atoi(argv[3]) : 100);
    return 0;
  } catch (const tvm_interop::Error& error) {
    std::cerr << "own_pool: " << error.what() << '\n';
    return 1;
  }
}
