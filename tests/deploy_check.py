"""Tries each command of the page "Deploy", with only the packages that the page installs.

    python -m tests.deploy_check WHOLE RUNTIME

WHOLE is a virtual environment with the wheels, the extra `serve` and onnxruntime. RUNTIME is a
virtual environment with only the wheel `tvm-interop-runtime`. Bubblewrap (`bwrap`) makes the file
systems in which the commands run: the system's `/usr`, one of the environments, and an empty home
folder. The file system that stands for a container has only the files that `examples/container.sh`
collected. There is no network.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from tests import nets
from tests.code_blocks import ROOT, in_page

PAGE = "docs/deploy.rst"
HOME = "/home/user"
LARGEST_FOLDER = 100e6
"""The largest size of a container's folder, in bytes."""
_AND_WAIT = """ &
for attempt in $(seq 60); do
  sleep 1
  python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/v2/health/ready')" \
    2> said && kill $! && exit 0
done
cat said; exit 1
"""
"""Shell text after a command that starts a server: waits until the server is ready, and ends it."""
_APP = """
import numpy as np
import tvm_interop

inputs, expected = dict(np.load("in.npz")), np.load("out.npz")
(name,) = expected.files
ours = tvm_interop.GraphModule("/model.tar")(*inputs.values())[0].numpy()
sessions = tvm_interop.Session("/model.tar").run(None, inputs)[0]
assert ours.tobytes() == sessions.tobytes() == expected[name].tobytes()
"""
"""The program `app.py` of the container with Python."""


def main() -> int:
    """Run the commands, and print each of them."""
    if shutil.which("bwrap") is None:
        print("bwrap is missing: install the package `bubblewrap`", file=sys.stderr)
        return 2
    whole, runtime = (Path(name).resolve() for name in sys.argv[1:3])
    text = (ROOT / PAGE).read_text()
    blocks = {block.first_line: block.text for block in in_page(PAGE, text)}
    (building,) = (block for line, block in blocks.items() if line.startswith("cmake "))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work)
        for command in [*commands(text), building]:
            print(f"$ {command.strip()}", flush=True)
            waits = command.startswith("tvm-interop serve")
            in_clean_root(whole, work, command + _AND_WAIT * waits)
        in_container(work / "root", entry_point(blocks["FROM scratch"]))
        (work / "app.py").write_text(_APP)
        words = entry_point(blocks["FROM python:3.12-slim"])
        copies = f"cp {HOME}/model.tar {HOME}/app.py /"
        in_clean_root(runtime, work, f"{copies} && {' '.join(words)}")
        print(f"container with Python: {' '.join(words)}")
    print("every command of the page works")
    return 0


def commands(text: str) -> list[str]:
    """The commands of `tvm-interop` that occur in the sentences of a page, outside of code
    blocks."""
    found = re.findall(r"``(tvm-interop [^`]*)``", text)
    return [" ".join(command.split()) for command in found]


def entry_point(dockerfile: str) -> list[str]:
    """The words of the command that a container runs, according to its Dockerfile."""
    (words,) = re.findall(r"^(?:ENTRYPOINT|CMD) (\[.*\])$", dockerfile, re.MULTILINE)
    return [str(word) for word in json.loads(words)]


def prepare(work: Path) -> None:
    """Write the files that a reader of the page has: a model, an input, and the folder
    `examples`."""
    net = nets.inception_like()
    onnx.save(net, work / "model.onnx")
    np.savez(work / "in.npz", **nets.feeds(net))
    shutil.copytree(ROOT / "examples", work / "examples")


def in_clean_root(environment: Path, work: Path, script: str) -> None:
    """Run lines of a shell in a new root file system.

    It has one environment, and `work` is the home folder.
    """
    python = (environment / "bin" / "python").resolve().parents[1]
    system: list[str] = []
    for name in ("bin", "lib", "lib64"):
        place = Path("/") / name
        if place.is_symlink():
            system += ["--symlink", str(place.readlink()), str(place)]
        elif place.exists():
            system += ["--ro-bind", str(place), str(place)]
    run(
        [
            *("--ro-bind", "/usr", "/usr", *system),
            *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
            *("--ro-bind", str(python), str(python)),
            *("--ro-bind", str(environment), str(environment)),
            *("--bind", str(work), HOME, "--chdir", HOME, "--setenv", "HOME", HOME),
            *("--setenv", "PATH", f"{environment}/bin:/usr/bin:/bin"),
            *("--cap-add", "ALL", "sh", "-ec", script),
        ],
    )


def in_container(root: Path, words: Sequence[str]) -> None:
    """Run a program with `root` as the whole file system. Refuse a folder that is too large."""
    size = sum(file.stat().st_size for file in root.rglob("*") if file.is_file())
    assert size < LARGEST_FOLDER, f"the container's folder has {size / 1e6:.0f} MB"
    print(f"container: {size / 1e6:.0f} MB, {' '.join(words)}", flush=True)
    run(["--bind", str(root), "/", "--proc", "/proc", "--chdir", "/", *words])


def run(arguments: Sequence[str]) -> None:
    """Run bubblewrap; end this program if the command in it fails."""
    isolated = ["bwrap", "--unshare-all", "--die-with-parent", "--clearenv"]
    done = subprocess.run(
        [*isolated, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\nbubblewrap ended with {done.returncode}")


if __name__ == "__main__":
    raise SystemExit(main())
