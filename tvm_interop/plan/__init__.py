"""Makes and checks plans for the executor: the streams, waits and memory of a schedule."""
