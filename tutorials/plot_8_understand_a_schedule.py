"""
Why did it not run in parallel?
===============================

From an installed package (``pip install .`` in a clone of the repository) to understanding the
schedule of one network, in four commands, each as you would type it. The network is SqueezeNet with
small images; any ONNX file does.
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
    """Type a command in `folder`; what it prints."""
    words = [str(folder / word) if "." in word else word for word in shlex.split(line)[1:]]
    printed = StringIO()
    with redirect_stdout(printed):
        assert run_app(words) == 0
    return printed.getvalue().replace(f"{folder}/", "")


# %%
# Compile
# -------
# The artifact has the schedule, and what was measured when it was compiled. ``--keep-slower``
# ships the schedule even where sequential execution is as fast: here we want to look at one.

print(
    command("tvm-interop compile net.onnx -o net.tar --scheduler greedy --streams 2 --keep-slower")
)

# %%
# Explain
# -------
# Two lines for each set of independent operators: what the artifact does with them, the verdict,
# and the numbers behind it. *In turn* is one operator after the other, each divided over all
# cores; *side by side* is all at once, each on one core. Below are the ceiling, which no schedule
# can pass, and changes that would help. A loaded machine shows in these numbers: explain on a
# quiet one.

print(command("tvm-interop explain net.tar --streams 2"))

# %%
# Two operators
# -------------
# Any two operators can be asked for. If one needs what the other makes, you see how. With
# ``--json`` the numbers come as one object.

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
# When each operator ran, the graph, and the same verdicts, on one page to open in a browser.

print(command("tvm-interop show net.tar -o page.html --explain"))

# %%
# Going on
# --------
# ``tvm-interop explain net.onnx --try 1`` makes the first of the changes and measures it against
# the network as it is. ``compare`` says how two artifacts differ, and what each difference costs:

command("tvm-interop compile net.onnx -o in_turn.tar --scheduler sequential --streams 2")
print(command("tvm-interop compare in_turn.tar net.tar --seconds 1"))
