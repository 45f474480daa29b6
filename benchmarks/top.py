"""Trains the learned parts of TOP (Lin et al., TPDS 36(2), 2025), and compares and ablates them.

    python -m benchmarks.top [--folder DIR] [--seconds S] [--only NAME ...] [--quick] [--report]

TOP serves many models on one device. It runs blocks of several models together, as combined blocks.
Agents trained by reinforcement learning choose the combination, and GPG schedules each combined
block.

The programme is a list of cells (trainings, searches and runs of policies). The most informative
cells come first. Each cell writes one JSON file into the folder when it is done. A later run skips
the cells whose files are there. Trainings keep checkpoints in the same folder.

- `--only` runs the cells whose names begin with one of the given names.
- `--report` makes the table of claims and the plots from the files alone.
- `--quick` runs small versions of some cells, in a temporary folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.serving_cells import NETWORKS, served_model
from benchmarks.top_blocks import Graph, combinations, joined, small_blocks, split
from benchmarks.top_cells import (
    SEARCHES,
    Setup,
    World,
    learning_cell,
    policies_cell,
    search_cell,
)
from benchmarks.top_exact import (
    CONFIG,
    MENDED,
    gradient_through_a_known_reward,
    search_and_compare,
    train_and_compare,
)
from benchmarks.top_gpg import STEPS, exact_gaps, large_blocks, printed_reward, train
from benchmarks.top_report import done, report
from tvm_interop.atomic_file import replacing
from tvm_interop.scheduling import schedule
from tvm_interop.serving.decisions import Agents
from tvm_interop.serving.devices import SHEETS
from tvm_interop.serving.learning.maddpg import MaddpgConfig
from tvm_interop.serving.policies.search import Search

RESULTS = Path(__file__).parent / "results" / "serving" / "top"
CALLS = 4000
"""Number of decisions that each contestant simulates. The paper trains for up to 8,000 steps."""
PAPER = MaddpgConfig(steps=CALLS, random_steps=1000, gamma=0.0, centring=0.05)
"""The networks of the paper, with half of its steps. The outcome of a step depends only on the
decision of that step, so rewards are not discounted. A penalty keeps the outputs of the actors away
from the ends of their range."""
SMALL = replace(PAPER, critic=(256, 128, 64), actor=(128, 64), actor_rate=3e-4)
"""The configuration for cells with many seeds: smaller networks, trained in a tenth of the time."""
PRINTED = replace(SMALL, gamma=0.95, centring=0.0)
"""Like `SMALL`, but with the discount factor of the paper and without a penalty."""
ABLATIONS = {
    "launcher off": Setup(variant="no launcher"),
    "combination off": Setup(variant="no combination"),
    "pipeline off": Setup(variant="no pipeline"),
    "stages by the printed reward": Setup(variant="printed stages"),
    "barriers off": Setup(variant="no barriers"),
    "linear interval": Setup(interval="linear"),
    "throughput rewarded": Setup(reward="throughput"),
}
DEFAULT_WEIGHTS: dict[str, Path | None] = {"gpg": None, "gpg-scored": None}
MENDED_LINE = replace(SMALL, shared_reward=True, actor_update="candidates")
"""Our corrected learner (see `top_exact.MENDED`), with the networks and steps of `SMALL`."""
Cell = tuple[str, Callable[[], Any]]


def cells(folder: Path, calls: int = CALLS) -> Iterator[Cell]:
    """Yield the cells of the programme in order. Trainings write checkpoints into `folder`."""

    def learned(name: str, setup: Setup, config: MaddpgConfig) -> Cell:
        return name, lambda: learning_cell(setup, config, folder, name)

    small, paper = replace(SMALL, steps=calls), replace(PAPER, steps=calls)
    for kappa in (0.03, 0.1):
        yield f"policies-{kappa}", lambda kappa=kappa: policies_cell(Setup(kappa))
    for seed in range(5):
        config = replace(CONFIG, seed=seed)
        yield f"exact-room-{seed}", lambda c=config: train_and_compare("room for all", c)
    for method in SEARCHES:
        for seed in range(3):
            yield (
                f"search-{method}-{seed}",
                lambda m=method, s=seed: search_cell(Setup(), m, calls, s),
            )
    yield "printed-reward", lambda: printed_reward([g for g in split("a100")[0] if _is_small(g)])
    for seed in range(2):
        yield learned(f"maddpg-small-{seed}", Setup(), replace(small, seed=seed))
    yield learned("maddpg-printed-0", Setup(), replace(PRINTED, steps=calls))
    yield "inference", inference_seconds
    yield learned("ddpg-small-0", Setup(), replace(small, agents="one"))
    yield "gpg-exact-a100", lambda: exact_gaps("a100", DEFAULT_WEIGHTS)
    yield "gpg-large-a100", lambda: large_blocks("a100", DEFAULT_WEIGHTS)
    yield "heights", heights
    yield "graphs", graph_shapes
    for name, setup in ABLATIONS.items():
        yield learned(f"ablation-{name}-0", setup, small)
    yield learned("maddpg-small-2", Setup(), replace(small, seed=2))
    for seed in range(5):
        config = replace(CONFIG, seed=seed)
        yield f"exact-crowded-{seed}", lambda c=config: train_and_compare("crowded", c)
    yield "exact-gradient", lambda: gradient_through_a_known_reward("crowded")
    for case in ("crowded", "room for all"):
        for seed in range(5):
            config = replace(MENDED, seed=seed)
            yield (
                f"exact-{case.partition(' ')[0]} mended-{seed}",
                lambda n=case, c=config: train_and_compare(n, c),
            )
    for method, seed in itertools.product(SEARCHES, range(5)):
        yield (
            f"exact-search {method}-{seed}",
            lambda m=method, s=seed: search_and_compare("crowded", m, CONFIG.steps, s),
        )
    for name, setup in ABLATIONS.items():
        yield learned(f"ablation-{name}-1", setup, replace(small, seed=1))
    for seed in range(2):
        yield (
            f"search-two in flight-{seed}",
            lambda s=seed: search_cell(Setup(variant="two in flight"), "hill climbing", 400, s),
        )
    for seed in (0, 1):
        yield (
            f"search-hill climbing, 0.1-{seed}",
            lambda s=seed: search_cell(Setup(0.1), "hill climbing", calls, s),
        )
        yield learned(f"maddpg-small, 0.1-{seed}", Setup(0.1), replace(small, seed=seed))
    for seed in (3, 4):
        yield learned(f"maddpg-small-{seed}", Setup(), replace(small, seed=seed))
    for seed in range(3):
        config = replace(MENDED_LINE, steps=calls, seed=seed)
        yield learned(f"maddpg-mended-{seed}", Setup(), config)
    yield "graphs-by-batch", graph_shapes_by_batch
    for name, setup in (("single", Setup(models=1)), ("shared", Setup(queue="shared"))):
        yield f"{name}-policies", lambda s=setup: policies_cell(s)
        for seed in range(2):
            config = replace(MENDED_LINE, steps=calls // 2, random_steps=500, seed=seed)
            yield learned(f"{name}-mended-{seed}", setup, config)
    yield "gpg-large-xavier-nx", lambda: large_blocks("xavier-nx", DEFAULT_WEIGHTS)
    yield "gpg-exact-xavier-nx", lambda: exact_gaps("xavier-nx", DEFAULT_WEIGHTS)
    for seed in range(5):
        yield learned(f"maddpg-paper-{seed}", Setup(), replace(paper, seed=seed))
    for variant in STEPS:
        yield f"gpg-training-{variant}", lambda v=variant: train(v, folder)


def quick_cells(folder: Path) -> Iterator[Cell]:
    """Yield small versions of some kinds of cells, for `--quick`."""
    tiny = replace(SMALL, steps=150, random_steps=100, critic=(32, 16), actor=(32, 16))
    yield "policies-0.03", lambda: policies_cell(Setup())
    yield "search-hill climbing-0", lambda: search_cell(Setup(), "hill climbing", 150, 0)
    yield "maddpg-small-0", lambda: learning_cell(Setup(), tiny, folder, "maddpg-small-0")
    config = replace(CONFIG, steps=600, random_steps=300)
    yield "exact-room-0", lambda: train_and_compare("room for all", config)
    some = small_blocks("a100")[::40]
    yield "gpg-exact-a100", lambda: exact_gaps("a100", DEFAULT_WEIGHTS, some)
    few = [g for g in split("a100")[0] if _is_small(g)][:4]
    yield "printed-reward", lambda: printed_reward(few)
    yield "inference", inference_seconds


def _is_small(graph: Any) -> bool:
    return 5 <= graph[0].num_ops <= 13 and graph[0].width > 1


def heights() -> dict[str, Any]:
    """Fig. 18: throughput of the mix, by device and by H.

    H is the largest number of blocks in a combined block. The throughput is relative to the
    throughput of one instance at a time.
    """
    found: dict[str, Any] = {}
    for device in ("a100", "xavier-nx", "tx2", "nano"):
        world = World(Setup(0.03, device))
        programs = world.programs
        row: dict[str, float] = {}
        base = 0.0
        for most in (1, 2, 3, 4, 6):
            policy = Search(budget=100, most=most, rates=world.mix)
            began = time.perf_counter()
            policy.prepare(_setting(programs))
            row[f"seconds {most}"] = time.perf_counter() - began
            assert policy.combination is not None
            score = policy._score()
            base = base or score.served_by(_sequential(programs))
            row[str(most)] = score(policy.combination) / base
        found[device] = row
    return found


def _setting(programs: Any) -> Any:
    from tvm_interop.serving.policy import Setting

    return Setting(programs)


def _sequential(programs: Any) -> Any:
    from tvm_interop.serving import make_policy

    return make_policy("sequential")


def graph_shapes() -> dict[str, Any]:
    """Fig. 20: mean number of stages, and of groups in a stage, by device and scheduler.

    The graphs are combined blocks that were held out of the training.
    """
    found: dict[str, Any] = {}
    for device in ("a100", "xavier-nx", "tx2", "nano"):
        graphs = [g for g in split(device)[1] if g[0].num_ops <= 40]
        found |= _shapes(device, graphs, ("greedy", "gpg", "gpg-scored", "ios"))
    return found


def graph_shapes_by_batch() -> dict[str, Any]:
    """Fig. 25: mean number of stages, and of groups in a stage, by batch size and scheduler.

    The graphs are random combined blocks on the data sheet of the server, an A100.
    """
    found: dict[str, Any] = {}
    batches = (1, 4, 16, 64)
    models = [served_model(name, SHEETS["a100"], batches[1:]) for name in NETWORKS]
    for batch in batches:
        priced = [replace(model, costs={1: model.costs[batch]}) for model in models]
        made = [joined(priced, parts, "a100") for parts in combinations("a100", 60, 7)]
        graphs = [graph for graph in made if graph[0].num_ops <= 25]
        found |= _shapes(str(batch), graphs, ("greedy", "gpg-scored", "ios"))
    return found


def _shapes(told: str, graphs: Sequence[Graph], names: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        made = [schedule(graph, name, latency) for graph, latency in graphs]
        groups = [len(stage.groups) for each in made for stage in each.stages]
        found[f"{told}, {name}"] = {
            "stages": float(np.mean([len(each.stages) for each in made])),
            "groups a stage": float(np.mean(groups)),
        }
    return found


def inference_seconds() -> dict[str, float]:
    """Microseconds that all agents take for one decision, in NumPy on one core.

    The agents have the sizes of the paper. The result has the median and the least of the measured
    times.
    """
    world = World(Setup())
    from tvm_interop.serving.learning.maddpg import MaddpgTraining

    training = MaddpgTraining(world.environment(0), replace(PAPER, steps=1000))
    agents = Agents(world.space, training.actors.arrays())
    state = np.random.default_rng(0).normal(size=world.space.state_size)
    took = []
    for _ in range(2000):
        began = time.perf_counter()
        agents.act(state)
        took.append(time.perf_counter() - began)
    return {"median_us": float(np.median(took)) * 1e6, "least_us": min(took) * 1e6}


def chosen(programme: Iterator[Cell], beginnings: Sequence[str]) -> Iterator[Cell]:
    """Yield the cells whose names begin with one of `beginnings`, in the order of the programme.

    Raises
    ------
    ValueError: no cell has a name with one of the beginnings.
    """
    left = set(beginnings)
    for name, make in programme:
        found = {beginning for beginning in beginnings if name.startswith(beginning)}
        left -= found
        if found:
            yield name, make
    if left:
        raise ValueError(f"no cell's name begins with {', '.join(map(repr, sorted(left)))}")


def run(programme: Iterator[Cell], folder: Path, seconds: float | None) -> None:
    """Run the cells whose files are not in the folder.

    Parameters
    ----------
    seconds: no cell begins after this time; None for no limit.
    """
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in programme:
        path = folder / f"{name}.json"
        if path.exists():
            continue
        if seconds is not None and time.perf_counter() - began > seconds:
            print(f"no time for the cell {name} and the cells after it", flush=True)
            return
        here = time.perf_counter()
        made = make()
        with replacing(path) as temporary:
            Path(temporary).write_text(json.dumps(made) + "\n")
        print(f"{name}: {time.perf_counter() - here:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the cells' files are")
    parser.add_argument("--seconds", type=float, help="begin no cell after so many seconds")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="NAME", help="cells whose names begin so"
    )
    parser.add_argument("--quick", action="store_true", help="run small versions of some cells")
    parser.add_argument(
        "--report", action="store_true", help="only make claims and plots, from files"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.report:
        report(options.folder)
    elif options.quick:
        with tempfile.TemporaryDirectory() as folder:
            run(quick_cells(Path(folder)), Path(folder), options.seconds)
            print(json.dumps({name: _brief(found) for name, found in done(Path(folder)).items()}))
    else:
        run(chosen(cells(options.folder), options.only), options.folder, options.seconds)


def _brief(found: Any) -> Any:
    """The results of a cell without its curves and actions, which are long."""
    if not isinstance(found, dict):
        return found
    return {key: value for key, value in found.items() if "curve" not in key and key != "action"}


if __name__ == "__main__":
    main()
