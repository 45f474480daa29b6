// Runs a model in several threads at once, in C++. The threads share the model and its weights, and
// each has an instance of its own.
//
//     many_threads MODEL.tar [THREADS [RUNS]]
//
// All threads run the same inputs, and the program fails if their outputs differ.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <tvm_interop/runtime.hpp>
#include <vector>

namespace {

using Bytes = std::vector<unsigned char>;

// Runs the model `runs` times, and returns the bytes of its outputs.
std::vector<Bytes> RunOften(const tvm_interop::Model& model, int runs) {
  tvm_interop::Instance instance(model);
  const std::vector<tvm_interop::Tensor> inputs = model.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto* buffer = static_cast<unsigned char*>(tvi_instance_input_buffer(instance.get(), i));
    std::memset(buffer, 0, inputs[i].nbytes);
  }
  std::vector<Bytes> outputs;
  std::vector<void*> addresses;
  for (const tvm_interop::Tensor& output : model.outputs()) {
    outputs.emplace_back(output.nbytes);
    addresses.push_back(outputs.back().data());
  }
  // A null address stands for the instance's own buffer.
  const std::vector<const void*> own(inputs.size(), nullptr);
  for (int i = 0; i < runs; ++i) instance.Run(own, addresses);
  return outputs;
}

int Main(const std::string& path, int num_threads, int runs) {
  const tvm_interop::Model model(path);
  if (!model.warning().empty()) std::cerr << model.warning() << '\n';
  const std::vector<Bytes> wanted = RunOften(model, 1);

  std::atomic<bool> is_right{true};
  std::vector<std::thread> threads;
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      try {
        if (RunOften(model, runs) != wanted) is_right = false;
      } catch (const tvm_interop::Error& error) {
        std::cerr << "many_threads: " << error.what() << '\n';
        is_right = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::cout << num_threads * runs / took.count() << " runs a second\n";
  std::cout << (is_right ? "all outputs are equal\n" : "outputs differ, or a run failed\n");
  return is_right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: many_threads MODEL.tar [THREADS [RUNS]]\n";
    return 2;
  }
  try {
    return Main(argv[1], argc > 2 ? std::atoi(argv[2]) : 2, argc > 3 ? std::atoi(argv[3]) : 100);
  } catch (const tvm_interop::Error& error) {
    std::cerr << "many_threads: " << error.what() << '\n';
    return 1;
  }
}
