"""Plants faults in the thread pool and in scratch memory: each removes a check or a memory order.

Each mutation (planted fault) replaces one text in a file of `runtime/cpu`. The tests are built from
the changed file, with forced preemption, under ThreadSanitizer. Each mutation must make the tests
fail: a race is reported, a sum is wrong, or the program hangs.

    python tests/cpp/mutations.py [--only NAME] [--build FOLDER]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *(
        f"runtime/cpu/{name}.cc"
        for name in (
            "affinity",
            "executor",
            "parallel_loop",
            "parking",
            "quota",
            "scratch",
            "spinning",
            "stream_run",
            "thread_pool",
            "topology",
        )
    ),
    "runtime/core/aligned_memory.cc",
    "runtime/core/large_pages.cc",
    "passes/plan/sync_plan.cc",
    "passes/graph/op_graph.cc",
    "passes/graph/matching.cc",
    "passes/graph/stream_order.cc",
    "passes/graph/topological.cc",
    "passes/graph/transitive_reduction.cc",
]
TESTS = [
    "tests/cpp/thread_pool_test.cc",
    "tests/cpp/cores_test.cc",
    "tests/cpp/guest_threads_test.cc",
    "tests/cpp/scratch_test.cc",
]
DEADLINE_S = 60


@dataclass(frozen=True)
class Mutation:
    """A planted fault.

    Attributes
    ----------
    file: name of the file in `runtime/cpu`.
    right, wrong: a text that the file has once, and the text that replaces it.
    """

    name: str
    file: str
    right: str
    wrong: str


MUTATIONS = (
    Mutation(
        "a stream is claimed without acquiring its last operator's end",
        "stream_run.cc",
        "owned.bits(), std::memory_order_acquire,",
        "owned.bits(), std::memory_order_relaxed,",
    ),
    Mutation(
        "a stream is not claimed at all",
        "stream_run.cc",
        "const Word owned(seen.run(), seen.ended(), true);",
        "const Word owned(seen.run(), seen.ended(), false);",
    ),
    Mutation(
        "a stream is claimed without comparing its state",
        "stream_run.cc",
        "  if (!stream->word.compare_exchange_strong(expected, owned.bits(), "
        "std::memory_order_acquire,\n                                            "
        "std::memory_order_relaxed)) {\n    return false;\n  }",
        "  stream->word.store(owned.bits(), std::memory_order_seq_cst);\n  (void)expected;",
    ),
    Mutation(
        "a stream is released before its operator has ended",
        "stream_run.cc",
        "    work_->RunOperator(step.op, thread);\n    ++position;",
        "    ++position;\n    stream->word.store(Word(run, position, true).bits(), "
        "std::memory_order_seq_cst);\n    work_->RunOperator(step.op, thread);",
    ),
    Mutation(
        "the end of an operator is not released",
        "stream_run.cc",
        "stream->word.store(Word(run, position, goes_on).bits(), std::memory_order_seq_cst);",
        "stream->word.store(Word(run, position, goes_on).bits(), std::memory_order_relaxed);",
    ),
    Mutation(
        "a wait does not acquire",
        "stream_run.cc",
        "const Word word(streams_[wait.stream].word.load(std::memory_order_acquire));",
        "const Word word(streams_[wait.stream].word.load(std::memory_order_relaxed));",
    ),
    Mutation(
        "a wait looks at the position alone, not at the run",
        "stream_run.cc",
        "if (word.run() != run || word.ended() < wait.ended) return false;",
        "if (word.ended() < wait.ended) return false;",
    ),
    Mutation(
        "a thread goes on with a stream whose next operator has to wait",
        "stream_run.cc",
        "const bool goes_on =\n        position < stream->size() && !HasBorrowedItsCore() && "
        "IsReady(*stream, position, run);",
        "const bool goes_on = position < stream->size();",
    ),
    Mutation(
        "a stream is claimed whose next operator has to wait",
        "stream_run.cc",
        "  if (!IsReady(*stream, seen.ended(), seen.run())) return false;\n",
        "",
    ),
    Mutation(
        "the run ends without acquiring what was written",
        "stream_run.cc",
        "const Word word(stream.word.load(std::memory_order_acquire));",
        "const Word word(stream.word.load(std::memory_order_relaxed));",
    ),
    Mutation(
        "a stream is opened without releasing what the caller wrote",
        "stream_run.cc",
        "stream.word.store(Word(run_, 0, false).bits(), std::memory_order_release);",
        "stream.word.store(Word(run_, 0, false).bits(), std::memory_order_relaxed);",
    ),
    Mutation(
        "no thread is woken when operators become ready",
        "stream_run.cc",
        "    Announce(static_cast<int>(step.waiters) - (goes_on ? 0 : 1));\n",
        "",
    ),
    Mutation(
        "a helper keeps its own rounding mode during a run",
        "stream_run.cc",
        "  if (thread != 0) float_mode_.Apply();\n",
        "  (void)thread;\n",
    ),
    Mutation(
        "a job that ends does not wait for helpers that look at it",
        "thread_pool.cc",
        "    while (helper->visits.load(std::memory_order_seq_cst) == job) "
        "std::this_thread::yield();\n",
        "    (void)job;\n    (void)helper;\n",
    ),
    Mutation(
        "a helper does not check the slot again after it has announced its visit to a job",
        "thread_pool.cc",
        "if (slot.load(std::memory_order_seq_cst) == job) helped",
        "helped",
    ),
    Mutation(
        "a thread goes to sleep without looking for work once more",
        "thread_pool.cc",
        "      if (job->Help(0) || job->HasEnded()) {",
        "      if (false) {",
    ),
    Mutation(
        "a caller reads a helper's fields before the helper has published them",
        "thread_pool.cc",
        "helper == nullptr || !helper->is_there.load(std::memory_order_acquire)",
        "helper == nullptr",
    ),
    Mutation(
        "more threads work than were asked for",
        "thread_pool.cc",
        "         num_threads();",
        "         num_threads() + 64;",
    ),
    Mutation(
        "a helper that takes a last look is not counted",
        "thread_pool.cc",
        "    const uint64_t announced = parked_.Announce();\n    if (helper->ends",
        "    awake_.fetch_sub(1);\n    const uint64_t announced = parked_.Announce();\n"
        "    if (helper->ends",
    ),
    Mutation(
        "two threads of the program take the place of one helper",
        "thread_pool.cc",
        "if (place->is_taken.exchange(true, std::memory_order_relaxed)) continue;",
        "place->is_taken.store(true, std::memory_order_relaxed);",
    ),
    Mutation(
        "a thread of the program keeps the caller's rounding mode after it has helped",
        "thread_pool.cc",
        "  float_mode.Apply();\n",
        "  (void)float_mode;\n",
    ),
    Mutation(
        "a thread that is already inside a run may also join it as a helper",
        "thread_pool.cc",
        "i < pool.helpers_.size() && runs_inside == 0; ++i",
        "i < pool.helpers_.size(); ++i",
    ),
    Mutation(
        "more threads of the program are called than may help",
        "thread_pool.cc",
        "fetch_add(1, std::memory_order_relaxed) >= guests_.number;",
        "fetch_add(1, std::memory_order_relaxed) >= 64;",
    ),
    Mutation(
        "a task that the program's pool runs late does not keep our pool alive",
        "thread_pool.cc",
        "new (std::nothrow) std::shared_ptr<ThreadPool>(shared_from_this());",
        "new (std::nothrow) std::shared_ptr<ThreadPool>(shared_from_this(), this);\n"
        "    if (pool != nullptr) *pool = std::shared_ptr<ThreadPool>(\n"
        "        std::shared_ptr<ThreadPool>(), this);",
    ),
    Mutation(
        "an executor is destroyed without waiting for threads of the program",
        "executor.cc",
        "  if (guests_ != nullptr && guests_->IsHere()) guests_->WaitUntilLeft(&streams_);\n",
        "",
    ),
    Mutation(
        "loops of operators go to the pool of the process",
        "parallel_loop.cc",
        "ThreadPool::Current().Run(this, tasks - 1);",
        "ThreadPool::Get().Run(this, tasks - 1);",
    ),
    Mutation(
        "a loop's task is claimed without comparing the state of the claims",
        "parallel_loop.cc",
        "      if (!claims_.compare_exchange_weak(seen, next.bits(), std::memory_order_acq_rel,\n"
        "                                         std::memory_order_acquire)) {\n"
        "        continue;\n      }",
        "      claims_.store(next.bits(), std::memory_order_seq_cst);",
    ),
    Mutation(
        "a loop's end is not acquired",
        "parallel_loop.cc",
        "return left_.load(std::memory_order_acquire) == 0;",
        "return left_.load(std::memory_order_relaxed) == 0;",
    ),
    Mutation(
        "a loop's task does not release what it wrote",
        "parallel_loop.cc",
        "if (left_.fetch_sub(1, std::memory_order_seq_cst) == 1) Announce(0);",
        "if (left_.fetch_sub(1, std::memory_order_relaxed) == 1) Announce(0);",
    ),
    Mutation(
        "a new loop has the same number as the loop before it",
        "parallel_loop.cc",
        "Claims{++number_, static_cast<uint16_t>(tasks), 0}",
        "Claims{number_, static_cast<uint16_t>(tasks), 0}",
    ),
    Mutation(
        "helpers share the core that their caller was moved to",
        "thread_pool.cc",
        "  if (this_helper == nullptr) KeepHelpersOffThisCore();\n",
        "",
    ),
    Mutation(
        "a caller that sleeps may be woken behind its helper",
        "thread_pool.cc",
        "        const Confined stays(HasGuests() || pins() ? -1 : sched_getcpu());\n",
        "",
    ),
    Mutation(
        "a caller that slept on its core stays there for good",
        "affinity.cc",
        "    sched_setaffinity(0, sizeof(before_), &before_);\n",
        "",
    ),
    Mutation(
        "a helper is sent to the core that its caller was woken on",
        "thread_pool.cc",
        "MoveOff(helper, now_on);",
        "MoveOff(helper, now_on + 1);",
    ),
    Mutation(
        "two kernels have one block of scratch memory",
        "scratch.cc",
        "  return expected == kFree &&\n"
        "         block->state.compare_exchange_strong(expected, kLeased, "
        "std::memory_order_acquire,\n"
        "                                              std::memory_order_relaxed);",
        "  if (expected != kFree) return false;\n"
        "  block->state.store(kLeased, std::memory_order_seq_cst);\n  return true;",
    ),
    Mutation(
        "a leased block of scratch memory is leased again",
        "scratch.cc",
        "  if (mine != nullptr && TryToClaim(mine)) return mine;",
        "  if (mine != nullptr) return mine;",
    ),
    Mutation(
        "two instances have one block of scratch memory",
        "scratch.cc",
        "  while (ScratchBlock* const block = BestBlock(nbytes)) {\n"
        "    if (TryToClaim(block)) return mine = block;",
        "  while (ScratchBlock* const block = BestBlock(nbytes)) {\n    return mine = block;",
    ),
    Mutation(
        "a lease of scratch memory does not acquire what the last kernel did there",
        "scratch.cc",
        "block->state.compare_exchange_strong(expected, kLeased, std::memory_order_acquire,",
        "block->state.compare_exchange_strong(expected, kLeased, std::memory_order_relaxed,",
    ),
    Mutation(
        "the end of a lease of scratch memory is not released",
        "scratch.cc",
        "block->state.compare_exchange_strong(expected, kFree, std::memory_order_release,",
        "block->state.compare_exchange_strong(expected, kFree, std::memory_order_relaxed,",
    ),
    Mutation(
        "a lease of scratch memory ends when it begins",
        "scratch.cc",
        "  block_ = block;\n",
        "  GiveBack(block);\n",
    ),
    Mutation(
        "scratch memory is freed under a kernel",
        "scratch.cc",
        "    if (seen != kFree) continue;\n",
        "",
    ),
    Mutation(
        "scratch memory that is leased is not freed later",
        "scratch.cc",
        "seen == kFree ? kLeased : kLeasedTooLarge,",
        "seen == kFree ? kLeased : seen,",
    ),
)


class Builder:
    """Compiles the file that a mutation changes, and links it with the unchanged files."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self._folder = folder
        self._flags = ["-std=c++17", "-O1", "-g", "-pthread", "-DTVM_INTEROP_FORCED_PREEMPTION"]
        self._flags += flags
        folder.mkdir(parents=True, exist_ok=True)
        self._objects = {source: self._compile(ROOT / source, source) for source in SOURCES}
        self._tests = [self._compile(ROOT / source, source) for source in TESTS]

    def programs(self, mutation: Mutation | None) -> list[Path]:
        """Build a program for each file of tests, with the fault `mutation`; return the paths."""
        objects = dict(self._objects)
        if mutation is not None:
            source = f"runtime/cpu/{mutation.file}"
            text = (ROOT / source).read_text()
            if text.count(mutation.right) != 1:
                sys.exit(f"`{mutation.name}`: {source} must have the text `right` exactly once")
            mutated = self._folder / f"mutated_{mutation.file}"
            mutated.write_text(text.replace(mutation.right, mutation.wrong))
            objects[source] = self._compile(mutated, f"mutated_{source}")
        pool = [str(path) for path in objects.values()]
        programs = [test.with_suffix("") for test in self._tests]
        for test, program in zip(self._tests, programs, strict=True):
            self._run([*self._flags, str(test), *pool, "-ldl", "-o", str(program)])
        return programs

    def _compile(self, source: Path, name: str) -> Path:
        target = self._folder / (name.replace("/", "_") + ".o")
        read = [source, *(ROOT / "runtime").rglob("*.h"), *(ROOT / "tests" / "cpp").glob("*.h")]
        if target.exists() and target.stat().st_mtime > max(p.stat().st_mtime for p in read):
            return target
        self._run([*self._flags, f"-I{ROOT}", "-c", str(source), "-o", str(target)])
        return target

    def _run(self, arguments: list[str]) -> None:
        subprocess.run(["g++", *arguments], check=True)


def outcome(programs: Iterable[Path]) -> str:
    """A description of how the first failing test ended, or "" if all tests passed."""
    return next(filter(None, map(_outcome, programs)), "")


def _outcome(program: Path) -> str:
    try:
        done = subprocess.run(
            [str(program)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "hung"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if "WARNING:" in line or "CHECK" in line]
    return (lines or [f"status {done.returncode}"])[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", default="", help="run only the mutations whose name contains this"
    )
    parser.add_argument("--build", type=Path, help="build folder; later calls with it build less")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.build or Path(scratch)
        builder = Builder(folder, ["-fsanitize=thread"])
        said = outcome(builder.programs(None))
        if said:
            sys.exit(f"the tests fail without a mutation: {said}")
        missed = []
        for mutation in MUTATIONS:
            if arguments.only not in mutation.name:
                continue
            said = outcome(builder.programs(mutation))
            print(f"{'caught' if said else 'MISSED':8s}{mutation.name}: {said}", flush=True)
            if not said:
                missed.append(mutation.name)
    if missed:
        sys.exit(f"{len(missed)} mutations were missed")


if __name__ == "__main__":
    main()
