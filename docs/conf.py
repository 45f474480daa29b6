"""Configures Sphinx, which builds the documentation.

The site shows the docstrings, the tutorials with their output, and the help of the command line.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# The help text is as wide as a page, whatever the width of the terminal that builds the site.
os.environ.update(COLUMNS="82", NO_COLOR="1", TERM="dumb")
sys.path.insert(0, str(HERE.parent))

from benchmarks.results_page import with_ages  # noqa: E402
from tvm_interop import __version__  # noqa: E402
from tvm_interop.cli.app import app, run_app  # noqa: E402

project = "tvm_interop"
author = "the tvm_interop contributors"
project_copyright = f"2026, {author}"
release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = f"tvm_interop {release}"
exclude_patterns = ["tutorials/GALLERY_HEADER.rst"]
default_role = "literal"
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": ["../tutorials"],
    "gallery_dirs": ["tutorials"],
    "filename_pattern": "plot_",
    "image_scrapers": (),
    "reset_modules": (),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "only_warn_on_example_error": False,
    "abort_on_example_error": True,
}

_SECTIONS = ("Parameters", "Attributes", "Raises", "Returns")
_ENTRY = re.compile(r"^(?P<names>[A-Za-z_][\w, ]*): (?P<text>.*)$")


def spell_out_sections(
    _sphinx: Any, _what: str, _name: str, _obj: Any, _opt: Any, lines: list[str]
) -> None:
    """Rewrite entries `name: text` of docstrings into the form that napoleon reads.

    Sphinx calls this function for each docstring. It changes `lines` in place.
    """
    if lines and lines[0].startswith("Alias for field number"):
        lines[:] = []  # A field of a named tuple; the docstring of its class describes it.
    if not lines:
        return
    spelled: list[str] = []
    in_section = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        begins_section = line in _SECTIONS and following != "" and set(following) == {"-"}
        if in_section and line and not line.startswith(" ") and not spelled[-1]:
            if not begins_section:
                spelled.append("")  # Two blank lines end a section for napoleon.
            in_section = False
        in_section = in_section or begins_section
        entry = _ENTRY.match(line) if in_section else None
        spelled += [entry["names"], f"    {entry['text']}"] if entry else [line]
    lines[:] = spelled


def write_command_line(_sphinx: Any) -> None:
    """Write `cli.rst` with the help of every command."""
    verbs = [verb.name for verb in (*app.registered_commands, *app.registered_groups)]
    parts = [_title("The command line", "="), _shown("tvm-interop --help", ["--help"])]
    for verb in verbs:
        parts += [_title(verb, "-"), _shown(f"tvm-interop {verb} --help", [verb, "--help"])]
    (HERE / "cli.rst").write_text("\n".join(parts))


def _title(text: str, rule: str) -> str:
    return f"{text}\n{rule * len(text)}\n"


def _shown(line: str, arguments: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_app(arguments)
    body = "\n".join(f"   {row}".rstrip() for row in printed.getvalue().strip("\n").splitlines())
    return f".. code-block:: none\n\n   $ {line}\n{body}\n"


def tell_ages(_sphinx: Any, page: str, source: list[str]) -> None:
    """Add a column to `results.md`: how many commits ago each result file was recorded."""
    if page == "results":
        source[0] = with_ages(source[0])


def setup(sphinx: Any) -> None:
    """Connect the functions above to Sphinx's events. Sphinx calls this function."""
    sphinx.connect("builder-inited", write_command_line, priority=100)
    sphinx.connect("source-read", tell_ages)
    sphinx.connect("autodoc-process-docstring", spell_out_sections, priority=100)
