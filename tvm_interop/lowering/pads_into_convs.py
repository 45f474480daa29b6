"""Folds zero padding into the convolution after it, so that no padded copy of the tensor is
made.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import replace_bindings, values_of
from .static_shape import static_shape

_PAD = tvm.ir.Op.get("relax.nn.pad")
_CONVS = {
    tvm.ir.Op.get("relax.nn.conv1d"): (relax.op.nn.conv1d, "NCW", "OIW"),
    tvm.ir.Op.get("relax.nn.conv2d"): (relax.op.nn.conv2d, "NCHW", "OIHW"),
    tvm.ir.Op.get("relax.nn.conv3d"): (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
}


@module_pass(opt_level=0, name="PadsIntoConvs")
class PadsIntoConvs:
    """Replace zero padding of a convolution's input by a larger padding of the convolution itself.

    Exporters write a separate padding operator for causal convolutions, and for TensorFlow's
    convolutions with padding `SAME` and strides. The padding operator is kept if, on one side, its
    padding plus that of the convolution exceeds `dilation * (kernel - 1)`. Some windows would then
    contain only zeros, and libraries refuse such a convolution. A later pass removes a padding
    operator that nothing reads any more.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        values = values_of(main)

        def replaced(binding: relax.Binding) -> list[relax.Binding]:
            value = binding.value if isinstance(binding, relax.VarBinding) else None
            conv = _with_padding(value, values)
            return [binding if conv is None else relax.VarBinding(binding.var, conv)]

        rewritten = mod.clone()
        rewritten.update_func(rewritten.get_global_var("main"), replace_bindings(main, replaced))
        return rewritten


def _with_padding(conv: Any, values: dict[relax.Var, relax.Expr]) -> relax.Expr | None:
    """The convolution `conv` with its input's padding folded in; None if that is not possible."""
    if not isinstance(conv, relax.Call) or conv.op not in _CONVS:
        return None
    pad = values.get(conv.args[0])
    if not isinstance(pad, relax.Call) or pad.op != _PAD:
        return None
    if str(pad.attrs.pad_mode) != "constant" or float(pad.attrs.pad_value) != 0:
        return None
    make, layout, kernel_layout = _CONVS[conv.op]
    attrs = conv.attrs
    if (str(attrs.data_layout), str(attrs.kernel_layout)) != (layout, kernel_layout):
        return None
    kernel = static_shape(conv.args[1].ty)
    widths = [int(width) for width in pad.attrs.pad_width]
    if kernel is None or any(widths[:4]) or min(widths) < 0:
        return None
    padding = [int(p) for p in attrs.padding]
    rank = len(kernel) - 2
    # A padding operator lists, axis by axis, the widths before and after. A convolution lists the
    # widths before all axes first, and then the widths after all axes.
    padding = [p + w for p, w in zip(padding, [*widths[4::2], *widths[5::2]], strict=True)]
    reach = [int(d) * (k - 1) for d, k in zip(attrs.dilation, kernel[2:], strict=True)]
    if any(p > reach[i % rank] for i, p in enumerate(padding)):
        return None
    call = make(
        pad.args[0],
        conv.args[1],
        strides=[int(s) for s in attrs.strides],
        padding=padding,
        dilation=[int(d) for d in attrs.dilation],
        groups=int(attrs.groups),
        data_layout=layout,
        kernel_layout=kernel_layout,
        out_layout=str(attrs.out_layout),
        out_dtype=str(attrs.out_dtype) if attrs.out_dtype else None,
    )
    return relax.BlockBuilder().normalize(call)
