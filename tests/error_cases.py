"""Command lines that end in an error within a few seconds.

A case is a few words and a function that prepares an empty working directory and returns the
command line.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import draftbench

EMBEDDED = Path(draftbench.__file__).parent / "embedded"
OTHER_WORDS = {"type": "WordLevel", "vocab": {f"word {i}": i for i in range(1, 2048)},
               "unk_token": "word 1"}  # fmt: skip
RUN = Path(__file__).parent / "run_folder" / "samples" / "alone"
FINISHED = Path(__file__).parents[1] / "results" / "reference" / "tinyllama-gsm8k"
Case = tuple[str, Callable[[], list[str]]]
LOG = '{"prompt": "def f():"}\n'


def sweep(*more: str, target: str = "target", draft: str = "ngram", log: str = LOG) -> list[str]:
    """A sweep of the embedded target that would take a second."""
    if not Path("target").exists():
        Path("target").symlink_to(EMBEDDED / "target")
    if not Path("log.jsonl").exists():
        Path("log.jsonl").write_text(log)
    fixed = ["sweep", "--target", target, "--traffic", "log.jsonl", "--drafts", draft]
    effort = ["--max-new-tokens", "4", "--measure", "none", "--no-controls", "--threads", "1"]
    return [*fixed, "--out", "run", "--k", "1-2", *effort, *more]


def served(*more: str, engine: str = "vllm", **changes: str) -> list[str]:
    """A sweep on an engine that would be started."""
    return [*sweep(**changes), "--engine", engine, *more]


def running(*more: str, server: str = "http://127.0.0.1:9") -> list[str]:
    """A sweep on a server that is said to be running."""
    return [*sweep(), "--server", server, *more]


def without_drafts(words: list[str]) -> list[str]:
    at = words.index("--drafts")
    return words[:at] + words[at + 2 :]


def unsendable_token() -> list[str]:
    os.environ["DRAFTBENCH_API_KEY"] = "two\nlines"
    return running()


def beside_plain(engine: str, *more: str, k: int, model: str = "org/target") -> list[str]:
    """A server that drafts k tokens a round, beside one of the same engine that does not."""
    from engines.scripted_server import ScriptedServer

    kind = {"engine": engine, "counts": engine != "openai"}
    server = ScriptedServer(k=k, accepts=(1,), model=model, **kind).__enter__()
    plain = ScriptedServer(**kind).__enter__()
    words_of = ("--tokenizer", "target") if engine == "openai" else ()
    more = ("--baseline-server", plain.url, *words_of, *more)
    words = running("--k", "1-8", *more, server=server.url)
    return without_drafts([*words[:1], *words[3:]])


def answered(fault: str, *more: str) -> list[str]:
    """A sweep on a scripted server, which answers until this process ends."""
    from engines.scripted_server import ScriptedServer

    faults = dict.fromkeys(range(99), fault) if fault else {}
    server = ScriptedServer(k=4, faults=faults).__enter__()
    words = running(*more, server=server.url)
    del words[1:3]  # the target: the server names it
    return words


def resumed_with_another_target() -> list[str]:
    """A resumed sweep on an engine whose target's files changed since its servers were started;
    that start is a record written by hand.
    """
    from draftbench.cli import main
    from draftbench.records import EngineFacts
    from draftbench.run_folder.folder import RunFolder

    words = served("--engine-command", "false")
    main(words)
    facts = EngineFacts(
        server="1",
        process="1",
        engine="vllm",
        version=None,
        model=None,
        candidate=None,
        k=0,
        started=True,
        command=None,
        settings={"threads": "1"},
        context_length=None,
        prefix_cache=False,
        ready_seconds=1.0,
        files={"target": "another"},
    )
    with RunFolder(Path("run")).writer() as writer:
        writer.append([facts])
    return words


def traffic(content: bytes, name: str, *more: str) -> list[str]:
    """A sweep with this traffic."""
    Path(name).write_bytes(content)
    return sweep("--traffic", name, *more)


def draft(change: Callable[[Path], object]) -> list[str]:
    """A sweep with a changed draft."""
    shutil.copytree(EMBEDDED / "draft", "draft")
    change(Path("draft"))
    return sweep(draft="draft")


def target(change: Callable[[Path], object]) -> list[str]:
    """A sweep with a changed target."""
    shutil.copytree(EMBEDDED / "target", "target")
    change(Path("target"))
    return sweep()


def changed(file: str, **values: Any) -> Callable[[Path], object]:
    """Some values of a JSON file replaced."""

    def change(folder: Path) -> None:
        known = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps({**known, **values}))

    return change


def written(file: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_bytes(content)


def encoder() -> str:
    """A draft that is BERT by its configuration."""
    shutil.copytree(EMBEDDED / "draft", "draft")
    changed("config.json", model_type="bert", architectures=["BertModel"])(Path("draft"))
    return "draft"


def kept(change: Callable[[Path], object], *words: str) -> list[str]:
    """A command on a finished run after a change to it."""
    shutil.copytree(RUN, "run")
    change(Path("run"))
    return list(words) or ["recommend", "run"]


def replaced(file: str, old: str, new: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return change


def nothing(_: Path) -> None: ...


def begun(change: Callable[[Path], object], *more: str) -> list[str]:
    """A finished sweep again, after a change to its folder."""
    from draftbench.cli import main

    words = sweep(log=LOG.replace("f", "g") + LOG)
    assert main(words) == 0
    change(Path("run"))
    return [*words, *more]


def locked(folder: Path) -> None:
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def config(text: str, *more: str) -> list[str]:
    Path("sweep.yaml").write_text(text)
    return ["sweep", "sweep.yaml", *more]


def trainable(draft: str | Path, *more: str) -> list[str]:
    """The forecast of a training on a run of enough requests."""
    from draftbench.cli import main

    assert main(sweep(log="".join(f'{{"prompt": "def f{n}(a):"}}\n' for n in range(60)))) == 0
    return ["train", "run", "--draft", str(draft), "--forecast", *more]


def without_peft() -> list[str]:
    """A training of adapters that finds no peft."""
    from draftbench.training import plan

    find = plan.find_spec

    def none_once(_: str) -> None:
        plan.find_spec = find

    plan.find_spec = none_once  # type: ignore[assignment]
    return trainable(EMBEDDED / "draft", "--lora", "4")


def with_traffic_of_another_target() -> list[str]:
    from draftbench.cli import main

    words = trainable(EMBEDDED / "draft", "--other", "other")
    assert main([*sweep(target=str(EMBEDDED / "draft")), "--out", "other"]) == 0
    return words


def gated(change: Callable[[Path], object], *more: str) -> list[str]:
    """A run judged against its own baseline, after a change to the file."""
    from draftbench.cli import main

    shutil.copytree(RUN, "run")
    assert main(["gate", "--save", "base.json", "run", "--candidate", "draft", "--k", "2"]) == 0
    change(Path())
    return ["gate", "--baseline", "base.json", "run", *more]


def pipe() -> list[str]:
    os.mkfifo("pipe.jsonl")
    return sweep("--traffic", "pipe.jsonl")


def interrupted() -> list[str]:
    """Control-C a moment after the sweep began to measure."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it
    return stopped_by(signal.SIGINT)


def terminated() -> list[str]:
    """SIGTERM a moment after the sweep began to measure."""
    from draftbench.cli.signals import catch_sigterm

    catch_sigterm()
    return stopped_by(signal.SIGTERM)


def stopped_by(number: signal.Signals) -> list[str]:
    """The signal comes when the run folder is there."""
    from draftbench.run_folder.folder import RunFolder

    create = RunFolder.create

    def and_then(path: Path, manifest: Any) -> Any:
        RunFolder.create = create  # type: ignore[method-assign]
        folder = create(path, manifest)
        os.kill(os.getpid(), number)
        return folder

    RunFolder.create = and_then  # type: ignore[method-assign]
    return sweep()


def without_key() -> list[str]:
    del os.environ["DRAFTBENCH_KEY"]
    os.environ["XDG_CONFIG_HOME"] = "config"
    Path("config/draftbench").mkdir(parents=True)
    Path("config/draftbench/key").write_text("no key")
    return sweep()


BOMB = b'{"num_hidden_layers": 1000000000, "model_type": "llama"}'
# Of a GGUF file: the number `block_count` 2, and a tensor of one float.
ONE_OF_TWO_LAYERS = struct.pack(
    "<QQ Q17sII Q7sIIQ 64x", 1, 1, 17, b"llama.block_count", 4, 2, 7, b"blk.0.w", 0, 0, 0
)
WORDS: list[Case] = [
    ("An unknown command", lambda: ["swep"]),
    ("An unknown flag", lambda: ["sweep", "--tagret", "x"]),
    ("A flag that is missing", lambda: ["sweep", "--target", "x"]),
    ("`--k 4-2`", lambda: sweep("--k", "4-2")),
    ("`--quant int44`", lambda: sweep("--quant", "int44")),
    ("`--mode gredy`", lambda: sweep("--mode", "gredy")),
    ("`--stop confident`", lambda: sweep("--stop", "confident")),
    ("`--device tpu`", lambda: sweep("--device", "tpu")),
    ("`--dtype float8`", lambda: sweep("--dtype", "float8")),
    ("`--temperature nan`", lambda: sweep("--temperature", "nan")),
    ("`--threads 0`", lambda: sweep("--threads", "0")),
    (
        "`--until settled` of acceptance alone",
        lambda: sweep("--until", "settled", "--measure", "replay"),
    ),
    ("`--workers many`", lambda: sweep("--workers", "many")),
    ("`-o` in a folder that does not exist", lambda: sweep("-o", "nowhere/x.txt")),
    ("A request key that is not one", without_key),
    ("Control-C", interrupted),
    ("SIGTERM", terminated),
]
FILES: list[Case] = [
    ("A sweep file that does not exist", lambda: ["sweep", "sweep.yaml"]),
    ("A sweep file that is not YAML", lambda: config("target: [\n")),
    ("A sweep file with an unknown key", lambda: config("target: t\ntempratur: 1\n")),
    ("A sweep file with aliases", lambda: config("target: &a t\ntraffic: *a\n")),
    ("A sweep file with a tag that runs code", lambda: config("k: !!python/name:os.system\n")),
    ("A sweep file nested 2,000 deep", lambda: config("k: " + "[" * 2000)),
    ("A sweep file of 100 kB", lambda: config("# " + "x" * 100_000)),
    ("A sweep file with a value of another kind", lambda: config("k: {from: 1}\n")),
]
TRAFFIC: list[Case] = [
    ("Traffic that does not exist", lambda: sweep("--traffic", "prod.jsonl")),
    ("Traffic without its extension", lambda: sweep("--traffic", "log")),
    ("Traffic that is a folder", lambda: sweep("--traffic", ".")),
    ("Traffic that is a pipe", pipe),
    ("Traffic of an unknown kind", lambda: traffic(b"x", "log.xlsx")),
    ("Traffic without a row", lambda: traffic(b"", "empty.jsonl")),
    ("A row that is not JSON", lambda: traffic(LOG.encode() + b'{"prompt": \n', "bad.jsonl")),
    ("A row that is not UTF-8", lambda: traffic(b'{"prompt": "\xff"}\n', "bad.jsonl")),
    ("A row nested 100,000 deep", lambda: traffic(b'{"prompt":' + b"[" * 100_000, "bad.jsonl")),
    ("A row over 16 MiB", lambda: traffic(b'{"prompt": "' + b"x" * (17 << 20), "bad.jsonl")),
    ("A row in no known form", lambda: traffic(b'{"question": "Who did it?"}\n', "bad.jsonl")),
    (
        "A trace of lengths",
        lambda: traffic(b'{"input_length": 5, "output_length": 2}\n', "trace.jsonl"),
    ),
    ("A temperature that is text", lambda: traffic(b'{"prompt":"a","temperature":"b"}', "b.jsonl")),
    ("Rows that ask for a grammar only", lambda: traffic(
        b'{"prompt": "a", "guided_regex": "x"}\n', "guided.jsonl")),
    ("A CSV file with an open quote", lambda: traffic(b'prompt\n"a\n', "bad.csv")),
    ("A gzip file that is cut", lambda: traffic(gzip.compress(b"x" * 999)[:-9], "cut.jsonl.gz")),
    ("A file that is not parquet", lambda: traffic(b"PAR1", "bad.parquet")),
    ("A suite that is misspelt", lambda: sweep("--traffic", "suite:completon")),
    ("A folder in place of a data set", lambda: sweep("--traffic", "hf:./none")),
    ("`--segment-by` of no column", lambda: sweep("--segment-by", "team")),
    ("`--prompt-field` of no column", lambda: sweep("--prompt-field", "text")),
    ("`--responses log` without answers", lambda: sweep("--responses", "log")),
    ("A chat for a target without a template", lambda: sweep("--traffic", "suite:chat")),
]  # fmt: skip
MODELS: list[Case] = [
    ("A model that does not exist", lambda: sweep(target="./nowhere")),
    ("A hub id without a network", lambda: sweep(target="org/never-downloaded")),
    ("An empty name among drafts", lambda: sweep(draft="ngram,")),
    ("A draft in the place of the sweep file", lambda: [*sweep(), "."]),
    ("No draft", lambda: sweep("--no-controls")[:5]),
    ("A draft of another language", lambda: draft(changed("tokenizer.json", model=OTHER_WORDS))),
    ("A configuration that is cut", lambda: draft(written("config.json", b'{"model_type": "ll'))),
    ("A configuration of a billion layers", lambda: draft(written("config.json", BOMB))),
    ("An unknown architecture", lambda: draft(changed("config.json", model_type="mindreader"))),
    ("A classifier as the target", lambda: target(
        changed("config.json", architectures=["LlamaForSequenceClassification"]))),
    ("A tokenizer that is not UTF-8", lambda: draft(written("tokenizer.json", b'{"\xff": 1}'))),
    ("An index that leads out of the folder", lambda: draft(
        changed("model.safetensors.index.json", weight_map={"a": "../../etc/passwd"}))),
    ("An adapter in place of a model", lambda: draft(written("adapter_config.json", b"{}"))),
    ("A target whose end tokens are not token ids", lambda: target(
        changed("generation_config.json", eos_token_id=0.5))),
    ("A target whose weights are cut", lambda: target(
        lambda model: os.truncate(model / "model.safetensors", 9_000_000))),
    ("A target whose weights are missing", lambda: target(
        lambda model: (model / "model.safetensors").unlink())),
    ("A configuration that asks for fewer layers than the weights hold", lambda: target(
        changed("config.json", num_hidden_layers=1))),
    ("A GGUF file whose header never ends", lambda: sweep(draft=_gguf(b"\xff" * 64))),
    ("An EAGLE-3 head with a word for a flag", lambda: sweep(
        draft=_head('"norm_before_residual": false', '"norm_before_residual": "false"'))),
    ("An EAGLE-3 head that drafts more tokens than it has rows for", lambda: sweep(
        draft=_head('"draft_vocab_size": 1024', '"draft_vocab_size": 1025'))),
    ("A GGUF file of fewer layers than it says", lambda: sweep(draft=_gguf(ONE_OF_TWO_LAYERS))),
    ("A file that is not GGUF", lambda: sweep(draft=_gguf(b"", magic=b"FUGG"))),
    ("A name that no path can have", lambda: ["suggest", "--target", "a" * 300]),
    ("A folder without a model, to `suggest` for", lambda: ["suggest", "--target", "."]),
]  # fmt: skip
RUNS: list[Case] = [
    ("A run folder that does not exist", lambda: ["recommend", "results/runs/prod"]),
    ("A folder that is not a run", lambda: ["recommend", "."]),
    ("A run of a newer draftbench", lambda: kept(
        replaced("run.json", '"schema_version": 6', '"schema_version": 99'))),
    ("A run of an older draftbench", lambda: kept(
        replaced("run.json", '"schema_version": 6', '"schema_version": 5'))),
    ("A head that is cut", lambda: kept(lambda run: os.truncate(run / "run.json", 700))),
    ("A line that is not a record", lambda: kept(
        replaced("observations/replay.jsonl", "\n", "\n{}\n"))),
    ("An unknown field", lambda: kept(
        replaced("observations/trajectory.jsonl", '"finish"', '"finnish"'))),
    ("A record of impossible numbers", lambda: kept(
        replaced("observations/decode.jsonl", '"proposed":[0,', '"proposed":['))),
    ("Seconds that no clock shows", lambda: kept(
        replaced("observations/costpoint.jsonl", '"seconds":[', '"seconds":[1e-300,'))),
    ("A greedy run that says it was sampled", lambda: kept(
        replaced("run.json", '"mode": "greedy"', '"mode": "sampled"'))),
    ("A finished run that was cut", lambda: kept(_cut)),
    ("A file of the run that is missing", lambda: kept(
        lambda run: (run / "observations/trajectory.jsonl").unlink())),
    ("A part that is a link", lambda: kept(_linked)),
    ("A run with nothing measured", lambda: kept(_emptied)),
    ("`--out` with a run of other flags", lambda: begun(nothing, "--max-new-tokens", "5")),
    ("`--out` with something else", lambda: (Path("run").mkdir(),
        Path("run/letter").touch(), sweep())[2]),
    ("`--out` below a file", lambda: sweep("--out", "log.jsonl/run")),
    ("`--out` where no folder can be made", lambda: sweep("--out", "/proc/run")),
    ("A run that another process writes", lambda: begun(locked)),
    ("A redacted run continued", lambda: begun(lambda run: shutil.rmtree(run / "private"))),
    ("A run continued elsewhere", lambda: begun(changed("run.json", draftbench="0.0.1"))),
    ("`runs list` of no folder", lambda: ["runs", "list", "nowhere"]),
    ("`report --html` where nothing can be", lambda: kept(
        nothing, "report", "run", "--html", "nowhere/x.html")),
]  # fmt: skip
ANSWERS: list[Case] = [
    ("A baseline that does not exist", lambda: kept(
        nothing, "gate", "--baseline", "b.json", "run")),
    ("A file that is not a baseline", lambda: gated(written("base.json", b"[]"))),
    ("A baseline of a newer draftbench", lambda: gated(
        changed("base.json", schema_version=99))),
    ("A baseline with other settings", lambda: gated(
        replaced("base.json", '"samples": 1', '"samples": 2'))),
    ("A limit that is misspelt", lambda: gated(nothing, "--max-drop", "alfa:0.02")),
    ("A limit without its %", lambda: gated(nothing, "--max-drop", "mean_accepted_length:2")),
    ("Flags that do not go with `--save`", lambda: kept(
        nothing, "gate", "--save", "b.json", "run", "--max-drop", "alpha:0.02")),
    ("A candidate that was not measured", lambda: kept(
        nothing, "gate", "--save", "b.json", "run", "--candidate", "other")),
    ("`--concurrency` that is not a number", lambda: kept(
        nothing, "recommend", "run", "--concurrency", "many")),
    ("`--slo` of no known time", lambda: kept(nothing, "recommend", "run", "--slo", "ttfb=1s")),
    ("`--slo` of a run without an engine", lambda: kept(
        nothing, "recommend", "run", "--slo", "ttft=300ms")),
    ("`--max-memory` that is not a size", lambda: kept(
        nothing, "recommend", "run", "--max-memory", "lots")),
    ("A cost file with an unknown key", lambda: kept(
        lambda _: Path("costs.yaml").write_text("engine: e\nbatch: {}\n"),
        "recommend", "run", "--costs", "costs.yaml")),
    ("An unknown engine", lambda: kept(nothing, "export", "run", "--engine", "vlm")),
    ("An acceptance rate of 2.7", lambda: ["estimate", "--alpha", "2.7", "--draft-cost", "0.1"]),
    ("A verify ratio below 1", lambda: [
        "estimate", "--alpha", "0.7", "--draft-cost", "0.1", "--verify-ratio", "0.2"]),
]  # fmt: skip
ENGINES: list[Case] = [
    ("`--engine vlm`", lambda: served(engine="vlm")),
    ("`--engine-args` without an engine", lambda: sweep("--engine-args", "--x")),
    ("`--engine-args` of a running server", lambda: running("--engine-args", "--x")),
    ("`--restarts` of a running server", lambda: running("--restarts", "3")),
    ("`--baseline-server` beside `--engine`", lambda: served("--baseline-server", "http://h")),
    ("A flag of the decoder on an engine", lambda: served("--workers=2")),
    ("`--engine-command` without an engine", lambda: sweep("--engine-command", "x")),
    ("`--baseline-server` without a server", lambda: sweep("--baseline-server", "http://h")),
    ("`--tokenizer` without an engine", lambda: sweep("--tokenizer", "target")),
    ("`--arrivals` without an engine", lambda: sweep("--arrivals", "log")),
    ("An engine that cannot be started", lambda: served(engine="openai")),
    ("A mode in which the engine cannot be measured", lambda: served(
        "--mode", "sampled", "--measure", "all", draft=str(EMBEDDED / "draft"))),
    ("`--responses log` on an engine", lambda: served("--responses", "log")),
    ("`--target-quant` on an engine", lambda: served("--target-quant", "int8")),
    ("`--k` of a running server", lambda: without_drafts(running("--k", "2,4"))),
    ("Several loads beside `--arrivals`", lambda: served(
        "--arrivals", "poisson:2", "--concurrency", "1,4")),
    ("`--concurrency` beside `--arrivals` of a running server", lambda: running(
        "--arrivals", "poisson:2", "--concurrency", "4")),
    ("`--arrivals poisson:0`", lambda: served("--arrivals", "poisson:0")),
    ("`--arrivals log` of a log without times", lambda: served("--arrivals", "log")),
    ("`--time-scale` without `--arrivals log`", lambda: served("--time-scale", "2")),
    ("A target that is not there", lambda: served(target="./nowhere")),
    ("A draft's file that is not there", lambda: served(draft="draft.gguf")),
    ("A folder for llama.cpp to serve", lambda: served(engine="llama.cpp")),
    ("An encoder as the draft of an engine", lambda: served(draft=encoder())),
    ("The target as its own draft", lambda: served(draft="self")),
    ("`eagle3:` without its model", lambda: served(draft="eagle3:")),
    ("A model that is named as a head", lambda: served(draft=f"eagle3:{EMBEDDED}/draft")),
    ("`spec:` with a file that is not JSON", lambda: served(draft="spec:log.jsonl", log="{")),
    ("A way to draft that the engine does not have", lambda: served(
        draft="suffix", engine="sglang")),
    ("`spec:` with a file that does not exist", lambda: served(draft="spec:none.json")),
    ("`spec:` with another number of tokens", lambda: served(
        draft="spec:log.jsonl", log='{"method": "ngram", "num_speculative_tokens": 9}')),
    ("`spec:` with a list as a flag's value", lambda: served(
        engine="sglang", draft="spec:log.jsonl", log='{"--list": [1, 2]}')),
    ("`mtp` with a model", lambda: served(draft="mtp:org/model")),
    ("A flag that draftbench sets, in `--engine-args`", lambda: served("--engine-args=--port 1")),
    ("A placeholder that is misspelt", lambda: served("--engine-command", "vllm {arg}")),
    ("A quote that stays open in `--engine-command`", lambda: served("--engine-command", "vllm '")),
    ("A command that cannot be run", lambda: served("--engine-command", "/nowhere/vllm {args}")),
    ("A server that ends at once", lambda: served("--engine-command", "false")),
    ("A server that does not get ready", lambda: served(
        "--engine-command", "sh -c 'sleep 60'", "--ready-timeout", "1")),
    ("A server's address that is none", lambda: running(server="host:8000")),
    ("A server's address with a password", lambda: running(server="http://me:secret@h:1")),
    ("A token that cannot be sent", unsendable_token),
    ("What only an engine drafts, over a running server", lambda: answered(
        "", "--drafts", "dflash:./head")),
    ("A head over a running server whose target is not named", lambda: answered(
        "", "--drafts", "eagle3:./head")),
    ("A server of another kind than `--engine`", lambda: answered("", "--engine", "sglang")),
    ("The tokenizer of another model than the server's", lambda: answered(
        "", "--tokenizer", "target")),
    ("A server that does not run", lambda: running(server="http://127.0.0.1:9")),
    ("A server that reads other token ids than were sent", lambda: answered("wrong ids")),
    ("A server that answers garbage", lambda: answered("garbage")),
    ("A server that refuses the first request", lambda: answered("refuse")),
    ("A server that breaks off its first answer", lambda: answered("half")),
    ("A server without speculation beside a baseline", lambda: beside_plain("vllm", k=0)),
    ("A server that does not say whether it drafts", lambda: beside_plain("openai", k=4)),
    ("Two servers of different models", lambda: beside_plain("vllm", k=4, model="org/other")),
    ("More in flight than a server answers at a time", lambda: beside_plain(
        "llama.cpp", "--concurrency", "4", k=4)),
    ("Other threads than a run's servers were started with", lambda: [
        *resumed_with_another_target(), "--threads", "2"]),
    ("Another target than a run's servers were started with", resumed_with_another_target),
]  # fmt: skip
TRAINING: list[Case] = [
    ("No folder for the trained draft", lambda: kept(
        nothing, "train", "run", "--draft", "draft")),
    ("A folder that is there", lambda: kept(
        lambda _: Path("mine").mkdir(), "train", "run", "--draft", "draft", "--out", "mine")),
    ("A learning rate that is no positive number", lambda: kept(
        nothing, "train", "run", "--draft", "draft", "--forecast", "--learning-rate", "0")),
    ("A seed that is too large", lambda: kept(
        nothing, "train", "run", "--draft", "draft", "--forecast", "--seed", "4294967296")),
    ("A run without texts", lambda: kept(
        nothing, "train", "run", "--draft", "draft", "--forecast")),
    ("A run with too few requests", lambda: (
        begun(nothing), ["train", "run", "--draft", "draft", "--forecast"])[1]),
    ("A run with too few steps", lambda: trainable(EMBEDDED / "draft", "--batch", "64")),
    ("Prompt lookup as the draft to train", lambda: trainable("ngram")),
    ("A draft of other token ids", lambda: trainable(EMBEDDED / "foreign")),
    ("A GGUF file as the draft to train", lambda: trainable(_draft_as_gguf())),
    ("`--out` in the folder of the draft", lambda: trainable(
        shutil.copytree(EMBEDDED / "draft", "draft"), "--out", "draft/mine")),
    ("A head with `--lora`", lambda: trainable(f"eagle3:{EMBEDDED}/head", "--lora", "4")),
    ("`--lora` without peft", without_peft),
    ("`--other` of another target", with_traffic_of_another_target),
]  # fmt: skip
CASES = [*WORDS, *FILES, *TRAFFIC, *MODELS, *ENGINES, *RUNS, *ANSWERS, *TRAINING]


def _gguf(rest: bytes, magic: bytes = b"GGUF") -> str:
    Path("model.gguf").write_bytes(magic + b"\3\0\0\0" + rest)
    return "model.gguf"


def _draft_as_gguf() -> str:
    from embedded_gguf import Kind, write

    write(Path("draft.gguf"), EMBEDDED / "draft", Kind.F32)
    return "draft.gguf"


def _head(old: str, new: str) -> str:
    shutil.copytree(EMBEDDED / "head", "head")
    replaced("config.json", old, new)(Path("head"))
    return "eagle3:./head"


def _linked(run: Path) -> None:
    shutil.move(run / "observations", "elsewhere")
    (run / "observations").symlink_to(Path("elsewhere").resolve())


def _cut(run: Path) -> None:
    shutil.rmtree(run)
    shutil.copytree(FINISHED, run)
    decoded = run / "observations/decode.jsonl"
    decoded.write_bytes(decoded.read_bytes().partition(b"\n")[0] + b"\n")


def _emptied(run: Path) -> None:
    for file in (run / "observations").iterdir():
        file.unlink()
