#ifndef PASSES_SCHEDULERS_NIMBLE_H_
#define PASSES_SCHEDULERS_NIMBLE_H_

#include <cstdint>
#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

struct NimbleSchedule {
  std::vector<std::vector<int>> streams;  // sorted by first operator, in topological order
  int64_t reduced_edges = 0;              // |E'|
  int64_t matching = 0;                   // |M|
  int64_t chains = 0;                     // the number of operators minus |M|

  int64_t waits() const { return reduced_edges - matching; }
};

// Nimble's stream assignment (Kwon et al. 2020, section 4.2, Algorithm 1), followed by a second
// step that needs fewer streams for the same number of waits.
//
// E' is the minimum equivalent graph. An edge of E' needs no wait if its ends are neighbours on a
// stream. On its stream, each operator has at most one neighbour before it and one after it. So the
// edges without a wait form a matching of E', with producers on the left and consumers on the
// right. Let M be a maximum matching of E'. Then no assignment that keeps parallel operators apart
// has fewer than |E'| - |M| waits. M joins the operators into chains.
//
// The second step reduces the number of streams. A stream may continue with any operator that its
// last operator reaches. This adds no new order and costs no wait. So a matching of the transitive
// closure gives the streams. Among the matchings that hold |M| edges of E', we want a largest one.
// By complementary slackness, these are exactly the matchings that cover a minimum vertex cover of
// E' (Koenig) and use only tight edges. An edge of E' is tight if exactly one end is in the cover.
// Any other edge of the closure is tight if no end is in the cover. M covers the vertex cover. If M
// grows along tight edges, the vertex cover stays covered. So the second matching costs no wait,
// and no assignment with as few waits has fewer streams.
//
// For neural networks, the number of streams is usually the graph's width. It is a little larger if
// the fewest waits need more streams. A phase of the second matching takes O(n^2 / 64), and there
// are few phases.
NimbleSchedule ScheduleNimble(const OpGraph& graph);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_NIMBLE_H_
