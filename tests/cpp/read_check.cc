// Reads artifacts and plans, and says whether they are refused. Tests in Python and fuzz tests use
// it. Each line of standard input is `artifact PATH` or `plan PATH`. Each answer is one line: `ok`,
// or the error's number and its text.

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "runtime/model/artifact.h"
#include "runtime/model/check_plan.h"
#include "runtime/model/error.h"

namespace {

using namespace tvm_interop;  // NOLINT: this file is about nothing else.

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Answer(const std::string& kind, const std::string& path) {
  try {
    if (kind == "artifact") {
      ReadArtifact(*OpenFile(path), "");
    } else {
      CheckPlan(ReadPlan("plan.json", ReadFile(path)));
    }
    return "ok";
  } catch (const ModelError& error) {
    std::string text = error.what();
    for (char& letter : text) {
      if (letter == '\n') letter = ' ';
    }
    return std::to_string(static_cast<int>(error.code())) + " " + text;
  }
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const size_t space = line.find(' ');
    std::cout << Answer(line.substr(0, space), line.substr(space + 1)) << std::endl;
  }
}
