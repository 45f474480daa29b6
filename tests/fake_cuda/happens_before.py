"""Reads a log of the fake CUDA, and says whether a real GPU could have given wrong results.

A GPU orders two pieces of work (kernels or copies) only if the calls require an order. An order
comes from a stream, an event, an edge of a graph, or a wait of the host. For each kernel or copy,
the checker keeps the set of all work that has certainly ended before it starts. The set is stored
as the bits of an integer, which is simpler than vector clocks. The checker looks for these faults:
* Two pieces of work access the same bytes without an order, and one of them writes. For example, a
  wait is missing, or a buffer is used again too early.
* An operator reads another value than the plan says, or memory that is freed.
* A stream or the host waits for an event that is not recorded yet. CUDA does not wait in this case.
* A kernel touches the memory of another GPU, or is launched while another GPU is current. A copy
  goes between GPUs that have no access to each other, or names a wrong GPU.
* A capture has a call that cannot be captured (an allocation, a wait, loading of code). Or a
  capture waits for an event that was recorded outside of it, or ends before all of its streams are
  joined again.
* A stream, an event, memory or a graph is never released, or is used after its release.

The checker shares no code with the code that it checks. It gets the bytes that each operator
touches from the test, in `accesses`. The test takes them from the plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_CREATED = {"cudaStreamCreate": "stream", "cudaEventCreate": "event", "cudaMalloc": "address"}
_CREATED |= {"cudaMallocHost": "address"}
_CREATED |= {"cudaGraphCreate": "graph", "cudaStreamEndCapture": "graph"}
_CREATED |= {"cudaGraphInstantiate": "exec"}
_CREATED |= {"cudnnCreate": "handle", "cublasLtCreate": "handle"}
_DESTROYED = {"cudaStreamDestroy": "stream", "cudaEventDestroy": "event", "cudaFree": "address"}
_DESTROYED |= {"cudaFreeHost": "address"}
_DESTROYED |= {"cudaGraphDestroy": "graph", "cudaGraphExecDestroy": "exec"}
_DESTROYED |= {"cudnnDestroy": "handle", "cublasLtDestroy": "handle"}
_NOT_CAPTURED = ("cudaMalloc", "cudaFree", "cudaEventSynchronize", "cuModuleLoadData")
_NOT_CAPTURED += ("cudnnCreate", "cublasLtCreate", "cudaMallocHost", "cudaFreeHost")

_UNJOINED = 904
"""CUDA's error at the end of a capture that left a stream without joining it again."""


@dataclass(frozen=True)
class Access:
    """Bytes that an operator reads or writes. `value` lies at the addresses `begin` to `end`."""

    value: str
    begin: int
    end: int


@dataclass(frozen=True)
class OpAccesses:
    """All memory that one operator reads and writes."""

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()


@dataclass
class _Work:
    """One piece of work that a GPU does: a kernel, or a copy."""

    name: str
    touched: OpAccesses
    device: int | None = None
    """For a kernel, the GPU of its stream; None for a copy."""


@dataclass
class _Node:
    """A node of a graph: its work, and the nodes that must end before it."""

    work: _Work
    after: set[int]


@dataclass
class _Graph:
    nodes: list[_Node] = field(default_factory=list)
    ends: dict[int, set[int]] = field(default_factory=dict)
    """For a graph that consists of child graphs, the last nodes of each child, by its number."""


@dataclass
class _Stream:
    done: int = 0
    """The work that has ended when all work on the stream so far has ended, as bits."""
    in_capture: bool = False
    frontier: set[int] = field(default_factory=set)
    device: int | None = None


@dataclass(frozen=True)
class _Block:
    """A block of allocated memory."""

    end: int
    device: int


@dataclass
class _Event:
    done: int | None = None
    """The work that has ended when the event has happened, as bits; None until it is recorded."""
    frontier: set[int] | None = None
    """The nodes that the event follows, if it was recorded in the present capture."""


@dataclass(frozen=True)
class _Touch:
    bit: int
    access: Access
    writes: bool
    name: str


def check(
    log: Path | str,
    accesses: Mapping[str, OpAccesses] | None = None,
    ignore_leaks_of: Sequence[str] = (),
) -> list[str]:
    """Return a description of each fault; an empty list if there is none.

    Parameters
    ----------
    log: the file that the fake CUDA wrote.
    accesses: the memory that each operator touches, by the name that the test notes in the log
        before the operator is launched.
    ignore_leaks_of: the names of calls, such as the call that creates streams. Objects that these
        calls created need not be released, because TVM may keep them.
    """
    checker = _Checker(accesses or {})
    for line in Path(log).read_text().splitlines():
        checker.follow(json.loads(line))
    checker.look_for_leaks(ignore_leaks_of)
    return checker.faults


class _Checker:
    def __init__(self, accesses: Mapping[str, OpAccesses]) -> None:
        self.faults: list[str] = []
        self._accesses = accesses
        self._host = 0
        self._count = 0
        self._op = ""
        self._streams: dict[int, _Stream] = {0: _Stream()}
        self._events: dict[int, _Event] = {}
        self._graphs: dict[int, _Graph] = {}
        self._execs: dict[int, _Graph] = {}
        self._capture: _Graph | None = None
        self._origin = 0
        self._alive: dict[tuple[str, int], str] = {}
        self._blocks: dict[int, _Block] = {}
        self._peers: set[tuple[int, int]] = set()
        self._touches: list[_Touch] = []

    def follow(self, entry: dict[str, Any]) -> None:
        """Process the next line of the log."""
        call = entry["call"]
        if self._capture is not None and call in _NOT_CAPTURED:
            self._fault(f"`{call}` while a graph is captured{self._at()}")
        if call in _CREATED:
            self._alive[_CREATED[call], entry[_CREATED[call]]] = call
        self._check_alive(entry)
        handler = getattr(self, f"_{call}", None)
        if handler is not None:
            handler(entry)
        if call in _DESTROYED:
            self._destroyed(call, entry[_DESTROYED[call]])

    def look_for_leaks(self, ignored: Sequence[str]) -> None:
        """Note a fault for each object that was created and not released."""
        for (kind, which), call in self._alive.items():
            if call not in ignored and which:
                self._fault(f"{kind} {which}, made by `{call}`, was never given back")

    # Streams and events.

    def _note(self, entry: dict[str, Any]) -> None:
        self._op = entry["op"]

    def _cudaStreamCreate(self, entry: dict[str, Any]) -> None:
        self._streams[entry["stream"]] = _Stream(device=entry["device"])

    def _cudaEventCreate(self, entry: dict[str, Any]) -> None:
        self._events[entry["event"]] = _Event()

    def _cudaEventRecord(self, entry: dict[str, Any]) -> None:
        stream, event = self._stream(entry), self._events[entry["event"]]
        if stream.in_capture:
            event.frontier, event.done = set(stream.frontier), None
        else:
            event.frontier, event.done = None, stream.done | self._host

    def _cudaStreamWaitEvent(self, entry: dict[str, Any]) -> None:
        stream, event = self._stream(entry), self._events[entry["event"]]
        if event.frontier is not None:
            stream.in_capture = True
            stream.frontier |= event.frontier
        elif event.done is None:
            self._fault(f"event {entry['event']} is waited for before it is recorded{self._at()}")
        elif stream.in_capture:
            self._fault(f"event {entry['event']}, from outside, is waited for in a capture")
        else:
            stream.done |= event.done

    def _cudaStreamSynchronize(self, entry: dict[str, Any]) -> None:
        stream = self._stream(entry)
        if stream.in_capture:
            self._fault(f"`cudaStreamSynchronize` of a stream that is captured{self._at()}")
        self._host |= stream.done

    def _cudaEventSynchronize(self, entry: dict[str, Any]) -> None:
        self._host |= self._events[entry["event"]].done or 0

    # Memory and work.

    def _cudaMalloc(self, entry: dict[str, Any]) -> None:
        end = entry["address"] + entry["nbytes"]
        self._blocks[entry["address"]] = _Block(end, entry["device"])

    def _cudaFree(self, entry: dict[str, Any]) -> None:
        # `cudaFree` waits for the whole device.
        block = self._blocks.pop(entry["address"], None)
        end = entry["address"] if block is None else block.end
        for stream in self._streams.values():
            self._host |= stream.done
        self._touches = [
            t for t in self._touches if t.access.end <= entry["address"] or t.access.begin >= end
        ]

    def _launch(self, entry: dict[str, Any]) -> None:
        touched = self._accesses.get(self._op, OpAccesses())
        if "workspace" in entry:  # The kernel of a fake library logs the memory that it touches.
            workspace = _pieces("workspace", entry["workspace"])
            writes = (*_pieces("", entry["writes"]), *workspace)
            touched = OpAccesses(_pieces("", entry["reads"]), writes)
        work = _Work(self._op or entry["kernel"], touched, self._stream(entry).device)
        if work.device not in (None, entry["device"]):
            self._fault(
                f"`{work.name}` is launched on GPU {work.device} while GPU {entry['device']} is "
                "current"
            )
        self._work(entry, work)

    def _cudaMemcpyAsync(self, entry: dict[str, Any]) -> None:
        self._copy(entry)

    def _cudaMemcpyPeerAsync(self, entry: dict[str, Any]) -> None:
        path = entry["from_device"], entry["to_device"]
        if path not in self._peers:
            self._fault(f"a copy from GPU {path[0]} to GPU {path[1]}, which have no access")
        for end, device in zip(("from", "to"), path, strict=True):
            if not any(
                start <= entry[end] < block.end and block.device == device
                for start, block in self._blocks.items()
            ):
                self._fault(f"a copy {end} GPU {device}, where the memory named is not")
        self._copy(entry)

    def _cudaDeviceEnablePeerAccess(self, entry: dict[str, Any]) -> None:
        self._peers.add((entry["device"], entry["peer"]))

    def _copy(self, entry: dict[str, Any]) -> None:
        reads = Access("", entry["from"], entry["from"] + entry["nbytes"])
        writes = Access("", entry["to"], entry["to"] + entry["nbytes"])
        copied = OpAccesses((reads,), (writes,))
        # An operator that copies between GPUs launches no kernel, so no kernel names it. It is
        # recognised by the bytes that it reads and writes. A copy to or from the host belongs to no
        # operator.
        named = [op for op, touched in self._accesses.items() if _unnamed(touched) == copied]
        if len(named) == 1:
            self._work(entry, _Work(named[0], self._accesses[named[0]]))
        else:
            self._work(entry, _Work(entry["call"], copied))

    def _work(self, entry: dict[str, Any], work: _Work) -> None:
        stream = self._stream(entry)
        if not stream.in_capture:
            if self._capture is not None:
                self._fault(f"`{work.name}` runs on stream {entry['stream']} during a capture")
            stream.done = self._run(work, stream.done | self._host)
            return
        assert self._capture is not None
        self._capture.nodes.append(_Node(work, set(stream.frontier)))
        stream.frontier = {len(self._capture.nodes) - 1}

    def _run(self, work: _Work, before: int) -> int:
        """Note that `work` starts after the work in `before`.

        Return `before` with `work` added to it.
        """
        bit = 1 << self._count
        self._count += 1
        for access in (*work.touched.reads, *work.touched.writes):
            self._check_allocated(work, access)
        for access in work.touched.reads:
            self._touch(_Touch(bit, access, False, work.name), before)
        for access in work.touched.writes:
            self._touch(_Touch(bit, access, True, work.name), before)
        return before | bit

    def _touch(self, now: _Touch, before: int) -> None:
        last_write: _Touch | None = None
        for other in self._touches:
            overlap = other.access.begin < now.access.end and now.access.begin < other.access.end
            if not overlap or other.bit == now.bit or not (other.writes or now.writes):
                continue
            if not other.bit & before:
                self._fault(
                    f"race on `{now.access.value or other.access.value}`: `{other.name}` "
                    f"{'writes' if other.writes else 'reads'} and `{now.name}` "
                    f"{'writes' if now.writes else 'reads'} without an order"
                )
            elif other.writes:
                last_write = other
        if not now.writes and now.access.value:
            self._check_content(now, last_write)
        self._touches.append(now)

    def _check_content(self, now: _Touch, last_write: _Touch | None) -> None:
        # A value that no operator wrote is an input or a weight, which the host wrote.
        found = last_write.access.value if last_write is not None else ""
        if found and found != now.access.value:
            self._fault(f"`{now.name}` reads `{now.access.value}` where `{found}` was written last")

    def _check_allocated(self, work: _Work, access: Access) -> None:
        if not access.value or access.begin == access.end:
            return
        devices = [
            block.device
            for begin, block in self._blocks.items()
            if begin <= access.begin and access.end <= block.end
        ]
        if not devices:
            self._fault(f"`{work.name}` touches `{access.value}` outside allocated memory")
        elif work.device not in (None, *devices):
            self._fault(
                f"`{work.name}`, on GPU {work.device}, touches `{access.value}` on GPU {devices[0]}"
            )

    # Graphs.

    def _cudaStreamBeginCapture(self, entry: dict[str, Any]) -> None:
        if entry["mode"] != 1:
            self._fault("a capture is not in thread-local mode")
        self._capture, self._origin = _Graph(), entry["stream"]
        stream = self._stream(entry)
        stream.in_capture, stream.frontier = True, set()

    def _cudaStreamEndCapture(self, entry: dict[str, Any]) -> None:
        if self._capture is None or entry["stream"] != self._origin:
            self._fault(f"a capture ends on stream {entry['stream']}, where none began")
            return
        graph, origin = self._capture, self._stream(entry)
        joined = _ancestors(graph, origin.frontier)
        for which, stream in self._streams.items():
            if not stream.in_capture:
                continue
            if entry["status"] in (0, _UNJOINED) and not stream.frontier <= joined:
                self._fault(f"stream {which} is not joined back into the captured one")
            stream.in_capture, stream.frontier = False, set()
        for event in self._events.values():
            event.frontier = None
        self._capture = None
        if entry["graph"]:
            self._graphs[entry["graph"]] = graph

    def _cudaGraphCreate(self, entry: dict[str, Any]) -> None:
        self._graphs[entry["graph"]] = _Graph()

    def _cudaGraphAddChildGraphNode(self, entry: dict[str, Any]) -> None:
        graph, child = self._graphs[entry["graph"]], self._graphs[entry["child"]]
        after = {n for part in entry["after"].split() for n in graph.ends[int(part)]}
        shift = len(graph.nodes)
        for node in child.nodes:
            inner = {n + shift for n in node.after}
            graph.nodes.append(_Node(node.work, inner or after))
        inside = {n for node in child.nodes for n in node.after}
        ends = {n + shift for n in range(len(child.nodes)) if n not in inside}
        graph.ends[entry["node"]] = ends or after

    def _cudaGraphInstantiate(self, entry: dict[str, Any]) -> None:
        self._execs[entry["exec"]] = self._graphs[entry["graph"]]

    def _cudaGraphLaunch(self, entry: dict[str, Any]) -> None:
        stream = self._stream(entry)
        before = stream.done | self._host
        done: list[int] = []
        for node in self._execs[entry["exec"]].nodes:
            start = before
            for earlier in node.after:
                start |= done[earlier]
            done.append(self._run(node.work, start))
        for ended in done:
            before |= ended
        stream.done = before

    # Lifetimes.

    def _check_alive(self, entry: dict[str, Any]) -> None:
        for kind in ("stream", "event", "exec"):
            which = entry.get(kind, 0)
            if which and (kind, which) not in self._alive:
                self._fault(f"`{entry['call']}` uses {kind} {which}, which is not there (any more)")

    def _destroyed(self, call: str, which: int) -> None:
        if which and self._alive.pop((_DESTROYED[call], which), None) is None:
            self._fault(f"`{call}` of {_DESTROYED[call]} {which}, which is not there (any more)")

    def _stream(self, entry: dict[str, Any]) -> _Stream:
        return self._streams.setdefault(entry["stream"], _Stream())

    def _at(self) -> str:
        return f", at `{self._op}`" if self._op else ""

    def _fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)


def _unnamed(touched: OpAccesses) -> OpAccesses:
    """The accesses in `touched`, without the names of their values."""
    reads = tuple(replace(access, value="") for access in touched.reads)
    return OpAccesses(reads, tuple(replace(access, value="") for access in touched.writes))


def _pieces(value: str, text: str) -> tuple[Access, ...]:
    """The ranges of memory, as addresses and sizes, that the log of a library's kernel names."""
    pieces = (map(int, piece.split(":")) for piece in text.split())
    return tuple(Access(value, begin, begin + nbytes) for begin, nbytes in pieces)


def _ancestors(graph: _Graph, nodes: set[int]) -> set[int]:
    """Return `nodes` and all nodes that must end before them."""
    found: set[int] = set()
    open_nodes = list(nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node not in found:
            found.add(node)
            open_nodes.extend(graph.nodes[node].after)
    return found
