#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "plain_vector.h"
#include "runtime/cpu/rows/kernels_impl.h"
#include "runtime/cpu/vectors/detect.h"

// Runs the kernels of products of a few rows with the vectors of `plain_vector.h`, and with those
// of this CPU.

namespace {

using namespace tvm_interop;        // NOLINT: this file is about nothing else.
using namespace tvm_interop::rows;  // NOLINT
using check::PlainVector;

struct Case {
  int64_t terms, columns;
  bool has_bias, has_addend;
  Last last;
  int64_t rows = 1;
};

std::vector<float> Random(int64_t count) {
  static std::mt19937 generator(7);
  std::normal_distribution<float> distribution;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = distribution(generator);
  return numbers;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Ended(Last last, double x) {
  const double line = std::fmin(std::fmax(x / 6 + 0.5, 0), 1);
  switch (last) {
    case Last::kRelu:
      return std::fmax(x, 0);
    case Last::kClip:
      return std::fmin(std::fmax(x, -0.5), 1.5);
    case Last::kSigmoid:
      return Sigmoid(x);
    case Last::kSwish:
      return x * Sigmoid(x);
    case Last::kHardSwish:
      return x * line;
    case Last::kHardSigmoid:
      return line;
    case Last::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Last::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
    default:
      return x;
  }
}

std::vector<float> Packed(const std::vector<float>& matrix, int64_t terms, int64_t columns) {
  std::vector<float> packed;
  for (int64_t first = 0; first < columns; first += kColumns) {
    const int64_t there = columns - first < kColumns ? columns - first : kColumns;
    const int64_t padded = (there + kStep - 1) / kStep * kStep;
    for (int64_t t = 0; t < terms; ++t) {
      for (int64_t c = 0; c < padded; ++c) {
        packed.push_back(c < there ? matrix[static_cast<size_t>(t * columns + first + c)] : 0);
      }
    }
  }
  return packed;
}

// Checks the results of each function in `computes`, and that all of them give the same bits.
void Check(const Case& given, const std::vector<Compute>& computes) {
  const int64_t numbers = given.rows * given.columns;
  const std::vector<float> left = Random(given.rows * given.terms);
  const std::vector<float> matrix = Random(given.terms * given.columns);
  const std::vector<float> bias = Random(given.columns), addend = Random(numbers);
  const std::vector<float> packed = Packed(matrix, given.terms, given.columns);
  std::vector<std::vector<float>> results;
  for (const Compute compute : computes) {
    std::vector<float> result(static_cast<size_t>(numbers));
    Product product;
    product.left = left.data();
    product.rows = given.rows;
    product.packed = packed.data();
    if (given.has_bias) product.bias = bias.data();
    if (given.has_addend) product.addend = addend.data();
    product.result = result.data();
    product.terms = given.terms;
    product.columns = given.columns;
    product.last = given.last;
    product.clip_low = -0.5f;
    product.clip_high = 1.5f;
    const int64_t groups = (given.columns + kColumns - 1) / kColumns;
    // The groups of columns are independent of each other, so they are computed in another order.
    compute(product, groups / 2, groups);
    compute(product, 0, groups / 2);
    results.push_back(result);
  }
  for (int64_t i = 0; i < numbers; ++i) {
    const int64_t r = i / given.columns, c = i % given.columns;
    const size_t at = static_cast<size_t>(i);
    double sum = 0, magnitude = 1;
    for (int64_t t = 0; t < given.terms; ++t) {
      const double term = double{left[static_cast<size_t>(r * given.terms + t)]} *
                          double{matrix[static_cast<size_t>(t * given.columns + c)]};
      sum += term;
      magnitude += std::fabs(term);
    }
    if (given.has_bias) sum += bias[static_cast<size_t>(c)];
    if (given.has_addend) sum += addend[at];
    for (const std::vector<float>& result : results) {
      CHECK(std::fabs(result[at] - Ended(given.last, sum)) < 1e-6 * magnitude);
      CHECK(result[at] == results[0][at]);
    }
  }
}

std::vector<Compute> AllComputes() {
  std::vector<Compute> computes{ComputeGroups<PlainVector<16, 12>>,
                                ComputeGroups<PlainVector<8, 4>>};
  if (HasAvx512() && Avx512Compute() != nullptr) computes.push_back(Avx512Compute());
  if (HasAvx2() && Avx2Compute() != nullptr) computes.push_back(Avx2Compute());
  return computes;
}

}  // namespace

TEST_CASE(SizesAroundVectorsAndGroups) {
  for (const int64_t columns : {1, 7, 8, 15, 16, 17, 31, 33, 48, 49, 63, 64, 65, 127, 200}) {
    for (const int64_t terms : {1, 5, 300}) {
      Check({terms, columns, columns % 2 == 0, columns % 3 == 0, Last::kNothing}, AllComputes());
    }
  }
}

TEST_CASE(PartialSums) {
  for (const int64_t terms : {255, 256, 257, 513, 3000}) {
    Check({terms, 70, true, true, Last::kRelu}, AllComputes());
  }
}

TEST_CASE(SeveralRows) {
  for (int64_t rows = 2; rows <= kMostRows; ++rows) {
    for (const int64_t columns : {1, 16, 33, 49, 64, 150}) {
      for (const int64_t terms : {1, 256, 300, 600}) {
        Check({terms, columns, rows % 2 == 0, rows % 3 == 0, Last::kRelu, rows}, AllComputes());
      }
    }
  }
}

TEST_CASE(LastFunctions) {
  for (const Last last : {Last::kRelu, Last::kClip, Last::kSigmoid, Last::kSwish, Last::kHardSwish,
                          Last::kHardSigmoid, Last::kGelu, Last::kGeluTanh}) {
    for (const int64_t terms : {1, 40}) {
      Check({terms, 150, true, false, last}, AllComputes());
      Check({terms, 37, true, true, last, 3}, AllComputes());
    }
  }
}
