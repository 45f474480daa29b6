"""What an executor runs: streams, waits and memory of a schedule, checked."""
