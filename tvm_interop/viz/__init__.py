"""Pictures of schedules and runs: timelines, graphs, percentiles and traces."""

from .chrome_trace import chrome_trace

__all__ = ["chrome_trace"]
