"""Reads traffic files of 1,000 and of 100,000 requests, and prints seconds and memory.

    python scripts/load_traffic.py --rows 1000 100000

Rows have 10 kB of text, so 100,000 of them are 1 GB. Each file is read in a separate process, whose
peak memory is printed, less what it had before. The sample of 64 must have every segment, have the
weight of all rows of the file, and not depend on their order. Exits with 1 if it does not, or if a
file took more than 200 MB.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

SAMPLE, SEGMENTS, WORDS = 64, 7, 150
MOST_MEGABYTES = 200
KINDS = ("jsonl", "jsonl.gz", "json", "csv", "parquet", "hf:parquet")


def rows(count: int, *, backwards: bool) -> Iterator[dict[str, str]]:
    """Requests of random text, which hardly compresses; every tenth comes twice."""
    for at in reversed(range(count)) if backwards else range(count):
        asked = at - 1 if at % 10 == 9 else at
        words = (hashlib.sha256(f"{asked} {word}".encode()).hexdigest() for word in range(WORDS))
        yield {"prompt": " ".join(words), "segment": f"s{asked % SEGMENTS}"}


def write(path: Path, kind: str, count: int, *, backwards: bool) -> None:
    """One file of that kind; a folder with one for a data set."""
    made = rows(count, backwards=backwards)
    if kind.endswith("parquet"):
        import pyarrow
        import pyarrow.parquet

        schema = pyarrow.schema({"prompt": pyarrow.string(), "segment": pyarrow.string()})
        file = path / "train.parquet" if kind.startswith("hf") else path
        file.parent.mkdir(exist_ok=True)
        # One row group for all rows: the worst case for a reader.
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            writer.write_table(pyarrow.Table.from_pylist(list(made), schema), row_group_size=count)
        return
    open_text = partial(gzip.open, compresslevel=1) if kind.endswith("gz") else open
    with open_text(path, "wt") as stream:
        if kind == "csv":
            stream.write("prompt,segment\n")
            stream.writelines(f"{row['prompt']},{row['segment']}\n" for row in made)
        else:
            stream.writelines(json.dumps(row) + "\n" for row in made)


def peak_kilobytes() -> int:
    """Peak memory of this process; `getrusage` would include its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def read(source: str) -> None:
    """In the child: load, and print seconds, megabytes, rows, and what the sample is."""
    from draftbench.traffic import TrafficQuery, load

    if source.startswith("hf:"):
        importlib.import_module("datasets")
    importlib.import_module("pyarrow.parquet")
    before = peak_kilobytes()
    began = time.perf_counter()
    sample = load(TrafficQuery(source, b"key", SAMPLE))
    seconds = time.perf_counter() - began
    peak = peak_kilobytes()
    ids = sorted(request.id for request in sample.requests)
    facts = {
        "seconds": round(seconds, 1),
        "megabytes": round((peak - before) / 1024),
        "rows": sample.rows,
        "requests": len(ids),
        "segments": len({request.segment for request in sample.requests}),
        "weight": round(sum(request.weight for request in sample.requests), 3),
        "sample": hashlib.sha256("".join(ids).encode()).hexdigest()[:8],
    }
    sys.stdout.write(json.dumps(facts))


def measure(kind: str, count: int, *, backwards: bool = False) -> dict[str, object]:
    """Write a file, read it in a child, and delete it."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / f"log.{kind.removeprefix('hf:')}"
        path = Path(place) / "set" if kind.startswith("hf") else path
        write(path, kind, count, backwards=backwards)
        files = path.iterdir() if path.is_dir() else [path]
        size = sum(file.stat().st_size for file in files)
        source = f"hf:{path}" if kind.startswith("hf") else str(path)
        child = [sys.executable, __file__, "--read", source]
        printed = subprocess.run(child, capture_output=True, text=True, check=True).stdout
        return {"size": size, **json.loads(printed)}


def exact(facts: dict[str, object], count: int) -> bool:
    """Whether the sample is what it should be."""
    expected = {"rows": count, "requests": SAMPLE, "segments": SEGMENTS, "weight": float(count)}
    return all(facts[name] == value for name, value in expected.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("kinds", nargs="*", default=KINDS)
    asked = parser.parse_args()
    if asked.read:
        read(asked.read)
        return 0
    print("| kind | rows | file, MB | seconds | memory, MB | sample | exact |")
    print("|---|---:|---:|---:|---:|---|---|")
    bad = 0
    for count in asked.rows:
        samples = {str(measure("jsonl", count, backwards=True)["sample"])}
        for kind in asked.kinds:
            facts = measure(kind, count)
            samples.add(str(facts["sample"]))
            good = exact(facts, count) and len(samples) == 1
            bad += not good or int(str(facts["megabytes"])) > MOST_MEGABYTES
            size = int(str(facts["size"])) / 1e6
            shown = [kind, count, f"{size:.0f}", facts["seconds"], facts["megabytes"]]
            print("| " + " | ".join(map(str, shown)), end="")
            print(f" | {facts['sample']} | {'yes' if good else 'NO'} |", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
