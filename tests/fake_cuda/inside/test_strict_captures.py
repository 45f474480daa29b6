"""The fake CUDA refuses the calls that CUDA's documentation forbids in captures and for events."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import new_event, new_stream

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
runtime = fake_gpu.runtime()


def in_thread(call: Callable[[], int]) -> int:
    """Make a call in another thread, and return its status."""
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(call()))
    thread.start()
    thread.join()
    return statuses[0]


def begin(stream: ctypes.c_void_p, mode: int = THREAD_LOCAL) -> int:
    return int(runtime.cudaStreamBeginCapture(stream, mode))


def end(stream: ctypes.c_void_p) -> int:
    graph = ctypes.c_void_p()
    status = int(runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)))
    assert (graph.value is None) == (status != 0)
    return status


def malloc() -> int:
    return int(runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64)))


def fork(origin: ctypes.c_void_p, to: ctypes.c_void_p) -> int:
    event = new_event()
    assert runtime.cudaEventRecord(event, origin) == 0
    return int(runtime.cudaStreamWaitEvent(to, event, 0))


def test_the_host_cannot_wait_for_a_captured_stream() -> None:
    stream = new_stream()
    assert begin(stream) == 0
    assert runtime.cudaStreamSynchronize(stream) == 900
    assert fake_gpu.launch("kernel", stream) == 901
    assert runtime.cudaEventRecord(new_event(), stream) == 901
    assert end(stream) == 901
    assert fake_gpu.launch("kernel", stream) == 0


def test_the_host_cannot_wait_for_another_stream_while_it_captures() -> None:
    stream, other = new_stream(), new_stream()
    assert begin(stream) == 0
    assert runtime.cudaStreamSynchronize(other) == 900
    assert end(stream) == 901


def test_a_graph_cannot_be_launched_into_a_captured_stream() -> None:
    stream, graph, exec_ = new_stream(), ctypes.c_void_p(), ctypes.c_void_p()
    assert begin(stream) == 0
    assert runtime.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
    assert runtime.cudaGraphInstantiate(ctypes.byref(exec_), graph, ctypes.c_ulonglong(0)) == 0
    assert runtime.cudaGraphLaunch(exec_, stream) == 0
    assert begin(stream) == 0
    assert runtime.cudaGraphLaunch(exec_, stream) == 900
    assert end(stream) == 901


@pytest.mark.parametrize(
    ("mode", "own", "others"), [(GLOBAL, 900, 900), (THREAD_LOCAL, 900, 0), (RELAXED, 0, 0)]
)
def test_who_may_allocate_during_a_capture(mode: int, own: int, others: int) -> None:
    stream = new_stream()
    assert begin(stream, mode) == 0
    assert malloc() == own
    assert end(stream) == (901 if own else 0)
    assert begin(stream, mode) == 0
    assert in_thread(malloc) == others
    assert end(stream) == (901 if others else 0)
    assert malloc() == 0


def test_memory_cannot_be_freed_during_a_capture() -> None:
    stream, memory = new_stream(), ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == 0
    assert begin(stream) == 0
    assert runtime.cudaFree(memory) == 900
    assert end(stream) == 901
    assert runtime.cudaFree(memory) == 0
    assert runtime.cudaFree(memory) == 1  # The memory is freed already.


# Tests how streams begin, join and end captures.


def test_a_capture_begins_on_a_stream_of_its_own() -> None:
    stream = new_stream()
    assert begin(ctypes.c_void_p()) == 900  # The default stream.
    assert begin(stream) == 0
    assert begin(stream) == 1
    assert end(stream) == 0
    assert end(stream) == 1


def test_two_captures_cannot_merge() -> None:
    first, second = new_stream(), new_stream()
    assert begin(first) == 0
    assert begin(second) == 0
    assert fork(first, second) == 902
    assert (end(first), end(second)) == (901, 901)


def test_a_capture_ends_where_it_began() -> None:
    origin, other = new_stream(), new_stream()
    assert begin(origin) == 0
    assert fork(origin, other) == 0
    assert end(other) == 903
    assert end(origin) == 901


def test_a_capture_ends_in_the_thread_where_it_began() -> None:
    stream = new_stream()
    assert begin(stream) == 0
    assert in_thread(lambda: end(stream)) == 908
    assert end(stream) == 901
    assert begin(stream, RELAXED) == 0
    assert in_thread(lambda: end(stream)) == 0


def test_forked_work_must_be_joined() -> None:
    origin, other = new_stream(), new_stream()
    assert begin(origin) == 0
    assert fork(origin, other) == 0
    assert fake_gpu.launch("kernel", other) == 0
    assert end(origin) == 904
    assert fake_gpu.launch("kernel", other) == 0  # The stream has left the capture.
    assert begin(origin) == 0
    assert fork(origin, other) == 0
    assert fake_gpu.launch("kernel", other) == 0
    assert fork(other, origin) == 0
    assert end(origin) == 0


def test_the_work_that_was_joined_last_counts() -> None:
    origin, other = new_stream(), new_stream()
    assert begin(origin) == 0
    assert fork(origin, other) == 0
    assert fake_gpu.launch("kernel", other) == 0
    assert fork(other, origin) == 0
    assert fake_gpu.launch("later", other) == 0
    assert end(origin) == 904


def test_no_wait_crosses_the_border_of_a_capture() -> None:
    stream, outside, never = new_stream(), new_event(), new_event()
    assert runtime.cudaEventRecord(outside, new_stream()) == 0
    for event in (outside, never):
        assert begin(stream) == 0
        assert runtime.cudaStreamWaitEvent(stream, event, 0) == 905
        assert end(stream) == 901
    assert runtime.cudaStreamWaitEvent(stream, outside, 0) == 0


def test_the_default_stream_waits_for_captured_streams_unless_they_are_non_blocking() -> None:
    blocking, free = new_stream(flags=0), new_stream()
    assert begin(free) == 0
    assert fake_gpu.launch("kernel", None) == 0
    assert end(free) == 0
    assert begin(blocking) == 0
    assert fake_gpu.launch("kernel", None) == 906
    assert end(blocking) == 901


def test_an_event_of_a_capture_stands_for_no_work_of_the_gpu() -> None:
    stream, event, timed = new_stream(), new_event(), new_event()
    assert runtime.cudaEventRecord(timed, stream) == 0
    assert begin(stream) == 0
    assert runtime.cudaEventRecord(event, stream) == 0
    assert end(stream) == 0
    assert runtime.cudaEventSynchronize(event) == 907
    assert runtime.cudaStreamWaitEvent(stream, event, 0) == 907
    assert runtime.cudaEventElapsedTime(ctypes.byref(ctypes.c_float()), timed, event) == 907
    assert runtime.cudaEventRecord(event, stream) == 0
    assert runtime.cudaEventElapsedTime(ctypes.byref(ctypes.c_float()), timed, event) == 0


# Times of events.


def test_which_events_have_times() -> None:
    stream, timed, untimed, never = new_stream(), new_event(), new_event(flags=2), new_event()
    ms = ctypes.c_float()
    for event in (timed, untimed):
        assert runtime.cudaEventRecord(event, stream) == 0
    assert runtime.cudaStreamSynchronize(stream) == 0
    assert runtime.cudaEventElapsedTime(ctypes.byref(ms), timed, timed) == 0
    for event in (untimed, never):
        assert runtime.cudaEventElapsedTime(ctypes.byref(ms), timed, event) == 400
        assert runtime.cudaEventElapsedTime(ctypes.byref(ms), event, timed) == 400
    assert runtime.cudaEventDestroy(timed) == 0
    assert runtime.cudaEventElapsedTime(ctypes.byref(ms), timed, timed) == 400


def test_an_event_is_recorded_on_its_own_gpu() -> None:
    here, event = new_stream(), new_event()
    runtime.cudaSetDevice(1)
    there = new_stream()
    runtime.cudaSetDevice(0)
    assert runtime.cudaEventRecord(event, there) == 400
    assert runtime.cudaEventRecord(event, here) == 0
    assert runtime.cudaStreamWaitEvent(there, event, 0) == 0
