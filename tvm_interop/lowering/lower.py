"""Lowers a Relax module to units: calls of fused kernels, and reshapes that copy nothing."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..errors import UnsupportedModelError, first_line
from ..machine.cpu_features import runs_own_kernels
from .activations_before_views import ActivationsBeforeViews
from .common_subexpressions import CommonSubexpressions
from .convs_of_small_images import ConvsOfSmallImages
from .cut_convs import CutConvs
from .fold_affine import FoldAffine
from .fold_arrays import FoldArrays
from .fold_calls import FoldCalls
from .fuse_and_name import FuseAndName
from .fuse_kernels import FuseKernels
from .legalizations import legalizations
from .legalize_once import legalized_once
from .library_calls import GroupLibraryCalls
from .names import bindings_of
from .narrow_storage import NarrowStorage
from .pads_into_convs import PadsIntoConvs
from .quantised import QuantisedProducts
from .reshapes import ReshapesOfMain
from .row_products import RowProducts
from .rows_as_images import RowsAsImages
from .selected_rows import SelectedRows
from .splits_as_parts import SplitsAsParts
from .summed_convs import SummedConvs
from .taps_as_channels import TapsAsChannels
from .transposed_convs import TransposedConvs
from .volumes_as_images import VolumesAsImages
from .wide_sums import WideSums

_LOWERED = "tvm_interop.lowered"
"""The attribute that marks a `main` as lowered."""


@module_pass(opt_level=0, name="LowerToUnits")
class LowerToUnits:
    """Lower `main` to units: calls of fused kernels, each bound to a unique, readable name.

    The passes do the following:

    - Of several equal operators on the same values, only the first is computed.
    - A transposed convolution becomes a convolution.
    - A convolution of sequences does not compute results at its end that a later slice removes.
    - A convolution of sequences or volumes becomes a convolution of images.
    - Batch norms are folded into the convolutions before them.
    - Convolutions of one image whose results are only added become one convolution.
    - Convolutions and matrix products of float16 add up their terms in float32.
    - A convolution with few output channels becomes a 1x1 convolution and a sum of shifts, unless
      results are stored as bfloat16, which would round the terms of the sum.
    - Expressions that contain only constants are computed.
    - A single row is multiplied by a transposed tensor without transposing the tensor first.
    - Each operator becomes a kernel, and element-wise operators are fused into the kernel before
      them.
    - An operator that only changes a shape becomes `relax.reshape`, which the executor treats as a
      view. A reshape ends a fusion group, so that a library can still compute the convolution or
      matrix product before the reshape.

    The lowered module compiles and runs with stock TVM. Lowering it again changes nothing.

    A unit is named after the heaviest of its bindings, or the first of equally heavy ones. From the
    heaviest to the lightest, TVM's kinds of kernels are: convolution and matrix product, reduction,
    injective, broadcast, element-wise. A binding imported from ONNX has the name of its node. Names
    that Relax made up (`lv3`) are ignored. A unit that has only such names is named after its
    kernel. If another unit has the name already, a suffix is added.

    Parameters
    ----------
    target
        The target that the kernels are compiled for; it decides how operators are lowered. By
        default the target of the surrounding `with target:`, or else `llvm`.
    libraries
        Loaded kernel libraries that may compute units. A group of operators that one of them can
        compute becomes a separate unit, and an attribute of `main` holds its description. A
        concatenation also becomes a separate unit if its inputs can be computed directly in its
        result.
    int8_libraries
        The members of `libraries` that compute the products of a quantised model in integers (see
        `QuantisedProducts`). If it is empty, these products are computed in floats.
    narrow
        The pass that lets units store their results as bfloat16 (see `NarrowStorage`). With None,
        the type of every tensor stays the same.
    are_sizes_alike
        Whether to lower a model in the same way for all sizes of its inputs. The passes that decide
        by the number of operations whether to change anything are then left out.

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
        are_sizes_alike: bool = False,
    ) -> None:
        self._target = target
        self._are_sizes_alike = are_sizes_alike
        self._int8_libraries = int8_libraries
        self._narrow = narrow
        self._libraries = libraries

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Lower `mod`; called by TVM's pass machinery."""
        if is_lowered(mod):
            return mod
        try:
            with self._resolve_target() as target:
                # Where this project's attention kernels do not run, attention is lowered as several
                # operators: products and a softmax.
                attends = self._narrow is None and runs_own_kernels(target)
                without = () if attends else ("attention",)
                passes = _lowering(
                    self._libraries,
                    self._narrow,
                    self._int8_libraries,
                    without,
                    self._are_sizes_alike,
                )
                mod = passes(mod)
        except Exception as err:
            raise UnsupportedModelError(f"TVM cannot lower the model: {first_line(err)}") from err
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
    without: tuple[str, ...] = (),
    are_sizes_alike: bool = False,
) -> tvm.transform.Sequential:
    """The passes of the lowering, in order. `GroupLibraryCalls` describes `without`."""
    passes = relax.transform
    return tvm.transform.Sequential(
        [
            QuantisedProducts(int8_libraries),
            CommonSubexpressions(),
            TransposedConvs(),
            PadsIntoConvs(),
            CutConvs(),
            FoldAffine(),
            passes.DeadCodeElimination(),
            SummedConvs(),
            ConvsOfSmallImages(),
            RowsAsImages(),
            VolumesAsImages(),
            WideSums(),
            *([TapsAsChannels()] if narrow is None and not are_sizes_alike else []),
            passes.DeadCodeElimination(),
            FoldArrays(),
            FoldCalls(),
            passes.DeadCodeElimination(),
            *([] if are_sizes_alike else [SelectedRows()]),
            RowProducts(),
            passes.DecomposeOpsForInference(),
            passes.CanonicalizeBindings(),
            SplitsAsParts(),
            ActivationsBeforeViews(),
            GroupLibraryCalls(libraries, without=without),
            passes.LegalizeOps(legalized_once(legalizations())),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            ReshapesOfMain(),
            passes.DeadCodeElimination(),
            FuseAndName(),
            *([] if narrow is None else [narrow]),
            FuseKernels(),
            passes.DeadCodeElimination(),
        ],
        name="LowerToUnits",
    )


def is_lowered(mod: tvm.IRModule) -> bool:
    """Whether `LowerToUnits` made `main`, and no operators have been added to `main` since.

    Raises
    ------
    UnsupportedModelError
        The module has no function `main`.
    """
    if "main" not in [var.name_hint for var in mod.get_global_vars()]:
        raise UnsupportedModelError(
            "the Relax module has no function `main`: name the function that runs the model `main`"
        )
    main = mod["main"]
    if not main.attrs or _LOWERED not in main.attrs:
        return False
    units = (tvm.ir.Op.get("relax.call_tir"), tvm.ir.Op.get("relax.reshape"))
    calls = (b.value for b in bindings_of(main) if isinstance(b, relax.VarBinding))
    return all(call.op in units for call in calls if isinstance(call, relax.Call))
