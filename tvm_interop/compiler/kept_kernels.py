"""Keeps built libraries of TVM's kernels on disk, and finds them again in later compilations."""

from __future__ import annotations

import json
from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm.support import cc

from ..kernels.pipeline import PIPELINE
from ..measure.kept_files import KeptFiles

_KIND = "kernels"


def kernels_key(hashes: Mapping[str, str]) -> str:
    """The key under which a library of TVM's kernels is kept.

    Parameters
    ----------
    hashes: for each kernel, by name, a hash of its code as handed to LLVM, its shapes and its
        target.
    """
    context = tvm.transform.PassContext.current()
    passes = [
        str(context.opt_level),
        *sorted(map(str, context.required_pass)),
        "|",
        *sorted(map(str, context.disabled_pass)),
        "|",
        *sorted(f"{name}={value}" for name, value in context.config.items()),
    ]
    versions = [tvm.__version__, tvm_ffi.__version__, PIPELINE]
    return json.dumps([*versions, cc.get_cc(), passes, dict(hashes)])


def kept_kernels(kept: KeptFiles, hashes: Mapping[str, str]) -> bytes | None:
    """The bytes of the library whose kernels have the hashes `hashes`; None if it was not kept."""
    return kept.get(_KIND, kernels_key(hashes))


def keep_kernels(kept: KeptFiles, hashes: Mapping[str, str], code: bytes) -> None:
    """Store `code`, the bytes of the library whose kernels have the hashes `hashes`."""
    kept.put(_KIND, kernels_key(hashes), code)
