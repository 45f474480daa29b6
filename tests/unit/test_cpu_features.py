"""Tests the features of the CPU, and artifacts that need more features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm

import tvm_interop
from tests.nets import chain
from tvm_interop import ArtifactError, GraphModule
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.machine import cpu_features
from tvm_interop.machine.cpu_features import (
    host_features,
    missing_features,
    parse_cpuinfo,
    target_features,
)

_CPUINFO = """\
processor\t: 0
model name\t: Some CPU
flags\t\t: fpu sse sse2 {flags}
bogomips\t: 1

processor\t: 1
flags\t\t: avx512f
"""


def test_flags_become_llvm_features() -> None:
    def parsed(flags: str) -> tuple[str, ...]:
        return parse_cpuinfo(_CPUINFO.format(flags=flags).splitlines())

    assert parsed("pni sse4_1 avx bmi1") == ("avx", "bmi", "sse3", "sse4.1")
    assert parsed("avx512_vnni avx512f avx512_fp16_of_tomorrow") == ("avx512f", "avx512vnni")
    assert parsed("") == ()
    assert parse_cpuinfo(["Features : fp asimd"]) == ()


def test_llvm_knows_every_name() -> None:
    """LLVM ignores the name of an unknown feature. So a wrong name would make kernels slow."""
    everything = sorted({*cpu_features._X86_64.values(), *cpu_features._FURTHER.values()})
    target = tvm.target.Target(
        {
            "kind": "llvm",
            "mtriple": "x86_64-linux-gnu",
            "mcpu": "x86-64",
            "mattr": [f"+{name}" for name in everything],
        }
    )
    assert list(target_features(target)) == everything


def compiled_for(target: Any) -> tuple[str, tuple[str, ...]]:
    """Return the target that `target` stands for, and the CPU features that the kernels need."""
    options = CompileOptions(target, streams=1, latency_db=":memory:")
    compilation = Compilation(chain(1), options)
    artifact = compilation.artifact(compilation.sequential())
    return artifact.manifest.target, artifact.manifest.cpu_features


def test_the_default_target_is_this_machine() -> None:
    target, features = compiled_for("llvm")
    assert features == host_features()
    assert all(f'"+{name}"' in target for name in features)


def test_a_cpu_of_the_users_choice_is_kept() -> None:
    target, features = compiled_for({"kind": "llvm", "mcpu": "nehalem"})
    assert "mattr" not in target
    assert {"sse4.2", "popcnt"} <= set(features)
    assert "avx" not in features
    _, features = compiled_for({"kind": "llvm", "mattr": ["+sse4.1"]})
    assert features == ("sse3", "sse4.1", "ssse3")


def test_instructions_that_only_a_named_cpu_uses_are_needed_too() -> None:
    """Cascade Lake has all instructions of Ice Lake that the default target may use."""
    needed = target_features(tvm.target.Target({"kind": "llvm", "mcpu": "icelake-server"}))
    older = target_features(tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"}))
    assert {"avx512vbmi", "gfni"} <= set(missing_features(needed, older))
    here = parse_cpuinfo(Path("/proc/cpuinfo").read_text().splitlines())
    assert missing_features(here) == []
    assert not {*host_features()} & {*cpu_features._FURTHER.values()}


def test_a_machine_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_interop.machine.cpu_target.host_features", lambda: ())
    target, features = compiled_for("llvm")
    assert "mattr" not in target
    assert features == ()
    monkeypatch.setattr(cpu_features, "host_features", lambda: ())
    assert missing_features(["avx512f"]) == []


def test_other_processors_keep_llvms_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    host_features.cache_clear()
    try:
        assert host_features() == ()
    finally:
        monkeypatch.undo()
        host_features.cache_clear()


def test_kernels_this_cpu_cannot_run_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "model.tar"
    artifact = tvm_interop.compile(chain(2), scheduler="sequential", out=out)
    features = (*artifact.manifest.cpu_features, "avx4096", "warp9")
    artifact.manifest = msgspec.structs.replace(artifact.manifest, cpu_features=features)
    artifact.save(out)
    loaded = tvm_interop.load(out)
    assert loaded.manifest.cpu_features == features
    with pytest.raises(ArtifactError, match=r"lacks: avx4096, warp9; compile the model"):
        GraphModule(loaded)
    artifact.manifest = msgspec.structs.replace(artifact.manifest, cpu_features=features[:-2])
    module = GraphModule(artifact)
    module.run(x=np.ones((1, 4, 4, 4), "float32"))
    assert np.isfinite(module.get_output(0).numpy()).all()
