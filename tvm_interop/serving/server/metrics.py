"""The metrics that the server exports to Prometheus at `/metrics`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from .executor import Executor
from .protocol import Answer

_SECONDS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip


class Metrics:
    """The metrics of a server.

    The histograms of times are updated with each served request. All counts are read from the
    executor when Prometheus asks for the metrics.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._executor: Executor | None = None
        self._queue, self._run = (
            Histogram(
                f"tvm_interop_{name}_seconds", text, ["model"],
                buckets=_SECONDS, registry=self._registry,
            )
            for name, text in (
                ("queue", "Time that served requests waited in the queue."),
                ("run", "Time that the runs took, with copies of inputs and outputs."),
            )
        )  # fmt: skip
        # A cache, because the method `labels` of a metric is slow.
        self._of_model: dict[str, tuple[Any, Any]] = {}
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def watch(self, executor: Executor) -> None:
        """Export the counts of this executor from now on."""
        self._executor = executor

    def served(self, model: str, answer: Answer) -> None:
        """Record the times of a served request."""
        if model not in self._of_model:
            self._of_model[model] = self._queue.labels(model), self._run.labels(model)
        queue, run = self._of_model[model]
        queue.observe(answer.queue_us / 1e6)
        run.observe(answer.run_us / 1e6)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        told: bytes = generate_latest(self._registry)
        return told

    def collect(self) -> Iterator[Any]:
        """Yield the counts of the executor. The registry of Prometheus calls this method."""
        requests = CounterMetricFamily(
            "tvm_interop_requests", "Requests by outcome.", labels=["model", "outcome"]
        )
        runs = CounterMetricFamily(
            "tvm_interop_runs", "Runs of models; one may serve several requests.", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "tvm_interop_waiting", "Requests in the queue.", labels=["model"]
        )
        memory = GaugeMetricFamily(
            "tvm_interop_model_bytes", "Memory of a model.", labels=["model", "kind"]
        )
        sizes = CounterMetricFamily(
            "tvm_interop_size_runs",
            "Runs by the size at which they ran: the size of the requests, or a padded size.",
            labels=["model", "size", "kind"],
        )
        rows = CounterMetricFamily(
            "tvm_interop_rows",
            "Rows of all runs: rows that clients sent, and rows that ran, including padding.",
            labels=["model", "size", "kind"],
        )
        in_flight = GaugeMetricFamily("tvm_interop_in_flight", "Requests without an answer yet.")
        if self._executor is not None:
            for name, model in self._executor.models.items():
                for outcome, count in model.statistics.outcomes.items():
                    requests.add_metric([name, outcome], count)
                runs.add_metric([name], model.statistics.told()["execution_count"])
                waiting.add_metric([name], self._executor.waiting(name))
                memory.add_metric([name, "weights"], model.memory.weights)
                memory.add_metric([name, "instances"], model.memory.instance * model.num_instances)
                for size, counts in model.run_counts.items():
                    pairs = zip(model.dimensions, size, strict=True)
                    told = ",".join(f"{dimension}={n}" for dimension, n in pairs)
                    sizes.add_metric([name, told, "exact"], counts.exact)
                    sizes.add_metric([name, told, "filled_up"], counts.filled_up)
                    rows.add_metric([name, told, "given"], counts.rows_given)
                    rows.add_metric([name, told, "computed"], counts.rows_computed)
            in_flight.add_metric([], self._executor.in_flight)
        yield from (requests, runs, sizes, rows, waiting, memory, in_flight)
