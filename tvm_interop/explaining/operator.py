"""Provides `explain_operator`, which says which provider's kernel runs an operator.

For every provider, `explain_operator` also gives the time of the provider's kernel, or says why the
provider has no kernel.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..artifact.artifact import Artifact, load
from ..artifact.gpu_demand import GpuDemand, gpu_demands
from ..compiler.compilation import Compilation
from ..compiler.offers import Offer
from ..compiler.options import CompileOptions
from ..compiler.provider_choice import why_not
from ..errors import GraphError, did_you_mean
from ..execution.cuda import runs_on_cuda
from ..machine.kernel_libraries import TVM, provider_names
from ..plan.as_program import program_of
from ..program.program import Operator
from .subject import is_artifact


@dataclass(frozen=True)
class OperatorExplanation:
    """The provider whose kernel runs an operator, and the offers of all providers.

    Attributes
    ----------
    name: the name of the operator.
    kind: the name of the operator's kind in kernel libraries, such as `conv2d`; None if the
        operator is of no kind that kernel libraries know.
    provider: the provider whose kernel runs the operator.
    parts: the number of parts that the operator is divided into; 1 if it is not divided.
    offers: each provider's offer: the time of its kernel, or the reason why it has none. For a
        model, times are for plain layouts and one thread.
    gpu: the resources of a GPU's multiprocessor that the operator needs. None for a CPU, for a
        model whose kernels are not timed, and for artifacts of older versions.
    """

    name: str
    kind: str | None
    provider: str
    parts: int
    offers: tuple[Offer, ...]
    gpu: GpuDemand | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data for JSON; unknown times are None."""
        facts = asdict(self)
        for offer in facts["offers"]:
            offer["us"] = offer["us"] if math.isfinite(offer["us"]) else None
        facts["gpu"] = None if self.gpu is None else self.gpu.as_dict()
        return facts


def explain_operator(
    model: Any,
    name: str,
    *,
    measure: bool = True,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    options: CompileOptions | None = None,
) -> OperatorExplanation:
    """Say which provider's kernel runs an operator, and give the offer of every provider for it.

    The offer of a provider is the time of its kernel, or the reason why it has no kernel.

    Parameters
    ----------
    model: an artifact, the path of an artifact, or a model as `compile` takes it, for a CPU or a
        GPU. For an artifact nothing is timed, because it contains only the kernels that run.
    name: the name of an operator of the model; `tvm-interop show` lists these names.
    measure: whether to time kernels. If False, times that are not in the database are unknown.
    input_shapes: the shapes of inputs with open dimensions, by name.
    options: target, providers, database and so on, as for `compile`.

    Raises
    ------
    GraphError
        There is no operator of that name.
    UnsupportedModelError, ArtifactError
        `model` is neither a model nor a usable artifact.

    Examples
    --------
    >>> explain_operator("squeezenet", "conv1", measure=False).provider  # doctest: +SKIP
    'onednn'
    """
    if is_artifact(model):
        return _of_artifact(
            model if isinstance(model, Artifact) else load(model, kernels=False), name
        )
    compilation = Compilation(model, options or CompileOptions(), input_shapes)
    parts = _parts(compilation.program.operators, name)
    offered = compilation.offers(name, measure=measure)
    gpu = compilation.gpu_demand(parts[0].name) if measure else None
    return _explained(name, parts, offered, gpu)


def operator_text(explained: OperatorExplanation) -> str:
    """Return the explanation as text: a line on the operator, then one line per provider."""
    kind = f", `{explained.kind}`" if explained.kind else ""
    parts = f" in {explained.parts} parts" if explained.parts > 1 else ""
    lines = [f"`{explained.name}`{kind}: runs on {explained.provider}{parts}"]
    if explained.gpu is not None:
        lines.append(f"  {explained.gpu}")
    for offer in explained.offers:
        took = (
            f"{offer.us:.1f} us"
            if math.isfinite(offer.us)
            else "has a kernel; its latency is not known"
        )
        lines.append(f"  {offer.provider}: {offer.refusal or took}")
    return "\n".join(lines)


def _of_artifact(artifact: Artifact, name: str) -> OperatorExplanation:
    plan = artifact.usable_plan()
    parts = _parts(program_of(plan, artifact.weights).operators, name)
    shipped = parts[0]
    device = provider_names("cuda" if runs_on_cuda(plan) else "cpu")
    offered = tuple(_shipped_offer(each, shipped) for each in device)
    return _explained(name, parts, offered, gpu_demands(artifact, plan).get(shipped.name))


def _shipped_offer(provider: str, op: Operator) -> Offer:
    if provider == (op.library or TVM):
        return Offer(provider)
    if provider == TVM:
        return Offer(provider, "has no kernel for it in the artifact")
    return Offer(provider, why_not(provider, op))


def _parts(operators: list[Operator], name: str) -> list[Operator]:
    wholes: dict[str, list[Operator]] = {}
    for op in operators:
        wholes.setdefault(op.whole or op.name, []).append(op)
    if name not in wholes:
        raise GraphError(
            f"there is no operator `{name}`{did_you_mean(name, list(wholes))}; "
            f"the first are {', '.join(f'`{n}`' for n in list(wholes)[:3])}"
        )
    return wholes[name]


def _explained(
    name: str, parts: list[Operator], offered: tuple[Offer, ...], gpu: GpuDemand | None
) -> OperatorExplanation:
    first = parts[0]
    kind = None if first.description is None else first.description.op
    return OperatorExplanation(name, kind, first.library or TVM, len(parts), offered, gpu)
