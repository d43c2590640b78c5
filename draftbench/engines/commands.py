"""A server to be started → its command line.

The flags of vLLM and llama.cpp were tried; those of SGLang and TensorRT-LLM come from their
sources. Prefix caches are off everywhere: a prompt that was read before would cost nothing.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from draftbench.errors import EngineError, UsageError, did_you_mean
from draftbench.hub import split_revision
from draftbench.models.engine_rules import (
    llama_cpp_draft,
    llama_cpp_lengths,
    llama_cpp_lookup,
    sglang_chain,
    sglang_draft,
    sglang_lookup,
    tensorrt_llm_draft,
    tensorrt_llm_lookup,
    vllm_draft,
    vllm_lookup,
)
from draftbench.models.levels import made_by
from draftbench.records import LOOKUP, DraftingMode
from draftbench.safe_files import UnreadableError, read_limited

Method = Literal["draft-model", "ngram", "eagle3", "mtp", "suffix", "dflash", "raw"]
_ALONE: dict[str, Method] = {LOOKUP: "ngram", "mtp": "mtp", "suffix": "suffix"}
_WITH_WEIGHTS: dict[str, Method] = {"eagle3": "eagle3", "dflash": "dflash"}
_MOST_RAW_BYTES = 64 << 10
# Placeholders are replaced in a word; `${name}` is a variable of some shell.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")
# Requests that an engine takes at once unless a flag allows more: vLLM's default, and what SGLang
# falls back to as soon as it speculates.
_VLLM_REQUESTS, _SGLANG_REQUESTS = 256, 48
# Programs that run a server in another process tree.
_ELSEWHERE = ("docker", "podman", "nerdctl", "kubectl", "ssh", "srun")


@dataclass(frozen=True)
class Speculation:
    """How a server drafts, and how many tokens a round."""

    method: Method
    model: str | None  # the drafter's weights; None where it has none
    k: int
    lookup: tuple[int, int] = (4, 2)  # ngram: its longest and its shortest match
    raw: dict[str, Any] | None = None  # the content of `spec:FILE.json`
    quant: str = "none"  # of a draft model, made while the engine loads it
    mode: DraftingMode = DraftingMode.GREEDY  # of a draft model


@dataclass(frozen=True)
class ServerStart:
    """A server to be started; without `speculation` it is the baseline."""

    engine: str  # vllm, llama.cpp, sglang or tensorrt-llm
    target: str
    speculation: Speculation | None = None
    args: str = ""  # the user's flags, as a shell would read them
    command: str | None = None  # the user's, with placeholders; None: the engine's usual one
    stop_command: str | None = None  # ends what lives outside the process group
    concurrency: int = 1  # requests that it must at least answer at once
    slots: int | None = None  # requests that it may answer at once; None: the engine's default
    context_length: int | None = None  # tokens of prompt and response; None: the model's
    threads: int | None = None  # of the server, on a CPU; None: as many as it takes
    ready_timeout: float = 900.0  # seconds until it answers


@dataclass(frozen=True)
class Launch:
    """The command that starts a server, and what it needs."""

    words: tuple[str, ...]
    stop: tuple[str, ...]  # the stop command; may be empty
    environment: dict[str, str]  # added to the user's
    file: tuple[Path, str] | None  # a file that the command reads, and its text
    may_survive: bool  # whether it may outlive a killed draftbench, as in a container


@dataclass(frozen=True)
class _Program:
    """How an engine is started: its usual command and flags, its methods of drafting, the flags
    that the user must not set, the --mode other than greedy that can be measured on it, and its
    configuration file.
    """

    command: str
    flags: Callable[[ServerStart], list[str]]
    methods: tuple[Method, ...]
    taken: tuple[str, ...]
    draws: DraftingMode | None
    configuration: Callable[[ServerStart], dict[str, Any]] | None = None


def speculation(
    draft: str,
    k: int,
    *,
    lookup: tuple[int, int] = (4, 2),
    quant: str = "none",
    mode: DraftingMode = DraftingMode.GREEDY,
) -> Speculation:
    """An entry of `--drafts`: `ngram`, `mtp`, `suffix`, `eagle3:MODEL`, `dflash:MODEL`,
    `spec:FILE.json`, or a draft model.

    Raises:
        UsageError: the model is missing, or the file is no JSON object.
    """
    kind, colon, rest = draft.partition(":")
    if draft in _ALONE:
        return Speculation(_ALONE[draft], None, k, lookup)
    if kind in _WITH_WEIGHTS:
        if not rest:
            raise UsageError(f"`{draft}` names no model", hint=f"write {kind}:MODEL")
        return Speculation(_WITH_WEIGHTS[kind], rest, k)
    if kind == "spec" and colon:
        return Speculation("raw", None, k, raw=_raw(rest))
    return Speculation("draft-model", draft, k, quant=quant, mode=mode)


def _raw(file: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_limited(Path(file), _MOST_RAW_BYTES), type=dict[str, Any])
    except UnreadableError as error:
        raise UsageError(f"cannot read `{file}`: {error}", hint=_RAW_HINT) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"`{file}` is no JSON object", hint=_RAW_HINT) from error


_RAW_HINT = (
    "spec:FILE.json holds vLLM's or TensorRT-LLM's speculative configuration, or flags of "
    'llama.cpp or SGLang with their values; "{k}" stands for the draft length'
)
_TAKES_FLAGS = ("llama.cpp", "sglang")
# What --speculative-config may hold, by the fields of vllm/config/speculative.py.
VLLM_FIELDS_OF = "0.32"
VLLM_FIELDS = (
    *("num_speculative_tokens", "model", "method", "revision", "code_revision", "quantization"),
    *("draft_tensor_parallel_size", "max_model_len", "kv_cache_dtype", "draft_load_config"),
    *("moe_backend", "attention_backend", "enforce_eager", "index_share_for_mtp_iteration"),
    *("disable_padded_drafter_batch", "disable_eagle_block_drop", "use_local_argmax_reduction"),
    *("use_heterogeneous_vocab", "prompt_lookup_max", "prompt_lookup_min", "parallel_drafting"),
    *("num_speculative_tokens_per_batch_size", "suffix_decoding_max_tree_depth"),
    *("suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor"),
    *("suffix_decoding_min_token_prob", "rejection_sample_method", "draft_sample_method"),
    *("synthetic_acceptance_rates", "synthetic_acceptance_length"),
    *("enable_adaptive_verification", "dspark_draft_topk"),
)


def launch(start: ServerStart, host: str, port: int, folder: Path) -> Launch:
    """The command that starts a server on `host` and `port`; if the engine reads a configuration
    file, it is in `folder`.

    Raises:
        EngineError: the engine lacks this method of drafting.
        UsageError: the command or the arguments cannot be used as they are.
    """
    engine = _PROGRAMS[start.engine]
    if (drafts := start.speculation) is not None:
        check_method(start.engine, drafts)
        if drafts.mode not in (DraftingMode.GREEDY, engine.draws):
            modes = f"greedy or {engine.draws}" if engine.draws else "greedy"
            raise UsageError(
                f"{start.engine} is not measured in --mode {drafts.mode}",
                hint=f"give --mode {modes}",
            )
    words = [*engine.flags(start), "--host", host, "--port", str(port)]
    file = None
    if engine.configuration is not None:
        path = folder / f"{start.engine}-{port}.json"
        file = path, json.dumps(engine.configuration(start), indent=2)
        words += ["--config", str(path)]
    words += _user_args(start, engine)
    values = {"model": start.target, "host": host, "port": str(port), "python": sys.executable}
    command = _filled("--engine-command", start.command or engine.command, values, words)
    stop = _filled("--engine-stop-command", start.stop_command or "", values, None)
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if start.threads is not None:
        environment["OMP_NUM_THREADS"] = str(start.threads)
        # Otherwise vLLM chooses which cores its threads are bound to.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    may_survive = runs_elsewhere(start.command) and not stop
    return Launch(tuple(command), tuple(stop), environment, file, may_survive)


def check_method(engine: str, drafts: Speculation) -> None:
    """Raise an EngineError where an engine lacks this method of drafting, a UsageError where it
    cannot draft as a `spec:FILE.json` says.
    """
    methods = _PROGRAMS[engine].methods
    if drafts.method not in methods:
        raise EngineError(
            f"{engine} is not known to draft by `{drafts.method}`",
            hint=f"it drafts by {', '.join(methods[:-1])}, or as spec:FILE.json says",
        )
    flags = engine in _TAKES_FLAGS
    for name in drafts.raw or {}:
        if name.startswith("-") is not flags:
            meant = f"--{name}" if flags else name.lstrip("-").replace("-", "_")
            raise UsageError(
                f"`{name}` in spec:FILE.json is no {'flag' if flags else 'field'} of {engine}",
                hint=f"write `{meant}`: {_RAW_HINT}",
            )
    if engine == "vllm" and drafts.raw is not None:
        vllm_fields(drafts)


def doubtful_fields(engine: str, drafts: Speculation) -> list[str]:
    """A sentence for each field of a speculative configuration that the version of vLLM known here
    does not have. Other versions have others, so it is no error.
    """
    if engine != "vllm":
        return []
    return [
        f"vLLM {VLLM_FIELDS_OF} has no field `{name}` in its speculative configuration: "
        + did_you_mean(name, VLLM_FIELDS, "see what your version calls it")
        for name in drafts.raw or {}
        if name not in VLLM_FIELDS
    ]


def runs_elsewhere(command: str | None) -> bool:
    """Whether a command starts the server in a container or elsewhere. Raises: UsageError."""
    words = _split("--engine-command", command or "")
    return bool(words) and Path(words[0]).name in _ELSEWHERE


def _user_args(start: ServerStart, engine: _Program) -> list[str]:
    words = _split("--engine-args", start.args)
    for word in words:
        name = word.partition("=")[0]
        # vLLM takes `--speculative-config.method` too.
        if name.replace("_", "-").partition(".")[0] in engine.taken:
            raise UsageError(
                f"--engine-args cannot hold {name}: draftbench sets it",
                hint="leave it out; drafts and draft lengths are --drafts and --k",
            )
    return words


def _filled(
    flag: str, command: str, values: Mapping[str, str], args: list[str] | None
) -> list[str]:
    """A user's command with its placeholders replaced.

    `{args}` as a separate word stands for all arguments; within a longer word, which is a line for
    another shell, for their quoted text. Without it they come last.
    """
    placeholders = [*values, *([] if args is None else ["args"])]

    def replaced(match: re.Match[str]) -> str:
        if match[1] not in placeholders:
            raise UsageError(
                f"unknown placeholder {match[0]} in {flag}",
                hint=did_you_mean(match[1], placeholders, f"known are {', '.join(placeholders)}"),
            )
        return shlex.join(args or []) if match[1] == "args" else values[match[1]]

    words: list[str] = []
    for word in _split(flag, command):
        if word == "{args}" and args is not None:
            words += args
        else:
            words.append(_PLACEHOLDER.sub(replaced, word))
    return words if args is None or "{args}" in command else [*words, *args]


def _split(flag: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"cannot read {flag}: {str(error).lower()}", hint="quote it as a shell would read it"
        ) from error


def _revision(model: str, flag: str) -> tuple[str, list[str]]:
    """A model without its `@revision`, and the flags for that revision."""
    name, revision = split_revision(model)
    return name, [] if revision is None else [flag, revision]


def _passed_through(drafts: Speculation) -> dict[str, Any]:
    """The content of `spec:FILE.json`, with the draft length in place of `{k}`."""
    return {
        name: drafts.k if value == "{k}" else value for name, value in (drafts.raw or {}).items()
    }


def _passed_flags(drafts: Speculation) -> list[str]:
    words: list[str] = []
    for name, value in _passed_through(drafts).items():
        words += [name] if value is True else [name, str(value)]
    return words


def _vllm(start: ServerStart) -> list[str]:
    target, revision = _revision(start.target, "--revision")
    words = ["--model", target, *revision, "--no-enable-prefix-caching"]
    words += ["--logprobs-mode", "processed_logprobs", "--enable-per-request-metrics"]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    if start.context_length is not None:
        words += ["--max-model-len", str(start.context_length)]
    if start.slots is not None or start.concurrency > _VLLM_REQUESTS:
        words += ["--max-num-seqs", str(start.concurrency)]
    if (drafts := start.speculation) is not None:
        fields = vllm_fields(drafts)
        words += ["--speculative-config", json.dumps(fields, separators=(",", ":"))]
        words += ["--per-request-spec-decode-metrics", "detailed"]
    return words


def vllm_fields(drafts: Speculation) -> dict[str, Any]:
    """The fields of vLLM's `--speculative-config`."""
    length = {"num_speculative_tokens": drafts.k}
    if drafts.method == "raw":
        fields = length | _passed_through(drafts)
        if fields["num_speculative_tokens"] != drafts.k:
            raise UsageError(
                f"spec:FILE.json drafts {fields['num_speculative_tokens']} tokens, not {drafts.k}",
                hint='write "num_speculative_tokens": "{k}"',
            )
        return fields
    if drafts.method == "ngram":
        return vllm_lookup(*drafts.lookup, **length)
    if drafts.model is None:
        return {"method": drafts.method, **length}
    model, revision = _revision(drafts.model, "revision")
    named: dict[str, Any] = {"revision": revision[1]} if revision else {}
    if drafts.method != "draft-model":
        return {"method": drafts.method, "model": model, **named, **length}
    if level := made_by("vllm", drafts.quant):
        named["quantization"] = level
    if drafts.mode is not DraftingMode.GREEDY:
        named["draft_sample_method"] = "probabilistic"
    return {**vllm_draft(model), **length, **named}


def _llama_cpp(start: ServerStart) -> list[str]:
    requests = start.concurrency
    # The context is shared out evenly; without -np there are four places.
    context = 0 if start.context_length is None else start.context_length * requests
    words = ["-m", start.target, "-np", str(requests), "-c", str(context)]
    words += ["--metrics", "--no-cache-prompt", "--cache-ram", "0"]
    if start.threads is not None:
        words += ["--threads", str(start.threads)]
    return words if start.speculation is None else [*words, *llama_cpp_flags(start.speculation)]


def llama_cpp_flags(drafts: Speculation) -> list[str]:
    """llama-server's flags for drafting."""
    if drafts.method == "raw":
        return _passed_flags(drafts)
    if drafts.method == "ngram":
        return llama_cpp_lookup(drafts.lookup[1], drafts.k)
    if drafts.method == "draft-model":
        words = llama_cpp_draft(str(drafts.model))
        if drafts.mode is not DraftingMode.GREEDY:
            words += ["--spec-draft-sampling", "probabilistic"]
    else:
        words = [] if drafts.model is None else ["-md", drafts.model]
        words += ["--spec-type", f"draft-{drafts.method}"]
    return [*words, *llama_cpp_lengths(drafts.k)]


def _sglang(start: ServerStart) -> list[str]:
    target, revision = _revision(start.target, "--revision")
    words = ["--model-path", target, *revision, "--disable-radix-cache", "--enable-metrics"]
    if start.context_length is not None:
        words += ["--context-length", str(start.context_length)]
    if start.slots is not None or start.concurrency > _SGLANG_REQUESTS:
        words += ["--max-running-requests", str(start.concurrency)]
    return words if start.speculation is None else [*words, *sglang_flags(start.speculation)]


def sglang_flags(drafts: Speculation) -> list[str]:
    """SGLang's flags for drafting."""
    if drafts.method == "raw":
        return _passed_flags(drafts)
    if drafts.method == "ngram":
        return sglang_lookup(drafts.k)
    model, pinned = _revision(drafts.model or "", "--speculative-draft-model-revision")
    if drafts.method == "draft-model":
        return [*sglang_draft(model, drafts.quant, drafts.k), *pinned]
    algorithm = {"eagle3": "EAGLE3", "mtp": "NEXTN", "dflash": "DFLASH"}[drafts.method]
    words = ["--speculative-algorithm", algorithm]
    words += ["--speculative-draft-model-path", model, *pinned] if model else []
    if drafts.method == "dflash":  # its block holds the last accepted token too
        return [*words, "--speculative-dflash-block-size", str(drafts.k + 1)]
    return [*words, *sglang_chain(drafts.k)]


def _tensorrt_llm(start: ServerStart) -> list[str]:
    words = [start.target]
    if start.context_length is not None:
        words += ["--max_seq_len", str(start.context_length)]
    return words if start.slots is None else [*words, "--max_batch_size", str(start.slots)]


def _tensorrt_llm_file(start: ServerStart) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kv_cache_config": {"enable_block_reuse": False},
        "return_perf_metrics": True,
    }
    drafts = start.speculation
    if drafts is None:
        return fields
    if drafts.method == "ngram":
        fields["disable_overlap_scheduler"] = True
    return fields | {"speculative_config": tensorrt_llm_fields(drafts)}


def tensorrt_llm_fields(drafts: Speculation) -> dict[str, Any]:
    """The fields of TensorRT-LLM's `speculative_config`."""
    length = {"max_draft_len": drafts.k}
    if drafts.method == "raw":
        return _passed_through(drafts)
    if drafts.method == "ngram":
        return tensorrt_llm_lookup(drafts.lookup[0], **length)
    if drafts.method == "draft-model":
        fields = tensorrt_llm_draft(str(drafts.model), **length)
        if drafts.mode is not DraftingMode.GREEDY:
            fields["use_rejection_sampling"] = True
        return fields
    if drafts.method == "eagle3":
        return {"decoding_type": "Eagle3", **length, "speculative_model": drafts.model}
    return {"decoding_type": "MTP", "num_nextn_predict_layers": drafts.k}


_PROGRAMS = {
    "vllm": _Program(
        "{python} -m vllm.entrypoints.openai.api_server {args}",
        _vllm,
        get_args(Method),
        (
            *("--model", "--port", "--speculative-config", "-sc"),
            *("--spec-method", "--spec-model", "--spec-tokens"),
        ),
        DraftingMode.SAMPLED_TEMPERATURE_ONLY,
    ),
    "llama.cpp": _Program(
        "llama-server {args}",
        _llama_cpp,
        ("draft-model", "ngram", "eagle3", "mtp", "dflash", "raw"),
        (
            *("-m", "--model", "--port", "-np", "--parallel"),
            *("-md", "--model-draft", "--spec-draft-model", "--draft", "--draft-n", "--draft-max"),
            *("--spec-type", "--spec-draft-n-max"),
        ),
        None,  # --spec-draft-sampling draws from the draft's ten best tokens, which replay does not
    ),
    "sglang": _Program(
        "{python} -m sglang.launch_server {args}",
        _sglang,
        ("draft-model", "ngram", "eagle3", "mtp", "dflash", "raw"),
        (
            *("--model-path", "--model", "--port", "--speculative-algorithm"),
            *("--speculative-num-steps", "--speculative-num-draft-tokens"),
            *("--speculative-draft-model-path", "--speculative-draft-model"),
        ),
        None,
    ),
    "tensorrt-llm": _Program(
        "trtllm-serve {args}",
        _tensorrt_llm,
        ("draft-model", "ngram", "eagle3", "mtp", "raw"),
        ("--port", "--config", "--extra-llm-api-options"),
        DraftingMode.SAMPLED,
        _tensorrt_llm_file,
    ),
}
