"""Plans for the executor: the streams, waits and memory of a schedule, made and checked."""
