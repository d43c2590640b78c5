"""Every reader of files that somebody else may have written, with a good file for each.

A maker gets an empty folder, puts into it what the reader needs besides the file, and returns the
reader. A reader raises `Refused` for draftbench's errors, and anything else as it is.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import draftbench
from draftbench.errors import DraftbenchError as Refused

ROOT = Path(__file__).parents[1]
EMBEDDED = Path(draftbench.__file__).parent / "embedded"
RUN = ROOT / "tests" / "run_folder" / "samples" / "together"
ROWS = [
    {"prompt": "def f():", "temperature": 0.5, "segment": "code", "max_tokens": 5, "seed": 1},
    {"messages": [{"role": "user", "content": "hello"}], "top_p": 0.9, "stop": ["\n"]},
    {
        "body": {"messages": [{"role": "user", "content": "a"}], "n": 2, "tools": []},
        "response": "b",
    },
    {"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]},
]


@dataclass(frozen=True)
class Reader:
    """A reader and a good file for it; `plain` is that file as JSON before `pack` made it one."""

    read: Callable[[Path, bytes], object]
    sample: bytes
    plain: bytes = b""
    pack: Callable[[bytes], bytes] = bytes

    @property
    def json(self) -> bool:
        return bool(self.plain)


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# Rows as JSON lines → the same rows in other kinds of traffic files. What a kind cannot hold comes
# back as it was.
def as_csv(plain: bytes) -> bytes:
    cells = [json.loads(line) for line in plain.splitlines()]
    names = list(dict.fromkeys(name for row in cells if isinstance(row, dict) for name in row))
    text = [",".join(names)]
    for row in cells:
        values = (
            [json.dumps(row[n]) if n in row else "" for n in names]
            if isinstance(row, dict)
            else [str(row)]
        )
        text.append(",".join('"' + value.replace('"', '""') + '"' for value in values))
    return "\n".join(text).encode(errors="surrogatepass")


def as_parquet(plain: bytes) -> bytes:
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    try:
        table = pyarrow.Table.from_pylist([json.loads(line) for line in plain.splitlines()])
        pyarrow.parquet.write_table(table, sink)
    except (pyarrow.ArrowException, ValueError, AttributeError, RecursionError, OverflowError,
            TypeError):  # fmt: skip
        return plain  # rows that no table can hold
    return sink.getvalue()


def as_zstd(plain: bytes) -> bytes:
    import pyarrow

    packed: bytes = pyarrow.compress(plain, codec="zstd", asbytes=True)
    return packed


def or_plain(pack: Callable[[bytes], bytes], plain: bytes) -> bytes:
    try:
        return pack(plain)
    except (ValueError, RecursionError):
        return plain


def _traffic(suffix: str, pack: Callable[[bytes], bytes], folder: Path) -> Reader:
    from draftbench.traffic import TrafficQuery, load

    def read(folder: Path, data: bytes) -> object:
        path = folder / f"log{suffix}"
        path.write_bytes(data)
        return load(TrafficQuery(str(path), b"key", 2, skip_bad=True))

    plain = json_lines(ROWS)
    pack = partial(or_plain, pack)
    return Reader(read, pack(plain), plain, pack)


def _suite(folder: Path) -> Reader:
    from unittest import mock

    import yaml

    from draftbench.traffic import suites

    def read(folder: Path, data: bytes) -> object:
        (folder / "code.yaml").write_bytes(data)
        with mock.patch.object(suites, "_PLACES", (folder,)):
            return suites.find_suite("code")

    sample = suites.find_suite("code")[1].with_suffix(".yaml").read_bytes()
    return Reader(read, sample, json.dumps(yaml.safe_load(sample)).encode())


def _sweep_file(folder: Path) -> Reader:
    settings = {"target": "t", "drafts": ["d", "ngram"], "traffic": "x.jsonl", "sample": 3,
                "temperature": 0.5, "k": "1-4", "controls": False, "mode": "greedy"}  # fmt: skip
    plain = json.dumps(settings).encode()
    read = partial(_command, "sweep.yaml", ["sweep", "sweep.yaml", "--print-config"])
    return Reader(read, plain, plain)


def _command(name: str, words: list[str], folder: Path, data: bytes) -> None:
    """Read through the command line, where an unexpected error has exit code 70."""
    from draftbench.cli import main

    (folder / name).write_bytes(data)
    words = [str(folder / word) if word in (name, "run") else word for word in words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as e:
        code = main(words)
    if code == 70:
        raise AssertionError(e.getvalue().strip()[:80])
    if code:
        raise Refused(e.getvalue()[:80], hint=e.getvalue().partition("hint: ")[2])


def _run_part(name: str, folder: Path) -> Reader:
    """One file of a run folder, read by `recommend`."""
    shutil.copytree(RUN, folder / "run", dirs_exist_ok=True)
    sample = (RUN / name).read_bytes()
    read = partial(_command, f"run/{name}", ["recommend", "run", "--format", "json"])
    return Reader(read, sample, sample)


def _manifest(folder: Path) -> Reader:
    """The manifest, read by the commands that answer from a run."""
    recommended = _run_part("run.json", folder)
    others = (["acceptance", "run"], ["recommend", "run"])
    readers = [recommended.read, *(partial(_command, "run/run.json", words) for words in others)]

    def read(folder: Path, data: bytes) -> object:
        return [read(folder, data) for read in readers]

    return Reader(read, recommended.sample, recommended.plain)


def _private(folder: Path) -> Reader:
    from draftbench.run_folder.folder import PrivateText, RunFolder

    shutil.copytree(RUN, folder / "run")
    (folder / "run" / "private").mkdir()

    def read(folder: Path, data: bytes) -> object:
        (folder / "run" / "private" / "texts.jsonl").write_bytes(data)
        return [*RunFolder(folder / "run").records(PrivateText)]

    return Reader(read, json_lines([TEXT]), json_lines([TEXT]))


def _engine_costs(folder: Path) -> Reader:
    """A cost file of an engine, and a recommendation that uses it."""
    shutil.copytree(RUN, folder / "run")
    drafts = {"draft": {"step_s": 0.002}}
    concurrency = {"target_step_s": 0.02, "verify": {"2": 0.021, "3": 0.022}, "drafts": drafts}
    plain = json.dumps({"engine": "vllm", "concurrency": {"1": concurrency}}).encode()
    pack = partial(re.sub, rb'"(\d+)":', rb"\1:")  # YAML's keys can be numbers
    words = ["recommend", "run", "--costs", "costs.yaml"]
    return Reader(partial(_command, "costs.yaml", words), pack(plain), plain, pack)


def _baseline(folder: Path) -> Reader:
    """A baseline, against which a run is judged."""
    shutil.copytree(RUN, folder / "run")
    save = ["gate", "--save", "good.json", "run", "--candidate", "draft", "--k", "2"]
    _command("good.json", save, folder, b"")
    sample = (folder / "good.json").read_bytes()
    words = ["gate", "--baseline", "base.json", "run", "--exit-zero"]
    return Reader(partial(_command, "base.json", words), sample, sample)


def _model_file(name: str, folder: Path) -> Reader:
    """A file of a draft that `check` reads beside the good target."""
    draft = folder / "draft"
    shutil.copytree(EMBEDDED / "draft", draft)

    def read(folder: Path, data: bytes) -> object:
        from draftbench.drafts.check import check_models
        from draftbench.models.source import ModelSource, end_tokens

        (draft / name).write_bytes(data)
        source = ModelSource(str(draft))
        end_tokens(source)
        return check_models(ModelSource(str(EMBEDDED / "target")), [source], 1 << 34)

    if not (draft / name).exists():
        index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-1.safetensors"}}
        return Reader(read, *[json.dumps(index).encode()] * 2)
    sample = (draft / name).read_bytes()
    return Reader(read, sample, sample)


def _template(folder: Path) -> Reader:
    """A target's chat template, which renders one chat."""
    from draftbench.measure.prompts import TargetText
    from draftbench.models.source import ModelSource
    from draftbench.records import Request

    target = folder / "target"
    shutil.copytree(EMBEDDED / "target", target)
    request = Request(id="r", source="log.jsonl:1", messages=({"role": "user", "content": "a"},))

    def read(folder: Path, data: bytes) -> object:
        (target / "chat_template.jinja").write_bytes(data)
        return TargetText(ModelSource(str(target))).prompt(request, 8, 64)

    return Reader(read, b"{% for m in messages %}{{ m.role ~ ': ' ~ m.content }}{% endfor %}")


def _weights(folder: Path) -> Reader:
    draft = folder / "draft"
    shutil.copytree(EMBEDDED / "draft", draft)
    sample = (draft / "model.safetensors").read_bytes()
    size = 8 + int.from_bytes(sample[:8], "little")
    body = sample[size:]

    def read(folder: Path, data: bytes) -> object:
        import torch

        from draftbench.models.source import ModelSource

        (draft / "model.safetensors").write_bytes(data + body)
        return ModelSource(str(draft)).load(torch.float32, "cpu")

    def pack(plain: bytes) -> bytes:
        return len(plain).to_bytes(8, "little") + plain

    return Reader(read, sample[:size], sample[8:size], pack)


def _gguf(folder: Path) -> Reader:
    import gguf

    words = ["<unk>", "<s>", "</s>", "a", "b", "ab", *(f"w{i}" for i in range(10))]
    writer = gguf.GGUFWriter(folder / "good.gguf", "llama")
    for add, value in (
        (writer.add_context_length, 64), (writer.add_embedding_length, 16),
        (writer.add_block_count, 1), (writer.add_feed_forward_length, 16),
        (writer.add_head_count, 2), (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-6), (writer.add_vocab_size, 16),
        (writer.add_tokenizer_model, "gpt2"), (writer.add_tokenizer_pre, "default"),
        (writer.add_token_list, words), (writer.add_token_types, [1] * 16),
        (writer.add_token_merges, ["a b"]), (writer.add_eos_token_id, 2),
    ):  # fmt: skip
        add(value)
    import numpy

    writer.add_tensor("token_embd.weight", numpy.zeros((16, 16), dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    def read(folder: Path, data: bytes) -> object:
        from draftbench.models.source import ModelSource

        (folder / "model.gguf").write_bytes(data)
        source = ModelSource(str(folder / "model.gguf"))
        return source.config, source.tokenizer

    return Reader(read, (folder / "good.gguf").read_bytes())


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".json": bytes,
    ".csv": as_csv,
    ".parquet": as_parquet,
    ".jsonl.gz": partial(gzip.compress, mtime=0),
    ".jsonl.zst": as_zstd,
}
KINDS = ("trajectory", "replay", "lookupreplay", "decode", "costpoint", "modelfacts",
         "machinestate")  # fmt: skip
TEXT = {"request": "r", "sample": 0, "prompt": [1, 2], "tokens": [3, 4], "log_p": [-0.5, -1.5]}
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
               "model.safetensors.index.json")  # fmt: skip
READERS: dict[str, Callable[[Path], Reader]] = {
    **{f"traffic {suffix}": partial(_traffic, suffix, pack) for suffix, pack in PACKED.items()},
    "suite YAML": _suite,
    "sweep.yaml": _sweep_file,
    "--costs YAML": _engine_costs,
    "run: run.json": _manifest,
    **{f"run: {kind}": partial(_run_part, f"observations/{kind}.jsonl") for kind in KINDS},
    "run: private texts": _private,
    "baseline": _baseline,
    **{f"model: {name}": partial(_model_file, name) for name in MODEL_FILES},
    "model: chat_template.jinja": _template,
    "model: safetensors header": _weights,
    "model: GGUF header": _gguf,
}
