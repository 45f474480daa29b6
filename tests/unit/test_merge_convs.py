"""Tests merged convolutions: they give the same results, or a reason why they cannot be merged."""

import random

import numpy as np
import onnx
import pytest

from tests.nets import Net
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop import ScheduleError
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.frontend import load_model
from tvm_interop.lowering.merge_convs import MergeConvs, fold_for_merging
from tvm_interop.lowering.mergeable import find_chains, mergeable_sets, why_not_merged


def conv(net, x, out, shape, *, pads=(0, 0, 0, 0), stride=1, bias=True, **attrs):
    """A convolution with a weight of this shape."""
    inputs = [x, net.weight(*shape), *([net.weight(shape[0])] if bias else [])]
    return net.op(
        "Conv", inputs, out, kernel_shape=shape[2:], pads=list(pads), strides=[stride] * 2, **attrs
    )


def folded(model):
    return fold_for_merging()(load_model(model))


def chains_of(model):
    return find_chains(folded(model)["main"])


def assert_close(merged, plain):
    for ours, theirs in zip(merged, plain, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def random_net(seed):
    """Two to four convolutions of one tensor, with random kernels, paddings and strides."""
    rng = random.Random(seed)
    net = Net()
    channels, size = rng.randint(1, 5), rng.randint(7, 12)
    x = net.input("x", [rng.choice([1, 2]), channels, size, size + rng.randint(0, 2)])
    stride = rng.choice([1, 1, 2, 3])
    relu = rng.random() < 0.5
    outs = []
    for i in range(rng.randint(2, 4)):
        kernel = [rng.choice([1, 1, 2, 3, 5]) for _ in range(2)]
        begin = [rng.randint(0, k // 2 + 1) for k in kernel]
        end = [rng.randint(0, k // 2 + 1) for k in kernel]
        if rng.random() < 0.9:
            kernel = [k + 1 - k % 2 for k in kernel]
            begin = end = [k // 2 for k in kernel]
        shape = (rng.randint(1, 6), channels, *kernel)
        bias = rng.random() < 0.7
        out = conv(net, x, f"c{i}", shape, pads=(*begin, *end), stride=stride, bias=bias)
        outs.append(net.op("Relu", [out], f"r{i}") if relu else out)
    return net.model(*outs)


@pytest.mark.slow
def test_random_convolutions_merge_to_the_same_numbers():
    """Merged convolutions give onnxruntime's results. Convolutions that cannot be merged are
    refused with a reason."""
    merged = 0
    for seed in range(30):
        model = random_net(seed)
        chains = chains_of(model)
        names = tuple(chains)
        reason = why_not_merged(list(chains.values()))
        if reason is not None:
            with pytest.raises(ScheduleError, match="cannot be merged"):
                MergeConvs([names])(folded(model))
            continue
        rng = np.random.default_rng(seed)
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
        plain = list(run_onnxruntime(model, feeds).values())
        assert_close(computed(MergeConvs([names])(folded(model)), feeds), plain)
        merged += 1
    assert merged > 12, merged


def fire(tail=()):
    """The fire module of SqueezeNet: a 1x1 and a 3x3 convolution, and a concatenation of both."""
    net = Net()
    x = net.input("x", [1, 8, 10, 10])
    one = net.op("Relu", [conv(net, x, "e1", (6, 8, 1, 1))], "e1_relu")
    three = net.op("Relu", [conv(net, x, "e3", (5, 8, 3, 3), pads=[1] * 4)], "e3_relu")
    net.op("Concat", [three, one, *tail], "cat", axis=1)
    return net


FEEDS = {"x": np.random.default_rng(1).standard_normal((1, 8, 10, 10)).astype(np.float32)}


def names_after_merging(model, groups):
    module = MergeConvs(groups)(folded(model))
    options = CompileOptions(latency_db=":memory:", providers=("tvm",))
    assert_close(computed(module, FEEDS), computed(model, FEEDS))
    return Compilation(module, options).graph.names


def test_a_concat_of_all_parts_is_the_merged_convolution():
    names = names_after_merging(fire().model("cat"), [("e1/Conv", "e3/Conv")])
    assert names == ("e1/Conv+e3/Conv",)


def test_a_concat_of_more_reads_it_whole():
    names = names_after_merging(fire(tail=["x"]).model("cat"), [("e1/Conv", "e3/Conv")])
    assert set(names) == {"e1/Conv+e3/Conv", "cat/Concat"}


def test_a_part_that_others_read_too_is_cut_out():
    net = fire()
    net.op("MaxPool", ["e1_relu"], "pool", kernel_shape=[2, 2])
    names = names_after_merging(net.model("cat", "pool"), [("e1/Conv", "e3/Conv")])
    assert "e1/Conv+e3/Conv" in names
    assert "cat/Concat" not in names


def test_several_groups():
    net = Net()
    x = net.input("x", [1, 8, 10, 10])
    first = [conv(net, x, f"a{i}", (4, 8, 1, 1)) for i in range(3)]
    net.op("Add", [first[0], first[1]], "sum")
    second = [conv(net, "sum", f"b{i}", (4, 4, 3, 3), pads=[1] * 4) for i in range(2)]
    groups = [("a0/Conv", "a1/Conv", "a2/Conv"), ("b0/Conv", "b1/Conv")]
    names = names_after_merging(net.model(*second, first[2]), groups)
    assert {"a0/Conv+a1/Conv+a2/Conv", "b0/Conv+b1/Conv"} <= set(names)
    with pytest.raises(ScheduleError, match="`a0/Conv` cannot be merged twice"):
        MergeConvs([groups[0][:2], groups[0][::2]])(folded(net.model(*second, first[2])))
    with pytest.raises(ScheduleError, match="without operators cannot be merged"):
        MergeConvs([()])(folded(net.model(*second, first[2])))


def pair(change, *, second="x"):
    """Two convolutions that differ in one respect."""
    net = Net()
    x = net.input("x", [1, 4, 9, 9])
    net.op("Relu", [x], "y")
    outs = [conv(net, x, "a", (4, 4, 3, 3), pads=[1] * 4)]
    options = {"shape": (4, 4, 3, 3), "pads": [1] * 4, **change}
    outs.append(conv(net, second, "b", options.pop("shape"), **options))
    return net.model(*outs)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (pair({}, second="y"), "`b/Conv` reads another tensor than `a/Conv`"),
        (pair({"stride": 2}), "`b/Conv` has other strides than `a/Conv`"),
        (pair({"pads": [0] * 4}), "`b/Conv` gives an image of another size than `a/Conv`"),
        (
            pair({"shape": (4, 4, 3, 3), "pads": [2, 1, 0, 1]}),
            r"the kernel of `a/Conv` \(3x3, 1x1 padded\) does not fit into one of 3x3, 2x1 padded",
        ),
        (
            pair({"shape": (4, 1, 3, 3), "group": 4}),
            "`b/Conv` cannot be merged: it is neither a conv",
        ),
        (
            pair({"pads": [2] * 4, "dilations": [2, 2]}),
            "`b/Conv` cannot be merged: it is neither a conv",
        ),
    ],
)
def test_why_not(model, says):
    with pytest.raises(ScheduleError, match=says):
        MergeConvs([("a/Conv", "b/Conv")])(folded(model))


def test_windows_of_any_place_that_fit():
    """A 2x3 window with one row of padding above, and a 3x3 window with padding on all sides."""
    model = pair({"shape": (4, 4, 2, 3), "pads": [1, 1, 0, 1]})
    feeds = {"x": np.random.default_rng(2).standard_normal((1, 4, 9, 9)).astype(np.float32)}
    merged = MergeConvs([("a/Conv", "b/Conv")])(folded(model))
    assert_close(computed(merged, feeds), list(run_onnxruntime(model, feeds).values()))


def test_another_activation():
    net = Net()
    x = net.input("x", [1, 4, 9, 9])
    relu = net.op("Relu", [conv(net, x, "a", (4, 4, 1, 1))], "relu")
    model = net.model(relu, conv(net, x, "b", (4, 4, 1, 1)))
    with pytest.raises(ScheduleError, match="`b/Conv` has another activation than `a/Conv`"):
        MergeConvs([("a/Conv", "b/Conv")])(folded(model))


def test_which_may_be_merged():
    net = Net()
    x = net.input("x", [1, 4, 9, 9])
    outs = [conv(net, x, f"c{i}", (4, 4, 1, 1)) for i in range(3)]
    outs.append(conv(net, outs[0], "d", (4, 4, 1, 1)))
    chains = chains_of(net.model(*outs))
    assert mergeable_sets(chains) == [("c0/Conv", "c1/Conv", "c2/Conv")]


def test_weights_that_are_no_constants_stay_alone():
    net = Net()
    x, w = net.input("x", [1, 4, 9, 9]), net.input("w", [4, 4, 1, 1])
    outs = [net.op("Conv", [x, w], f"c{i}", kernel_shape=[1, 1]) for i in range(2)]
    assert chains_of(net.model(*outs)) == {}


def test_the_model_is_left_as_it_was():
    model = fire().model("cat")
    before = folded(model)
    text = before.script()
    MergeConvs([("e1/Conv", "e3/Conv")])(before)
    assert before.script() == text
    assert isinstance(model, onnx.ModelProto)
