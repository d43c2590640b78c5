"""A server to be started → its command line.

The flags of vLLM and llama.cpp were tried; those of SGLang come from its sources. Prefix caches
are off everywhere: a prompt that was read before would cost nothing.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from draftbench.engines.secrets import form_of, hidden_in, values_of
from draftbench.engines.vllm import tells_rounds
from draftbench.errors import UsageError, did_you_mean
from draftbench.models.drafting import (
    Speculation,
    check_method,
    llama_cpp_flags,
    revision_flags,
    sglang_flags,
    vllm_fields,
)
from draftbench.models.engine_rules import ENGINE_RULES
from draftbench.records import DraftingMode

# `{name}` is a placeholder, `${name}` a variable of some shell.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z_]+)\}")
# Programs that run a server in another process tree.
_ELSEWHERE = ("docker", "podman", "nerdctl", "kubectl", "ssh", "srun")


@dataclass(frozen=True)
class ServerStart:
    """A server to be started; without `speculation` it is the baseline."""

    engine: str  # vllm, llama.cpp or sglang
    target: str
    speculation: Speculation | None = None
    args: str = ""  # the user's flags, as a shell would read them
    command: str | None = None  # the user's, with placeholders; None: the engine's usual one
    stop_command: str | None = None  # ends what lives outside the process group
    concurrency: int = 1  # requests that it must at least answer at once
    # Requests that it may answer at once; None: the engine's default.
    max_concurrency: int | None = None
    context_length: int | None = None  # tokens of prompt and response; None: the model's
    threads: int | None = None  # of the server, on a CPU; None: as many as it takes
    ready_timeout: float = 900.0  # seconds until it answers
    version: str | None = None  # that servers of this run named; None: the first is yet to start


@dataclass(frozen=True)
class Launch:
    """The command that starts a server, and what it needs."""

    words: tuple[str, ...]
    form: tuple[str, ...]  # the same, of what the user added without the values
    added: frozenset[str]  # these values
    stop: tuple[str, ...]  # the stop command; may be empty
    environment: dict[str, str]  # added to the user's
    may_survive: bool  # whether it may outlive a killed draftbench, as in a container


@dataclass(frozen=True)
class _Program:
    """How an engine is started: its usual command and flags, the flags that the user must not set,
    and the --mode other than greedy that can be measured on it.
    """

    command: str
    flags: Callable[[ServerStart], list[str]]
    taken: tuple[str, ...]
    draws: DraftingMode | None


def launch(start: ServerStart, host: str, port: int) -> Launch:
    """The command that starts a server on `host` and `port`.

    Raises:
        EngineError: the engine lacks this method of drafting.
        UsageError: the command or the arguments cannot be used as they are.
    """
    engine = _PROGRAMS[start.engine]
    if (speculation := start.speculation) is not None:
        check_method(start.engine, speculation)
        if speculation.mode not in (DraftingMode.GREEDY, engine.draws):
            modes = f"greedy or {engine.draws}" if engine.draws else "greedy"
            raise UsageError(
                f"{start.engine} is not measured in --mode {speculation.mode}",
                hint=f"give --mode {modes}",
            )
    words = [*engine.flags(start), "--host", host, "--port", str(port)]
    added, given = _split("--engine-args", start.args), start.command
    for word in added:
        name = word.partition("=")[0]
        # vLLM takes `--speculative-config.method` too.
        if name.replace("_", "-").partition(".")[0] in engine.taken:
            raise UsageError(
                f"--engine-args cannot hold {name}: draftbench sets it",
                hint="leave it out; drafts and draft lengths are --drafts and --k",
            )
    values = {"model": start.target, "host": host, "port": str(port), "python": sys.executable}
    command = _filled("--engine-command", given or engine.command, values, [*words, *added])
    # What the run folder keeps of it.
    shape = given and " ".join(form_of(_split("--engine-command", given)))
    hidden = [*map(hidden_in, words), *form_of(added)]
    form = _filled("--engine-command", shape or engine.command, values, hidden)
    stop = _filled("--engine-stop-command", start.stop_command or "", values, None)
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if start.threads is not None:
        environment["OMP_NUM_THREADS"] = str(start.threads)
        # Otherwise vLLM chooses which cores its threads are bound to.
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    given_words = _split("--engine-command", given or "")
    elsewhere = bool(given_words) and Path(given_words[0]).name in _ELSEWHERE
    may_survive, values_added = elsewhere and not stop, values_of([*given_words, *added])
    return Launch(tuple(command), tuple(form), values_added, tuple(stop), environment, may_survive)


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


def _vllm(start: ServerStart) -> list[str]:
    target, revision = revision_flags(start.target, "--revision")
    words = ["--model", target, *revision, "--no-enable-prefix-caching"]
    words += ["--logprobs-mode", "processed_logprobs", "--enable-per-request-metrics"]
    words += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    if start.context_length is not None:
        words += ["--max-model-len", str(start.context_length)]
    if start.max_concurrency is not None or start.concurrency > ENGINE_RULES["vllm"].requests:
        words += ["--max-num-seqs", str(start.concurrency)]
    if (speculation := start.speculation) is not None:
        fields = vllm_fields(speculation)
        words += ["--speculative-config", json.dumps(fields, separators=(",", ":"))]
        if tells_rounds(start.version):
            words += ["--per-request-spec-decode-metrics", "detailed"]
    return words


def _llama_cpp(start: ServerStart) -> list[str]:
    requests = start.concurrency
    # The context is shared out evenly; without -np there are four places.
    context = 0 if start.context_length is None else start.context_length * requests
    words = ["-m", start.target, "-np", str(requests), "-c", str(context)]
    words += ["--metrics", "--no-cache-prompt", "--cache-ram", "0"]
    if start.threads is not None:
        words += ["--threads", str(start.threads)]
    return words if start.speculation is None else [*words, *llama_cpp_flags(start.speculation)]


def _sglang(start: ServerStart) -> list[str]:
    target, revision = revision_flags(start.target, "--revision")
    words = ["--model-path", target, *revision, "--disable-radix-cache", "--enable-metrics"]
    if start.context_length is not None:
        words += ["--context-length", str(start.context_length)]
    if start.max_concurrency is not None or start.concurrency > ENGINE_RULES["sglang"].requests:
        words += ["--max-running-requests", str(start.concurrency)]
    return words if start.speculation is None else [*words, *sglang_flags(start.speculation)]


_PROGRAMS = {
    "vllm": _Program(
        "{python} -m vllm.entrypoints.openai.api_server {args}",
        _vllm,
        (
            *("--model", "--port", "--speculative-config", "-sc"),
            *("--spec-method", "--spec-model", "--spec-tokens"),
        ),
        DraftingMode.SAMPLED_TEMPERATURE_ONLY,
    ),
    "llama.cpp": _Program(
        "llama-server {args}",
        _llama_cpp,
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
        (
            *("--model-path", "--model", "--port", "--speculative-algorithm"),
            *("--speculative-num-steps", "--speculative-num-draft-tokens"),
            *("--speculative-draft-model-path", "--speculative-draft-model"),
        ),
        None,
    ),
}
