"""
Why did it not run in parallel?
===============================

This tutorial explains the schedule of one network in four commands, each as you would type it. It
needs an installed package (``pip install .`` in a clone of the repository). The network is
SqueezeNet with small images; any ONNX file works too.
"""

import json
import shlex
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import onnx

from tvm_interop.cli.app import run_app
from tvm_interop.models import build

folder = Path(tempfile.mkdtemp())
onnx.save(build("squeezenet", image_size=32), folder / "net.onnx")


def command(line: str) -> str:
    """Run a command line in `folder`, and return its output."""
    words = [str(folder / word) if "." in word else word for word in shlex.split(line)[1:]]
    printed = StringIO()
    with redirect_stdout(printed):
        assert run_app(words) == 0
    return printed.getvalue().replace(f"{folder}/", "")


# %%
# Compile
# -------
# The artifact holds the schedule, and the measurements of its compilation. ``--keep-slower`` keeps
# the schedule even if sequential execution is as fast, because this tutorial needs a schedule to
# look at.

print(
    command("tvm-interop compile net.onnx -o net.tar --scheduler greedy --streams 2 --keep-slower")
)

# %%
# Explain
# -------
# ``explain`` prints two lines for each set of independent operators: how the artifact runs them,
# the verdict, and the numbers behind the verdict. *In turn* means one operator after the other,
# each divided over all cores. *Side by side* means all operators at once, each on one core. Below
# the sets, it prints the ceiling, which no schedule can pass, and changes that would help. Other
# load on the machine distorts these numbers, so explain on a quiet machine.

print(command("tvm-interop explain net.tar --streams 2"))

# %%
# Two operators
# -------------
# You can ask about any two operators. If one needs the output of the other, ``explain`` shows the
# path between them. ``--json`` prints the numbers as one object.

facts = json.loads(
    command(
        "tvm-interop explain net.tar --streams 2 --json "
        "--pair fire2/expand1x1/conv fire2/expand3x3/conv"
    )
)
print(json.dumps(facts["findings"][0], indent=1))

# %%
# A page
# ------
# ``show`` writes one page to open in a browser. It shows when each operator ran, the graph, and the
# same verdicts.

print(command("tvm-interop show net.tar -o page.html --explain"))

# %%
# Going on
# --------
# ``tvm-interop explain net.onnx --try 1`` makes the first of the proposed changes and measures it
# against the unchanged network. ``compare`` says how two artifacts differ, and what each difference
# costs:

command("tvm-interop compile net.onnx -o in_turn.tar --scheduler sequential --streams 2")
print(command("tvm-interop compare in_turn.tar net.tar --seconds 1"))
