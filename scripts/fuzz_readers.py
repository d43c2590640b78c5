"""Gives every reader of files damaged bytes, and counts what it does with them.

    python scripts/fuzz_readers.py --examples 2000

A good file is cut, spliced, changed value by value, or replaced by noise (hypothesis makes the
cases). A reader may accept it, or refuse it with one of draftbench's errors and a hint. Anything
else is a fault: another exception, an exit code of 70, or more than ten seconds of computing.
Prints a row for each reader and every kind of fault; exits with 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).parent))

from fuzzed_readers import READERS, Reader, Refused
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SLOW = 10.0
NASTY = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\\u"),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"-", b"1e999", b"NaN", b"-Infinity"),
    *(b"\x1b[2J\x1b]0;x\x07", b"../../../etc/passwd", b"/dev/zero", b"\xef\xbb\xbf", b"\r"),
    *(b"&a [*a, *a]", b"<<: *a", b"!!python/object:os.system", b"- " * 5000, b"0x" + b"f" * 9000),
    *(b"\xff" * 8, b"\xff\xff\xff\x7f", (1 << 60).to_bytes(8, "little"), b"x" * 70_000),
]
SPOILT = [
    *("null", "true", "-1", "0", "1", "0.5", "2.5", "1e308", "1e-300", "-1e-320", "9" * 400),
    *("NaN", "Infinity"),
    *("9223372036854775807", "18446744073709551616", '""', '"x"', '"\\u0000\\u001b[31m"', "{}"),
    *("[]", "[[]]", "[" * 2000 + "]" * 2000, '{"a":{"a":1}}', '"../../../etc/passwd"', "[1,2,3]"),
    *('"/dev/zero"', '"\\ud800"', json.dumps("é" * 5000), "[0.5]", "1000000000"),
]
edits = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 60),
        st.integers(0, len(NASTY) - 1).map(NASTY.__getitem__) | st.binary(max_size=8),
    ),
    min_size=1,
    max_size=3,
)
spoils = st.lists(
    st.tuples(st.integers(0, 1 << 30), st.integers(0, len(SPOILT) - 1).map(SPOILT.__getitem__)),
    min_size=1,
    max_size=2,
)


@dataclass
class Tally:
    """What one reader did."""

    examples: int = 0
    refused: int = 0
    slowest: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)


def spliced(sample: bytes, changes: Sequence[tuple[float, int, bytes]]) -> bytes:
    """Cut so many bytes out at these places and put others there."""
    for place, cut, new in changes:
        at = int(place * len(sample))
        sample = sample[:at] + new + sample[at + cut :]
    return sample


def spoilt(sample: bytes, changes: Sequence[tuple[int, str]]) -> bytes:
    """JSON with some values replaced; the file has a document on each line, or one in all."""
    try:
        documents = [json.loads(sample)]
    except ValueError:
        documents = [json.loads(line) for line in sample.splitlines()]
    marks = []
    for number, (walk, value) in enumerate(changes):
        mark = f"<<{number}>>"
        at = walk % len(documents)
        documents[at] = _replaced(documents[at], walk // len(documents), mark)
        marks.append((json.dumps(mark), value))
    text = "\n".join(json.dumps(document) for document in documents) + "\n"
    for mark, value in marks:
        text = text.replace(mark, value)
    return text.encode(errors="surrogatepass")


def _replaced(document: Any, walk: int, mark: str) -> Any:
    """The document with one value replaced or dropped; the digits of `walk` choose it."""
    if not isinstance(document, dict | list) or not document or walk % 13 == 12:
        return mark
    inner = list(document) if isinstance(document, dict) else range(len(document))
    key: Any = inner[walk % len(inner)]
    copy: Any = document.copy()
    if walk % 17 == 16:
        del copy[key]
    else:
        copy[key] = _replaced(document[key], walk // len(inner), mark)
    return copy


def fuzz(reader: Reader, examples: int, folder: Path) -> Tally:
    """Run one reader over so many made-up files, after the good one."""
    reader.read(folder, reader.sample)
    tally = Tally()
    cases = edits.map(lambda changes: spliced(reader.sample, changes))
    packed = st.just(reader.sample)
    if reader.json:
        packed = spoils.map(lambda changes: reader.pack(spoilt(reader.plain, changes)))

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(cases, packed, packed, st.binary(max_size=200)))
    def read(data: bytes) -> None:
        tally.examples += 1
        began = time.process_time()
        try:
            reader.read(folder, data)
        except Refused as refusal:
            tally.refused += 1
            if not refusal.hint:
                tally.faults[f"no hint: {refusal.message[:60]}"] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            tally.faults[_place(error)] += 1
        took = time.process_time() - began
        tally.slowest = max(tally.slowest, took)
        if took > SLOW:
            tally.faults[f"took {took:.0f} s"] += 1

    read()
    return tally


def _place(error: BaseException) -> str:
    """The exception's type and the place in draftbench where it was raised."""
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "draftbench/" in f.filename]
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {where}: {str(error)[:80]!r}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("readers", nargs="*", help="only readers whose name holds one of these")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print("| reader | examples | refused | faults | slowest, s | memory after, MB |")
    print("|---|---:|---:|---:|---:|---:|")
    faults: dict[str, Counter[str]] = {}
    for name, make in READERS.items():
        if asked.readers and not any(word in name for word in asked.readers):
            continue
        with tempfile.TemporaryDirectory() as place:
            tally = fuzz(make(Path(place)), asked.examples, Path(place))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        figures = (tally.examples, tally.refused, tally.faults.total(), f"{tally.slowest:.2f}")
        print(f"| {name} | " + " | ".join(map(str, figures)) + f" | {memory} |", flush=True)
        faults[name] = tally.faults
    for name, kinds in faults.items():
        for what, count in kinds.most_common():
            print(f"{name}: {count} × {what}")
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
