"""Gives many damaged artifacts to the native reader, which may be built with a sanitizer.

    python -m tests.fuzz.native_reader build/sanitize-address/tests/cpp/read_check --inputs 100000

Each file is a valid artifact with some changes: in its JSON documents, its weights, its list of
members, or the tar file itself. In nine files of ten, the digests are then made right again.
Machine code stays as it is. The reader must accept the file or refuse it with an error of ours. Any
other answer, or the end of the reader's process, is a defect. The file that causes a defect is
kept.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz import inputs, remade
from tests.fuzz.compiled import FOLDER

ARTIFACT_ERRORS = ("ok", "2 ", "3 ")
"""How an answer must begin: the file is right, is damaged or unsafe, or cannot run here."""


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes with one to eight changes: other bytes, bytes that are missing, bytes twice."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        if not changed:
            break
        at, length = rng.randrange(len(changed)), rng.choice((1, 2, 8, 100, 512))
        how = rng.randrange(4)
        if how == 0:
            changed[at] = rng.randrange(256)
        elif how == 1:
            del changed[at : at + length]
        elif how == 2:
            changed[at:at] = changed[at : at + length]
        else:
            changed[at : at + length] = rng.randbytes(length)
    return bytes(changed)


def one(sources: list[dict[str, bytes]], rng: random.Random) -> bytes:
    """One artifact to read."""
    members = dict(rng.choice(sources))
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice([name for name in members if not name.endswith("kernels.so")])
        document = remade.document_of(members[name]) if name.endswith(".json") else None
        if document is not None and rng.random() < 0.8:
            text = inputs.json_text(inputs.with_edits(document, rng.choice))
            members[name] = text.encode("utf-8", "surrogatepass")
        elif rng.random() < 0.9:
            members[name] = damaged(members[name], rng)
        else:
            members.pop(name, None)
    if "manifest.json" in members and rng.random() < 0.9:
        remade.sign(members)
    data = inputs.tar_of(members, None)
    return damaged(data, rng) if rng.random() < 0.1 else data


def main() -> int:
    """Run until all inputs were read; return 1 if the reader had a defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", type=Path)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.setdefault(FOLDER, str(Path("build/fuzz/artifacts").absolute()))
    sources = list(remade.sources().values())
    answers: Counter[str] = Counter()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [given.reader], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            errors="replace",
        ) as reader,
    ):  # fmt: skip
        assert reader.stdin is not None
        assert reader.stdout is not None
        path = Path(folder) / "model.tar"
        for number in range(given.inputs):
            path.write_bytes(one(sources, random.Random(f"{given.seed} {number}")))
            reader.stdin.write(f"artifact {path}\n")
            reader.stdin.flush()
            answer = reader.stdout.readline()
            if not answer.startswith(ARTIFACT_ERRORS):
                kept = Path(f"defect-{given.seed}-{number}.tar")
                kept.write_bytes(path.read_bytes())
                print(f"input {number}: {answer or 'the reader ended'}; `{kept}` is the file")
                return 1
            answers["accepted" if answer.startswith("ok") else "refused"] += 1
            if number % 10_000 == 9_999:
                print(f"{number + 1} inputs in {time.monotonic() - began:.0f} s", flush=True)
        reader.stdin.close()
    print(f"{given.inputs} inputs, seed {given.seed}: {dict(answers)}; no defect")
    return int(reader.wait() != 0)


if __name__ == "__main__":
    os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=1:allocator_may_return_null=0")
    sys.exit(main())
