"""Strategies of Hypothesis that make invalid inputs from valid inputs."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import onnx
from hypothesis import strategies as st

from . import corpus

NUMBERS = (
    -1, 0, 1, 2, 3, 7, 16, 63, 64, 65, 255, 4096, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**46,
    2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, -(2**31), -(2**63), -(2**70),
    0.0, -0.0, 0.5, -1.5, 1e300, 1e-320, float("inf"), float("nan"), 10**400,
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "\ud800", "é", "`", "x" * 5000, "../../etc/passwd", "tvm", "onednn", "cudnn",
    "cpu:0", "cpu:1", "cuda:0", "cuda:1", "tpu:0", "float32", "int64", "bool", "object", "<f4",
    "bfloat16", "plain", "blocked16", "input", "weight", "output", "arena", "alias", "peer copy",
    "concurrent", "merge", "scheduled", "1", "-1", "%s%n", "{}", "a\nb",
)  # fmt: skip
ODD: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], [[[]]], {"": None}, "deep")


def paths(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything in a JSON document, except its root."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*at, key))


Pick: TypeAlias = Callable[[Sequence[Any]], Any]
"""A function that picks one of its arguments at random."""


@st.composite
def edited(draw: st.DrawFn, document: Any) -> Any:
    """A JSON document with one to four changes."""
    return with_edits(document, lambda things: draw(st.sampled_from(things)))


def with_edits(document: Any, pick: Pick) -> Any:
    """A copy of a JSON document with one to four changes."""
    document = copy.deepcopy(document)
    for _ in range(pick(range(1, 5))):
        where = list(paths(document))
        if where:
            _edit(document, pick(where), where, pick)
    return document


def _edit(document: Any, at: tuple[Any, ...], where: list[tuple[Any, ...]], pick: Pick) -> None:
    home = _at(document, at[:-1])
    old = home[at[-1]]
    how = pick(["alike", "other", "odd", "drop", "again", "nudge"])
    if how == "nudge" and isinstance(old, int):
        home[at[-1]] = old + pick([-64, -2, -1, 1, 2, 64])
    elif how in ("alike", "nudge"):
        home[at[-1]] = pick(NUMBERS if isinstance(old, int | float) else TEXTS)
    elif how == "other":
        # A value from another place of the document may well have the right type.
        home[at[-1]] = copy.deepcopy(_at(document, pick(where)))
    elif how == "odd":
        home[at[-1]] = copy.deepcopy(pick(ODD))
    elif how == "drop":
        del home[at[-1]]
    elif isinstance(home, list):
        home.insert(pick(range(len(home) + 1)), copy.deepcopy(old))
    else:
        home[pick(TEXTS)] = old


def _at(document: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        document = document[key]
    return document


def json_text(document: Any) -> str:
    """The document as JSON text. `"deep"` becomes a list that is nested too deeply to read."""
    text = json.dumps(document)
    return text.replace('"deep"', "[" * 5000 + "]" * 5000)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with some bytes changed, removed or doubled."""
    damaged_ = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        if not damaged_:
            break
        at = draw(st.integers(0, len(damaged_) - 1))
        length = draw(st.sampled_from([1, 2, 8, 64, 512, 4096]))
        how = draw(st.sampled_from(["flip", "set", "cut", "drop", "again", "insert"]))
        if how == "flip":
            damaged_[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "set":
            damaged_[at] = draw(st.sampled_from([0, 1, 0x20, 0x7F, 0x80, 0xFF]))
        elif how == "cut":
            del damaged_[at:]
        elif how == "drop":
            del damaged_[at : at + length]
        elif how == "again":
            damaged_[at:at] = damaged_[at : at + length]
        else:
            damaged_[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(damaged_)


@st.composite
def json_inputs(draw: st.DrawFn, texts: list[str]) -> bytes:
    """One of the JSON texts with changes, and sometimes with damaged bytes."""
    document = draw(edited(json.loads(draw(st.sampled_from(texts)))))
    data = json_text(document).encode("utf-8", "surrogatepass")
    return draw(damaged(data)) if draw(st.integers(0, 9)) == 0 else data


def plans() -> st.SearchStrategy[bytes]:
    """Plans as JSON."""
    return json_inputs(corpus.plans())


def schedules() -> st.SearchStrategy[bytes]:
    """Schedules as JSON."""
    return json_inputs(corpus.schedules())


@st.composite
def artifacts(draw: st.DrawFn) -> bytes:
    """Tar files with changed members and correct digests, crafted headers, or damaged bytes."""
    members = dict(corpus.artifacts()[draw(st.sampled_from(sorted(corpus.artifacts())))])
    how = draw(st.sampled_from(["member", "member", "member", "manifest", "header", "bytes"]))
    if how == "member":
        name = draw(st.sampled_from(sorted(members.keys() - {"manifest.json"})))
        members[name] = _member(draw, name, members[name])
        manifest = json.loads(members["manifest.json"])
        manifest["sha256"][name] = hashlib.sha256(members[name]).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()
    elif how == "manifest":
        edit = draw(edited(json.loads(members["manifest.json"])))
        members["manifest.json"] = json_text(edit).encode("utf-8", "surrogatepass")
    data = tar_of(members, draw if how == "header" else None)
    return draw(damaged(data)) if how == "bytes" else data


def _member(draw: st.DrawFn, name: str, data: bytes) -> bytes:
    if name.endswith(".json"):
        edit = draw(edited(json.loads(data)))
        return json_text(edit).encode("utf-8", "surrogatepass")
    return draw(damaged(data))


def tar_of(members: dict[str, bytes], draw: st.DrawFn | None) -> bytes:
    """A tar file. If `draw` is not None, one header has a wrong field and a correct checksum."""
    crafted = draw(st.sampled_from(sorted(members))) if draw else None
    file = io.BytesIO()
    for name, data in members.items():
        info = tarfile.TarInfo(name)
        info.size = len(data)
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        if draw is not None and name == crafted:
            _craft(draw, header)
        file.write(header + data + bytes(-len(data) % 512))
    return file.getvalue() + bytes(1024)


def _craft(draw: st.DrawFn, header: bytearray) -> None:
    field = draw(st.sampled_from(["type", "size", "name", "base256", "magic", "any"]))
    if field == "type":
        header[156:157] = draw(st.sampled_from([bytes([c]) for c in b"\0001234567gxLKSVMDN"]))
    elif field == "size":
        header[124:136] = draw(
            st.sampled_from([b"77777777777\0", b"00000000000\0", b"-1         \0"])
        )
    elif field == "base256":
        sign = draw(st.sampled_from([0x80, 0xFF]))
        header[124:136] = bytes([sign]) + draw(st.binary(min_size=11, max_size=11))
    elif field == "name":
        name = draw(st.sampled_from([*TEXTS, "plan.json", "weights.npz", "x/"]))
        raw = name.encode("utf-8", "surrogatepass")[:100]
        header[0:100] = raw + bytes(100 - len(raw))
    elif field == "magic":
        header[257:265] = draw(st.sampled_from([b"ustar\00000", b"ustar  \0", bytes(8)]))
    else:
        header[draw(st.integers(0, 511))] = draw(st.integers(0, 255))
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()


@st.composite
def models(draw: st.DrawFn) -> bytes:
    """ONNX files with changed nodes, attributes, shapes, weights or bytes."""
    model = copy.deepcopy(draw(st.sampled_from(corpus.models())))
    if draw(st.integers(0, 4)) == 0:
        return draw(damaged(model.SerializeToString()))
    for _ in range(draw(st.integers(1, 3))):
        _change_model(draw, model)
    return model.SerializeToString()


_OPERATORS = (
    "Conv", "Relu", "Concat", "Gemm", "MatMul", "Reshape", "Flatten", "Split", "Softmax", "Pad",
    "Slice", "Gather", "Resize", "Loop", "If", "LSTM", "Dropout", "MaxPool", "AveragePool", "LRN",
    "Transpose", "Expand", "Tile", "NonZero", "NoSuchOperator", "Constant", "Identity", "Cast",
)  # fmt: skip
_DIMENSIONS = (-1, 0, 1, 2, 3, 4, 5, 8, 16, 2**31, 2**40, 2**62)


def _change_model(draw: st.DrawFn, model: onnx.ModelProto) -> None:
    graph = model.graph
    nodes = list(range(len(graph.node)))
    node = graph.node[draw(st.sampled_from(nodes))] if nodes else None
    how = draw(st.sampled_from([
        "kind", "remove", "again", "inputs", "outputs", "attribute", "no attribute", "weight",
        "weight data", "shape", "opset", "output", "elsewhere",
    ]))  # fmt: skip
    names = [name for other in graph.node for name in (*other.input, *other.output)] + [""]
    if how == "shape" and graph.input:
        of = draw(st.sampled_from(list(graph.input))).type.tensor_type
        if of.shape.dim:
            dim = draw(st.sampled_from(list(of.shape.dim)))
            dim.dim_value = draw(st.sampled_from(_DIMENSIONS))
    elif how == "opset" and model.opset_import:
        model.opset_import[0].version = draw(st.sampled_from([-1, 0, 1, 7, 9, 13, 18, 24, 2**31]))
    elif how == "output" and graph.output:
        graph.output[0].name = draw(st.sampled_from(names))
    elif how in ("weight", "weight data", "elsewhere") and graph.initializer:
        _change_weight(draw, draw(st.sampled_from(list(graph.initializer))), how)
    elif node is None:
        return
    elif how == "kind":
        node.op_type = draw(st.sampled_from(_OPERATORS))
    elif how == "remove":
        graph.node.remove(node)
    elif how == "again":
        graph.node.append(copy.deepcopy(node))
    elif how == "inputs" and node.input:
        node.input[draw(st.integers(0, len(node.input) - 1))] = draw(st.sampled_from(names))
    elif how == "outputs" and node.output:
        node.output[0] = draw(st.sampled_from(names))
    elif how in ("attribute", "no attribute") and node.attribute:
        attribute = draw(st.sampled_from(list(node.attribute)))
        if how == "no attribute":
            node.attribute.remove(attribute)
        elif attribute.ints:
            attribute.ints[0] = draw(st.sampled_from(_DIMENSIONS))
        else:
            attribute.i = draw(st.sampled_from(_DIMENSIONS))


def _change_weight(draw: st.DrawFn, weight: onnx.TensorProto, how: str) -> None:
    if how == "weight" and weight.dims:
        at = draw(st.integers(0, len(weight.dims) - 1))
        weight.dims[at] = draw(st.sampled_from(_DIMENSIONS))
    elif how == "weight data":
        weight.raw_data = weight.raw_data[: draw(st.integers(0, len(weight.raw_data)))]
    elif how == "elsewhere":
        weight.data_location = onnx.TensorProto.EXTERNAL
        entry = weight.external_data.add()
        entry.key = "location"
        entry.value = draw(st.sampled_from(["../../etc/passwd", "nowhere.bin", "/dev/zero", ""]))
    else:
        weight.data_type = draw(st.integers(0, 30))


_VERBS = ("compile", "run", "schedule", "tune", "show", "bench", "models", "devices", "db")
_FILES = (
    "net.onnx",
    "net.tar",
    "plan.json",
    "schedule.json",
    "x.npz",
    "nowhere.onnx",
    ".",
    "",
    "db",
)
_OPTIONS = (
    "--target", "--arch", "--input-shapes", "--scheduler", "--streams", "--threads", "--json",
    "--max-group-ops", "--max-groups", "--endings", "--latency", "--max-measurements", "-o",
    "--time-budget", "--latency-db", "--providers", "--tuning-records", "--schedule", "--help",
    "--inputs", "--outputs", "--fill-mode", "--print-top", "--repeat", "--number", "--profile",
    "--sha256", "--device", "--format", "--runs", "--no-run", "--rounds", "--schedulers",
    "--verbose", "--keep-slower", "--version", "--pass-config", "-f", "--model-format", "--kernels",
)  # fmt: skip
_VALUES = (
    "llvm", "cuda", "sm_90", "x:[1,4,4,4]", "x:[1,-1]", "sequential", "greedy", "nimble", "0", "1",
    "2", "-1", "nan", "1e309", "99999999999999999999", "complete", "paper", "learned", "measured",
    "tvm", "onednn", "tvm,,", "html", "svg", "dot", "zeros", "out.tar", "out.npz", "out.json",
    "nowhere/out", "--", "\ud800", "{}", '{"kind": "llvm"}', "llvm -mcpu=nonsense", "list", "stats",
    "export", "import", "prune", "a=b", "x" * 500,
)  # fmt: skip


@st.composite
def command_lines(draw: st.DrawFn) -> bytes:
    """The arguments of a command line, as a JSON list."""
    arguments = [draw(st.sampled_from(_VERBS))]
    for _ in range(draw(st.integers(0, 2))):
        arguments.append(draw(st.sampled_from(_FILES)))
    for _ in range(draw(st.integers(0, 3))):
        arguments.append(draw(st.sampled_from(_OPTIONS)))
        if draw(st.booleans()):
            arguments.append(draw(st.sampled_from((*_VALUES, *_FILES))))
    return json.dumps(arguments).encode()


STRATEGIES = {
    "artifact": artifacts,
    "plan": plans,
    "schedule": schedules,
    "model": models,
    "command": command_lines,
}
