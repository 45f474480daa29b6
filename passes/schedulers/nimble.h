#ifndef PASSES_SCHEDULERS_NIMBLE_H_
#define PASSES_SCHEDULERS_NIMBLE_H_

#include <cstdint>
#include <vector>

#include "passes/graph/op_graph.h"

namespace tvm_interop {

struct NimbleSchedule {
  std::vector<std::vector<int>> streams;  // by first operator in topological order
  int64_t reduced_edges = 0;              // |E'|
  int64_t matching = 0;                   // |M|
  int64_t chains = 0;                     // operators less |M|

  int64_t waits() const { return reduced_edges - matching; }
};

// Nimble's stream assignment (Kwon et al. 2020, section 4.2, Algorithm 1), and what its streams
// are reduced to.
//
// E' is the minimum equivalent graph. An edge of it needs no wait where its ends are neighbours on
// a stream, and each operator has one neighbour on either side: the edges spared are a matching of
// E' (producers left, consumers right), so |E'| - |M| waits are the fewest for any assignment that
// keeps parallel operators apart. M joins the operators into chains.
//
// A stream may go on with any operator that its last one reaches: that orders nothing anew and
// costs no wait. So streams are matchings of the closure, and of those that hold |M| edges of E' a
// largest is wanted. By complementary slackness these are exactly the matchings that cover a least
// vertex cover of E' (Koenig) and use only its tight edges: edges of E' covered once, and other
// edges of the closure with no end in it. M covers it, and growing M along tight edges keeps what
// is covered. So the second matching costs no wait, and no assignment with as few waits has fewer
// streams. On networks that is the graph's width. Where the two aims conflict, waits come first and
// there are a few streams more.
//
// O(n^2 / 64) a phase of the second matching; its phases are few.
NimbleSchedule ScheduleNimble(const OpGraph& graph);

}  // namespace tvm_interop

#endif  // PASSES_SCHEDULERS_NIMBLE_H_
