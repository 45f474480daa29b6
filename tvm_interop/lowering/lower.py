"""Lowers a Relax module to schedule units: fused kernel calls and free reshapes."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..errors import UnsupportedModelError
from .fold_affine import FoldAffine
from .fold_arrays import FoldArrays
from .fold_calls import FoldCalls
from .fuse_and_name import FuseAndName
from .legalizations import legalizations
from .library_calls import GroupLibraryCalls
from .names import bindings_of
from .narrow_storage import NarrowStorage
from .pads_into_convs import PadsIntoConvs
from .quantised import QuantisedProducts
from .reshapes import ReshapesOfMain
from .rows_as_images import RowsAsImages
from .transposed_convs import TransposedConvs
from .volumes_as_images import VolumesAsImages
from .wide_sums import WideSums

_LOWERED = "tvm_interop.lowered"
"""Attribute of `main`: its bindings are units already."""


@module_pass(opt_level=0, name="LowerToUnits")
class LowerToUnits:
    """Lower `main` to fused `call_tir` units, each bound to a readable unique name.

    Transposed convolutions become convolutions, those of sequences and volumes become convolutions
    of images, batch norms fold into them, constants are computed, operators become kernels and
    element-wise ones join the kernel they follow. What only changes a shape becomes
    `relax.reshape`, which the executor treats as a view. A reshape ends a fusion group: the
    convolution or matrix product before it stays one that a library could take over. Those of
    float16 add up in float32.

    The result compiles and runs with stock TVM, and lowering it again changes nothing.

    A unit is named after the binding that matters most in it: the heaviest by TVM's own kinds
    (convolution and matrix product, then reduction, then injective, broadcast, element-wise),
    the first of equals. Bindings imported from ONNX carry their node's name; names Relax made
    up (`lv3`) do not count, and a unit of those alone is named after its kernel. A name taken
    already gets a suffix.

    Parameters
    ----------
    target
        What the kernels are for; decides how operators are lowered. By default the target of
        the surrounding `with target:`, or else `llvm`.
    libraries
        Kernel libraries, loaded already, that may take over units: what one of them can compute
        becomes a unit of its own, and `main` carries its description beside it. So does a
        concatenation, which may turn out to cost nothing.
    int8_libraries
        Those of `libraries` that compute the products of a quantised model in integers (see
        `QuantisedProducts`); without any they are of floats.
    narrow
        What lets units hand on bfloat16 (see `NarrowStorage`); None leaves every tensor as it is.

    Examples
    --------
    >>> lowered = LowerToUnits()(mod)  # doctest: +SKIP
    """

    def __init__(
        self,
        target: tvm.target.Target | str | dict[str, Any] | None = None,
        libraries: tuple[str, ...] = (),
        narrow: NarrowStorage | None = None,
        int8_libraries: tuple[str, ...] = (),
    ) -> None:
        self._target = target
        self._int8_libraries = int8_libraries
        self._narrow = narrow
        self._libraries = libraries

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Lower `mod`; called by TVM's pass machinery."""
        if is_lowered(mod):
            return mod
        try:
            with self._resolve_target():
                mod = _lowering(self._libraries, self._narrow, self._int8_libraries)(mod)
        except Exception as err:
            raise UnsupportedModelError(f"TVM cannot lower the model: {err}") from err
        var = mod.get_global_var("main")
        mod.update_func(var, mod[var].with_attr(_LOWERED, True))
        return mod

    def _resolve_target(self) -> tvm.target.Target:
        if self._target is not None:
            return tvm.target.Target(self._target)
        return tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm")


def _lowering(
    libraries: tuple[str, ...],
    narrow: NarrowStorage | None = None,
    int8_libraries: tuple[str, ...] = (),
) -> tvm.transform.Sequential:
    """The passes, in order."""
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            QuantisedProducts(int8_libraries),
            TransposedConvs(),
            PadsIntoConvs(),
            FoldAffine(),
            RowsAsImages(),
            VolumesAsImages(),
            WideSums(),
            passes.DeadCodeElimination(),
            FoldArrays(),
            FoldCalls(),
            passes.DecomposeOpsForInference(),
            passes.CanonicalizeBindings(),
            GroupLibraryCalls(libraries),
            passes.LegalizeOps(legalizations()),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            ReshapesOfMain(),
            passes.DeadCodeElimination(),
            FuseAndName(),
            *([] if narrow is None else [narrow]),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ],
        name="LowerToUnits",
    )


def is_lowered(mod: tvm.IRModule) -> bool:
    """Whether `LowerToUnits` made `main`, and nobody added operators to it since."""
    if "main" not in [var.name_hint for var in mod.get_global_vars()]:
        raise UnsupportedModelError("the Relax module has no function `main` to lower")
    main = mod["main"]
    if not main.attrs or _LOWERED not in main.attrs:
        return False
    units = (tvm.ir.Op.get("relax.call_tir"), tvm.ir.Op.get("relax.reshape"))
    calls = (b.value for b in bindings_of(main) if isinstance(b, relax.VarBinding))
    return all(call.op in units for call in calls if isinstance(call, relax.Call))
