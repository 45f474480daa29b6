"""Tests that operations and bytes of operators are counted correctly from their kernels."""

import pytest

from tests.nets import Net, attention, branches, norms, split
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.measure.workloads import describe_workload
from tvm_interop.program.library_op import library_op
from tvm_interop.program.program import Operator, Program, Value
from tvm_interop.program.traits import are_memory_bound, operator_traits

OPTIONS = CompileOptions(latency_db=":memory:", providers=("tvm",), parts=1)


def by_name(model):
    compilation = Compilation(model, OPTIONS)
    return dict(zip(compilation.graph.names, compilation.traits, strict=True))


def test_a_convolution_and_what_follows_it():
    traits = by_name(branches())
    # A convolution of 3x3 from 4 to 6 channels on 8x8 pixels multiplies, adds, and adds a bias. The
    # ReLU only selects, which TVM does not count.
    conv = traits["c3/Conv"]
    macs = 8 * 8 * 6 * 4 * 9
    assert conv.flops == 2 * macs + 8 * 8 * 6
    assert conv.nbytes == 4 * (4 * 64 + 6 * 4 * 9 + 6 + 6 * 64)


def test_what_only_moves_is_memory_bound():
    net = Net()
    x = net.input("x", [1, 16, 8, 8])
    turned = net.op("Transpose", [x], "turned", perm=[0, 2, 3, 1])
    traits = by_name(net.model(turned, net.conv(x, "conv", (16, 16), 3)))
    assert traits["turned/Transpose"].flops == 0
    assert traits["turned/Transpose"].nbytes == 2 * 4 * 16 * 64
    bound = dict(zip(traits, are_memory_bound(list(traits.values()), 5.0), strict=True))
    assert bound["turned/Transpose"]
    assert not bound["conv/Conv"]


def test_traits_and_workloads_count_alike():
    """In a matrix product with a bias, each of two shares does half of the work."""
    shapes = ((8, 4), (4, 2), (2,), (8, 2))
    values = [Value(name, shape, "float32") for name, shape in zip("xwby", shapes, strict=True)]
    product = library_op(op="matmul", shapes=shapes, layouts=("plain",) * 4, has_bias=True)
    operators = [
        Operator(f"op[{i}]", "kernel", (0, 1, 2), (3,), product, share=(i, 2)) for i in range(2)
    ]
    program = Program(values, operators, inputs=(0, 1, 2), outputs=(3,))
    flops = [traits.flops for traits in operator_traits(program)]
    assert flops == [describe_workload(program, i, "hash").flops for i in range(2)]
    assert flops == [2 * 8 * 4 * 2 // 2] * 2


def test_a_part_of_a_product_moves_its_own_columns():
    """The operator that computes some columns of a product gets the whole weight, but reads only
    its own columns."""
    values = [Value(f"v{i}", s, "float32") for i, s in enumerate([(1, 100), (100, 64), (1, 16)])]
    product = library_op(
        op="matmul",
        shapes=((1, 100), (100, 16), (1, 16)),
        layouts=("plain",) * 3,
        cut=(1, 1, 32, 64),
    )
    operator = Operator("op[3/4]", "kernel", (0, 1), (2,), product, "onednn")
    program = Program(values, [operator], inputs=(0, 1), outputs=(2,))
    (traits,) = operator_traits(program)
    assert traits.nbytes == 4 * (100 + 100 * 16 + 16)
    workload = describe_workload(program, 0, "hash")
    assert workload.nbytes == traits.nbytes
    assert [shape for _, shape in workload.arguments] == [(1, 100), (100, 16), (1, 16)]


@pytest.mark.parametrize("model", [attention, norms, split])
def test_every_operator_moves_something(model):
    assert all(t.nbytes > 0 and t.flops >= 0 for t in by_name(model()).values())


def test_workloads_count_what_schedulers_see():
    """Scheduled kernels have the same counts as unscheduled kernels.

    A direct count of their split loops would be too large.
    """
    compilation = Compilation(norms(), OPTIONS)
    program = compilation.program
    described = [describe_workload(program, op, "").flops for op in range(len(program.operators))]
    assert described == [traits.flops for traits in compilation.traits]
    assert any(described)


def test_a_tensor_read_twice_counts_twice():
    net = Net()
    net.op("Mul", [net.input("x", [4]), "x"], "y")
    (only,) = by_name(net.model("y")).values()
    assert only.nbytes == 4 * 4 * 3


def test_opara_takes_them():
    """Opara launches memory-bound and compute-bound operators alternately.

    There are two of each.
    """
    net = Net()
    x = net.input("x", [1, 16, 16, 16])
    convs = [net.conv(x, f"conv{i}", (16, 16), 3) for i in range(2)]
    window = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1]}
    pools = [net.op("AveragePool", [x], "p0", **window), net.op("MaxPool", [x], "p1", **window)]
    compilation = Compilation(net.model(*convs, *pools), OPTIONS)
    made = compilation.schedule("opara")
    kinds = [compilation.graph.names[op][0] for op in made.launch_order]
    assert kinds == ["p", "c", "p", "c"]
