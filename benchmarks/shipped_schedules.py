"""Measures the schedules that `compile` chooses against sequential execution, in many rounds.

    python -m benchmarks.shipped_schedules FOLDER --artifacts ARTIFACTS

The artifacts come from `benchmarks.zoo`, which must run first (`--compile-only` is enough). A
network takes part if its artifact runs a schedule that the compiler's speed check found faster than
sequential execution. Three contestants run in turns, each in a process of its own: the schedule,
sequential execution of the same kernels, and sequential execution once more. The ratio of the two
sequential contestants is the noise. All contestants run twice: rested, where each turn begins with
half a second of rest, and then back to back.

Each network takes three minutes, so a run may be stopped. The next run with the same `--json` keeps
the networks that are in the file, and measures all other networks. If the new artifact of a network
runs sequentially, the network is removed from the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tvm_interop.perf import contest
from tvm_interop.perf.contestant import Contestant, Load
from tvm_interop.perf.engines import Artifact

from . import harness, machine_state, zoo_tables
from .options import add_force, add_json, add_rounds
from .zoo import OURS, SEQUENTIAL, Network, find

RESTS_S = {zoo_tables.RESTED: contest.REST_S, zoo_tables.BACK_TO_BACK: 0.0}
"""The rest before each turn, in seconds."""
_TURN_S = 0.1
_AGAIN = SEQUENTIAL + harness.AGAIN


@dataclass
class Row:
    """The results of a network, by the kind of run: `rested` or `back_to_back`.

    Attributes
    ----------
    median_us: median microseconds of the schedule and of sequential execution.
    ratio, interval: time of the schedule over the time of sequential execution, with the 95%
        confidence interval.
    noise, noise_interval: ratio of the times of two processes of sequential execution, and its
        interval.
    """

    network: str
    median_us: dict[str, dict[str, float]] = field(default_factory=dict)
    ratio: dict[str, float] = field(default_factory=dict)
    interval: dict[str, tuple[float, float] | None] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    noise_interval: dict[str, tuple[float, float] | None] = field(default_factory=dict)


def main() -> int:
    arguments = _arguments()
    networks = find(arguments.folder, arguments.networks)
    state = machine_state.observe_quiet(arguments.force)
    if state is None:
        return 2
    found: dict[str, Any] = {
        "machine": state.as_dict(), "rounds": arguments.rounds, "ships": {}, "rows": [],
    }  # fmt: skip
    if arguments.json is not None and arguments.json.exists():
        found = _kept(arguments.json, found)
    found["ships"] |= {each.name: _is_scheduled(each, arguments.artifacts) for each in networks}
    found["rows"] = [row for row in found["rows"] if found["ships"][row["network"]]]
    known = {row["network"] for row in found["rows"]}
    for network in networks:
        if found["ships"][network.name] and network.name not in known:
            row = asdict(_measured(network, arguments.artifacts, found["rounds"]))
            print(zoo_tables.shipped_cells(row), file=sys.stderr, flush=True)
            found["rows"].append(row)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print("\n\n".join(zoo_tables.where_it_pays(found)))
    return 0


def _kept(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """The results of an earlier run, which this run continues."""
    found: dict[str, Any] = json.loads(path.read_text())
    if (found["machine"]["cpu"], found["rounds"]) != (new["machine"]["cpu"], new["rounds"]):
        raise SystemExit(
            f"{path} has {found['rounds']} rounds on {found['machine']['cpu']}, and this run has "
            f"{new['rounds']} on {new['machine']['cpu']}: give another file"
        )
    return found


def _is_scheduled(network: Network, artifacts: Path) -> bool:
    told = artifacts / f"{network.name}.json"
    if not told.exists():
        raise SystemExit(f"{told} is missing: run `benchmarks.zoo --compile-only` first")
    return bool(json.loads(told.read_text())["scheduled"])


def _measured(network: Network, artifacts: Path, rounds: int) -> Row:
    ours, sequential = (str(artifacts / f"{network.name}{end}.tar") for end in ("", ".sequential"))
    row = Row(network.name)
    one, other, again = contestants = [
        Contestant(Artifact(OURS), ours),
        Contestant(Artifact(SEQUENTIAL), sequential),
        Contestant(Artifact(_AGAIN), sequential),
    ]
    with contest.started(contestants, network.feed(network.model()), Load()) as failed:
        for kind, rest_s in RESTS_S.items():
            for contestant in contestants:
                contestant.turns.clear()
            timing = contest.Timing(_TURN_S, rounds * _TURN_S, _TURN_S, rest_s)
            contest.take_turns(contestants, timing, failed)
            if failed:
                raise SystemExit(f"{network.name}: {failed}")
            row.median_us[kind] = {
                each.name: float(np.median(contest.latencies_of(each))) for each in (one, other)
            }
            found, noise = contest.ratio_of(one, other), contest.ratio_of(again, other)
            row.ratio[kind], row.interval[kind] = found.value, found.interval
            row.noise[kind], row.noise_interval[kind] = noise.value, noise.interval
    return row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of NAME.onnx and NAME.npz")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--artifacts", type=Path, default=Path("zoo_artifacts"))
    add_rounds(parser, 60)
    add_json(parser)
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
