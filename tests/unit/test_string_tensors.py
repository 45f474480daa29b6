"""Tests artifacts with inputs and outputs that are strings, and everything that runs them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc

import tvm_interop
from tests.masked_nets import theirs
from tests.native_runtime import NativeModel, RuntimeLibraryError, library
from tests.string_nets import CATEGORIES, LABELS, classifier, encoder, features
from tvm_interop import GraphModule, Session, onnx_backend
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.artifact.layout import check_strings
from tvm_interop.artifact.manifest import StringInput, StringOutput
from tvm_interop.artifact.reading import read
from tvm_interop.cli.app import run_app
from tvm_interop.errors import ArtifactError, ExecutionError, InputError
from tvm_interop.serving import Server
from tvm_interop.serving.server.model import Model
from tvm_interop.serving.server.protocol import array_from_bytes, array_from_json
from tvm_interop.serving.server.strings import MOST_STRINGS, bytes_of, check_total
from tvm_interop.serving.server.ticket import Ticket

ROWS = 5
FEED = {"x": features(ROWS)}
STRINGS = tuple(LABELS[:3])
"""The labels of the classes, each once."""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return compiled(tmp_path_factory.mktemp("strings") / "classifier.tar")


def compiled(path: Path, **options: Any) -> Artifact:
    return tvm_interop.compile(
        classifier(), scheduler="sequential", streams=1, providers=["tvm"], out=path,
        latency_db=":memory:", **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def path(artifact: Artifact) -> Path:
    assert artifact.path is not None
    return artifact.path


@pytest.fixture(scope="module")
def wanted() -> list[np.ndarray]:
    """The outputs of onnxruntime. They have several labels, one of which is not ASCII."""
    label, scores = theirs(classifier(), FEED)
    assert len({*label}) > 1
    assert not all(text.isascii() for text in label)
    return [label, scores]


def same(got: Any, want: list[np.ndarray]) -> None:
    label, scores = got
    assert (label.dtype, label.shape) == (np.dtype(object), want[0].shape)
    assert label.tolist() == want[0].tolist()
    np.testing.assert_allclose(scores, want[1], 1e-5)


def test_a_module_gives_positions_and_the_strings(
    artifact: Artifact, path: Path, wanted: list[np.ndarray]
) -> None:
    """The first module runs the plan in Python, the second in the native library."""
    for module in (GraphModule(artifact), GraphModule(path)):
        assert module.output_strings == {"label": STRINGS}
        assert module.get_output_info()[1] == {"label": "int64", "scores": "float32"}
        outputs = [output.numpy() for output in module(**FEED)]
        assert [STRINGS[i] for i in outputs[0]] == wanted[0].tolist()
        same([module.as_strings(i, output) for i, output in enumerate(outputs)], wanted)
        for number in (-1, len(STRINGS)):
            with pytest.raises(ExecutionError, match=f"the string number {number}, and there are"):
                module.as_strings(0, np.array([0, number]))


def test_a_session_gives_what_onnxruntime_gives(path: Path, wanted: list[np.ndarray]) -> None:
    session = Session(path)
    label, scores = session.get_outputs()
    assert (label.type, label.shape, label.dtype) == ("tensor(string)", [ROWS], "object")
    assert scores.type == "tensor(float)"
    same(session.run(None, FEED), wanted)
    assert session.run(["label"], FEED)[0].tolist() == wanted[0].tolist()
    binding = session.io_binding()
    binding.bind_input("x", FEED["x"])
    places = binding.bind_output("label")
    session.run_with_iobinding(binding)
    same(binding.copy_outputs_to_cpu(), wanted)
    assert [STRINGS[i] for i in places] == wanted[0].tolist()


def test_a_session_of_a_model_with_a_range(tmp_path: Path) -> None:
    """Runs are padded to 4 or 8 rows, and the outputs are cut."""
    session = Session(
        classifier("rows"), shapes={"rows": (1, 8)}, scheduler="sequential", time_budget=0,
        latency_db=":memory:",
    )  # fmt: skip
    assert session.get_outputs()[0].type == "tensor(string)"
    for rows in (1, 3, 8):
        x = features(rows)
        same(session.run(None, {"x": x}), theirs(classifier("rows"), {"x": x}))


def test_the_backend_of_onnx(wanted: list[np.ndarray]) -> None:
    same(onnx_backend.prepare(classifier()).run([FEED["x"]]), wanted)


def test_the_command_line(
    path: Path, wanted: list[np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", **FEED)
    arguments = ["run", str(path), "-i", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    run_app(arguments)
    assert f"output label: string of shape ({ROWS},)" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as given:
        assert given["label"].tolist() == wanted[0].tolist()
    run_app([*arguments, "--print-top", "1"])
    assert "output `label` is strings" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    batched = tvm_interop.compile(
        classifier("rows"), scheduler="sequential", streams=1, providers=["tvm"],
        batch_sizes=[1, 4], latency_db=":memory:",
    )  # fmt: skip
    models = {"one": tvm_interop.load(path), "batched": batched}
    with Server(models, http_port=0, grpc_port=0) as server:
        yield server


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc])
def test_the_server_gives_bytes(
    server: Server, protocol: Any, is_binary: bool, wanted: list[np.ndarray]
) -> None:
    is_http = protocol is tritonclient.http
    with protocol.InferenceServerClient(server.http_url if is_http else server.grpc_url) as client:
        for name, rows in (("one", ROWS), ("batched", 3)):
            metadata = client.get_model_metadata(name)
            metadata = (
                metadata
                if is_http
                else {"outputs": [{"datatype": o.datatype} for o in metadata.outputs]}
            )
            assert [each["datatype"] for each in metadata["outputs"]] == ["BYTES", "FP32"]
            x = protocol.InferInput("x", [rows, 4], "FP32")
            x.set_data_from_numpy(FEED["x"][:rows])
            options = {"binary_data": is_binary} if is_http else {}
            asked = [protocol.InferRequestedOutput(n, **options) for n in ("label", "scores")]
            got = client.infer(name, [x], outputs=asked)
            label = [
                each if isinstance(each, str) else each.decode() for each in got.as_numpy("label")
            ]
            assert label == wanted[0][:rows].tolist()
            np.testing.assert_allclose(got.as_numpy("scores"), wanted[1][:rows], 1e-5)


def test_the_server_names_the_type_of_triton(server: Server) -> None:
    with tritonclient.http.InferenceServerClient(server.http_url) as client:
        config = client.get_model_config("one")
    assert [each["data_type"] for each in config["output"]] == ["TYPE_STRING", "TYPE_FP32"]


def test_the_c_interface(path: Path, wanted: list[np.ndarray]) -> None:
    model = NativeModel(path)
    native = library()
    assert [native.tvi_model_output_num_strings(model.model, i) for i in range(3)] == [3, 0, 0]
    assert native.tvi_model_output_num_strings(None, 0) == 0
    texts = [native.tvi_model_output_string(model.model, 0, i) for i in range(-1, 4)]
    assert texts == [None, *(text.encode() for text in STRINGS), None]
    assert native.tvi_model_output_string(model.model, 1, 0) is None
    assert native.tvi_model_output_string(None, 0, 0) is None
    label, _ = model.run(FEED["x"])
    assert [STRINGS[i] for i in label] == wanted[0].tolist()


def test_an_older_version_refuses_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 6 knows no strings. It would give the positions as labels."""
    with tarfile.open(path) as file:
        manifest = json.loads(file.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert manifest["version"] == 7
    assert manifest["string_outputs"] == [{"output": 0, "strings": list(STRINGS)}]
    monkeypatch.setattr("tvm_interop.artifact.reading.VERSION", 6)
    with path.open("rb") as opened, pytest.raises(ArtifactError, match=r"version 7.* up to 6; up"):
        read(opened, False, None)


TEXTS = ["low", "Hoch ↑", "unknown", "", "low"]
NUMBERS = features(ROWS)[:, :2] * 3
PLACES = np.array([[3], [4], [-1], [-1], [3]])
"""The positions of `TEXTS` among the strings of the model, after the three labels."""


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return tvm_interop.compile(
        encoder(), scheduler="sequential", streams=1, providers=["tvm"], latency_db=":memory:",
        out=tmp_path_factory.mktemp("encoder") / "encoder.tar",
    )  # fmt: skip


def feed_of(texts: Any) -> dict[str, Any]:
    return {"x": texts, "n": NUMBERS}


@pytest.fixture(scope="module")
def labels() -> list[str]:
    (label,) = theirs(encoder(), feed_of(np.array(TEXTS, object)[:, None]))
    assert len({*label}) > 1
    return list(label)


FORMS = [
    np.array(TEXTS, object)[:, None],
    np.array(TEXTS)[:, None],
    np.array([text.encode() for text in TEXTS])[:, None],
    [[text] for text in TEXTS],
    PLACES,
]
"""Ways to give strings: objects, text of a fixed length, UTF-8, lists, and positions."""


@pytest.mark.parametrize("given", FORMS)
def test_modules_and_sessions_read_strings(
    encoding: Artifact, labels: list[str], given: Any
) -> None:
    """The first module runs the plan in Python, the second in the native library."""
    assert encoding.path is not None
    for module in (GraphModule(encoding), GraphModule(encoding.path)):
        assert module.input_strings == {"x": (*STRINGS, *CATEGORIES)}
        (label,) = module(**feed_of(given))
        assert module.as_strings(0, label.numpy()).tolist() == labels
        np.testing.assert_array_equal(module.get_input("x").numpy(), PLACES)
    session = Session(encoding.path)
    assert [(each.type, each.dtype) for each in session.get_inputs()] == [
        ("tensor(string)", "object"), ("tensor(float)", "float32")
    ]  # fmt: skip
    assert session.run(None, feed_of(given))[0].tolist() == labels


def test_numbers_are_no_strings(encoding: Artifact) -> None:
    for wrong in (np.zeros((ROWS, 1), np.float32), np.array([[1.5]] * ROWS, object)):
        with pytest.raises(InputError, match="input `x` must be int64"):
            GraphModule(encoding)(**feed_of(wrong))
    with pytest.raises(InputError, match=r"input `x` .*got int64 of shape \(2, 1\)"):
        GraphModule(encoding)(**feed_of([["low"], ["high"]]))


def test_a_session_of_open_rows_reads_strings() -> None:
    session = Session(encoder("rows"), scheduler="sequential", time_budget=0, latency_db=":memory:")
    assert session.get_inputs()[0].type == "tensor(string)"
    for rows in (2, 5):
        feed = {name: each[:rows] for name, each in feed_of(FORMS[0]).items()}
        assert session.run(None, feed)[0].tolist() == theirs(encoder("rows"), feed)[0].tolist()


def test_the_command_line_reads_strings(
    encoding: Artifact, labels: list[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", **feed_of(FORMS[1]))
    files = ["-i", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    assert run_app(["run", str(encoding.path), *files]) == 0
    with np.load(tmp_path / "out.npz") as given:
        assert given["label"].tolist() == labels


def test_the_c_interface_lists_the_strings_of_an_input(
    encoding: Artifact, labels: list[str]
) -> None:
    model = NativeModel(str(encoding.path))
    native = library()
    assert [native.tvi_model_input_num_strings(model.model, i) for i in range(3)] == [5, 0, 0]
    texts = [native.tvi_model_input_string(model.model, 0, i) for i in (-1, 4, 5)]
    assert texts == [None, CATEGORIES[1].encode(), None]
    (label,) = model.run(PLACES, NUMBERS)
    assert [STRINGS[i] for i in label] == labels


@pytest.fixture(scope="module")
def encoding_server(encoding: Artifact) -> Iterator[Server]:
    batched = tvm_interop.compile(
        encoder("rows"), scheduler="sequential", streams=1, providers=["tvm"],
        batch_sizes=[1, 8], latency_db=":memory:",
    )  # fmt: skip
    assert encoding.path is not None
    models = {"one": tvm_interop.load(encoding.path), "batched": batched}
    with Server(models, http_port=0, grpc_port=0) as server:
        yield server


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc])
def test_the_server_reads_bytes(
    encoding_server: Server, protocol: Any, is_binary: bool, labels: list[str]
) -> None:
    is_http = protocol is tritonclient.http
    url = encoding_server.http_url if is_http else encoding_server.grpc_url
    options = {"binary_data": is_binary} if is_http else {}
    with protocol.InferenceServerClient(url) as client:
        for name in ("one", "batched"):
            inputs = [protocol.InferInput("x", [ROWS, 1], "BYTES")]
            inputs.append(protocol.InferInput("n", [ROWS, 2], "FP32"))
            inputs[0].set_data_from_numpy(FORMS[0], **options)
            inputs[1].set_data_from_numpy(NUMBERS, **options)
            got = client.infer(name, inputs).as_numpy("label")
            assert [each if isinstance(each, str) else each.decode() for each in got] == labels


def test_the_server_reads_strings_in_messages_of_grpc(
    encoding_server: Server, labels: list[str]
) -> None:
    request = service_pb2.ModelInferRequest(model_name="one")
    x = request.inputs.add(name="x", datatype="BYTES", shape=[ROWS, 1])
    n = request.inputs.add(name="n", datatype="FP32", shape=[ROWS, 2])
    x.contents.bytes_contents.extend(text.encode() for text in FORMS[0].ravel().tolist())
    n.contents.fp32_contents.extend(NUMBERS.ravel().tolist())
    with grpc.insecure_channel(encoding_server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = InferResult(stub.ModelInfer(request)).as_numpy("label")
        assert [each.decode() for each in answer] == labels
        for values, message in (([b"a"], "another number"), ([b"\xff"] * ROWS, "is not UTF-8")):
            del x.contents.bytes_contents[:]
            x.contents.bytes_contents.extend(values)
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request)
            assert message in refused.value.details()
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_the_model_runs_in_blocks(encoding: Artifact, labels: list[str]) -> None:
    assert encoding.path is not None
    model = Model("encoder", tvm_interop.load(encoding.path))
    model.divide(2)
    ticket = Ticket(
        0, 0, 0.0, inputs=feed_of(FORMS[0]), rows=1, shape=0, checked_by=model,
        done=lambda ticket: None, served="e",
    )  # fmt: skip
    for block in range(model.num_blocks):
        model.run_block(0, block, ticket)
    assert ticket.outputs is not None
    assert ticket.outputs[0].tolist() == labels


def test_strings_are_decoded_from_bytes_and_from_json() -> None:
    given = ["a", "", "Käse 🧀", 'say "no"', "back\\"]
    array = np.array(given, object)
    decoded = array_from_bytes("x", "BYTES", [5, 1], bytes_of(array))
    assert (decoded.shape, decoded.ravel().tolist()) == ((5, 1), given)
    decoded = array_from_json("x", "BYTES", [1, 5], msgspec.Raw(json.dumps(given).encode()))
    assert (decoded.shape, decoded.ravel().tolist()) == ((1, 5), given)
    assert array_from_json("x", "BYTES", [0], msgspec.Raw(b"[]")).tolist() == []


@pytest.mark.parametrize(
    "nested", ["text", ["a", "]["], [["a"], ["b"]], [[["a", "\\"]], [['"', ""]]], [[], []]]
)
def test_strings_in_json_may_be_nested_like_their_shape(nested: Any) -> None:
    wanted = np.array(nested, object)
    text = json.dumps(nested, indent=2).encode()
    got = array_from_json("x", "BYTES", wanted.shape, msgspec.Raw(text))
    assert (got.shape, got.tolist()) == (wanted.shape, nested)


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ([2], b"\1\0\0\0a", "string 1 is truncated"),
        ([1], b"\2\0\0\0a", "string 0 is truncated"),
        ([1], b"\xff\xff\xff\xffa", "string 0 is truncated"),
        ([1], b"\0\0\0\0a", "1 bytes are left"),
        ([1], b"\1\0\0\0\xff", "string 0 of input `x` is not UTF-8"),
        ([MOST_STRINGS + 1], b"", "at most 65536 are allowed"),
    ],
)
def test_wrong_bytes_are_refused(shape: list[int], data: bytes, message: str) -> None:
    for given in (data, memoryview(data)):
        with pytest.raises(InputError, match=message):
            array_from_bytes("x", "BYTES", shape, given)


@pytest.mark.parametrize(
    ("shape", "data", "message"),
    [
        ([2], '["a"]', "needs 2 strings by its shape"),
        ([1], '["a", "b"]', "needs 1 strings by its shape"),
        ([1], json.dumps(["\\"] * 2), "needs 1 strings by its shape"),
        ([1], '[["a"]]', "not a list of strings, flat or nested like its shape"),
        ([1], "[1]", "not a list of strings"),
        ([1], "[" * 10000, "not a list of strings"),
        ([1, 1], '["a", ["b"]]', "needs 1 strings by its shape"),
        ([2, 1], '["a", ["b"]]', "not a list of strings"),
        ([2, 2], '[["a", "b"], ["c"], ["d"]]', r"not nested like its shape \[2, 2\]"),
        ([2, 2], '[["a", "b", "c", "d"]]', r"not nested like its shape"),
        ([0, 1], f"[{'[],' * 2**18}[]]", "not a list of strings"),
        ([MOST_STRINGS + 1], "[]", "at most 65536 are allowed"),
    ],
)
def test_wrong_json_is_refused(shape: list[int], data: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        array_from_json("x", "BYTES", shape, msgspec.Raw(data.encode()))


def test_the_strings_of_all_inputs_are_limited() -> None:
    half = np.empty(MOST_STRINGS // 2, object)
    check_total([half, half, np.zeros(9)])
    with pytest.raises(InputError, match="the request has 65537 strings"):
        check_total([half, half, half[:1]])


@pytest.mark.parametrize("kind", ["input", "output"])
@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([(2, ["a"])], "is not among the model's 2"),
        ([(1, ["a"])], "is float32 in the plan"),
        ([(0, [])], "has no strings"),
        ([(0, ["a", "b\0c"])], "a string with a zero byte"),
        ([(0, ["a"]), (0, ["b"])], "is listed twice"),
    ],
)
def test_both_readers_refuse_wrong_strings(
    tmp_path: Path, artifact: Artifact, encoding: Artifact, kind: str,
    tensors: list[tuple[int, list[str]]], message: str,
) -> None:  # fmt: skip
    made = {"input": StringInput, "output": StringOutput}[kind]
    right = {"input": encoding, "output": artifact}[kind]
    listed = tuple(made(place, tuple(strings)) for place, strings in tensors)
    wrong = msgspec.structs.replace(right.manifest, **{f"string_{kind}s": listed})
    with pytest.raises(ArtifactError, match=message):
        check_strings(wrong, [right.plan])
    fields = [{kind: place, "strings": strings} for place, strings in tensors]
    path = _with_strings(right, tmp_path, {f"string_{kind}s": fields})
    with pytest.raises(RuntimeLibraryError, match=message):
        NativeModel(path)
    with path.open("rb") as opened, pytest.raises(ArtifactError, match=message):
        read(opened, False, None)


def _with_strings(artifact: Artifact, folder: Path, wrong: dict[str, Any]) -> Path:
    """Write a file whose manifest has other fields, without the checks of `save`."""
    assert artifact.path is not None
    path = folder / "wrong.tar"
    with tarfile.open(artifact.path) as old, tarfile.open(path, "w") as new:
        for member in old.getmembers():
            data: Any = old.extractfile(member)
            text = data.read()
            if member.name == "manifest.json":
                text = json.dumps({**json.loads(text), **wrong}).encode()
            member.size = len(text)
            new.addfile(member, io.BytesIO(text))
    return path
