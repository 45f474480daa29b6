"""Pictures of schedules and runs."""

from .chrome_trace import chrome_trace

__all__ = ["chrome_trace"]
