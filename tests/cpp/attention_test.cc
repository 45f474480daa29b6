#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "plain_vector.h"
#include "runtime/cpu/attention/kernels_impl.h"

// Runs the kernels of attention with the vectors of `plain_vector.h`.

namespace {

using namespace tvm_interop::attention;  // NOLINT: this file is about nothing else.
using check::PlainVector;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  Sizes sizes;
  std::vector<float> queries, keys, values, mask;

  Head AsHead(float* result) const {
    Head head;
    head.queries = queries.data();
    head.keys = keys.data();
    head.values = values.data();
    head.result = result;
    head.mask = mask.data();
    head.mask_column = 1;
    return head;
  }

  // One number of the expected result, computed in double precision.
  double Expected(int64_t row, int64_t column) const {
    const int64_t depth = sizes.depth, positions = sizes.positions;
    std::vector<double> scores(positions);
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t p = 0; p < positions; ++p) {
      for (int64_t d = 0; d < depth; ++d) {
        const float key = sizes.keys_by_position ? keys[p * depth + d] : keys[d * positions + p];
        scores[p] += double{queries[row * depth + d]} * key;
      }
      scores[p] = scores[p] * sizes.scale + mask[p];
      top = std::fmax(top, scores[p]);
    }
    double sum = 0, weighed = 0;
    for (int64_t p = 0; p < positions; ++p) {
      const double power = std::exp(scores[p] - top);
      sum += power;
      weighed += power * values[p * sizes.width + column];
    }
    return weighed / sum;
  }
};

Case RandomCase(int64_t queries, int64_t positions, int64_t depth, int64_t width,
                bool keys_by_position) {
  Case made;
  made.sizes.queries = queries;
  made.sizes.positions = positions;
  made.sizes.depth = depth;
  made.sizes.width = width;
  made.sizes.keys_by_position = keys_by_position;
  made.sizes.scale = 0.7f;
  std::mt19937 random(1);
  const auto numbers = [&](int64_t count) {
    std::vector<float> list(count);
    for (float& number : list) number = static_cast<float>(random()) / 4.3e9f - 0.5f;
    return list;
  };
  made.queries = numbers(queries * depth);
  made.keys = numbers(positions * depth);
  made.values = numbers(positions * width);
  made.mask = numbers(positions);
  return made;
}

// Computes the rows in `pieces` parts, one after the other. Scratch memory is filled with NaN
// first. So if a number is read before it is written, the result is NaN.
template <typename Vector>
std::vector<float> Result(Case made, int64_t pieces) {
  using C = Computes<Vector>;
  const Kernels kernels{C::kLanes, C::kColumns, C::kRows, C::Pack, C::Compute};
  made.sizes.rows = RowsAtOnce(kernels, made.sizes);
  std::vector<float> packed(PackedSize(kernels, made.sizes), kNaN);
  std::vector<float> scratch(ScratchSize(kernels, made.sizes), kNaN);
  std::vector<float> result(made.sizes.queries * made.sizes.width, kNaN);
  const Head head = made.AsHead(result.data());
  kernels.pack(made.sizes, head, packed.data());
  for (int64_t i = 0; i < pieces; ++i) {
    kernels.compute(made.sizes, head, packed.data(), made.sizes.queries * i / pieces,
                    made.sizes.queries * (i + 1) / pieces, scratch.data());
  }
  return result;
}

template <typename Vector>
void CheckSizes() {
  for (int64_t queries : {1, 2, 13, 97}) {
    for (int64_t positions : {1, 8, 15, 16, 17, 33, 400}) {
      for (int64_t width : {1, 8, 17, 32, 33}) {
        for (bool by_position : {false, true}) {
          const Case made = RandomCase(queries, positions, 7, width, by_position);
          const std::vector<float> got = Result<Vector>(made, 1);
          for (int64_t row : {int64_t{0}, queries - 1}) {
            for (int64_t w = 0; w < width; ++w) {
              CHECK(std::fabs(got[row * width + w] - made.Expected(row, w)) < 1e-5);
            }
          }
          CHECK(got == Result<Vector>(made, 3));  // The bits do not depend on the division.
        }
      }
    }
  }
}

TEST_CASE(VectorsOfAvx512) { CheckSizes<PlainVector<16, 12>>(); }
TEST_CASE(VectorsOfAvx2) { CheckSizes<PlainVector<8, 6>>(); }

}  // namespace
