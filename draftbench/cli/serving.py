"""The flags of a serving engine, and which other flags cannot be combined with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from draftbench.cli.flags import flag, one_of
from draftbench.errors import UsageError
from draftbench.models.engine_rules import DRIVEN, STARTED, engine_called

if TYPE_CHECKING:
    from draftbench.sweep.options import ServingOptions

SERVING = "Serving engine (with --engine or --server)"
in_serving = partial(flag, panel=SERVING)
_READY_TIMEOUT = 900.0


def _engine(text: str) -> str:
    engine = engine_called(text)
    one_of("--engine", engine, DRIVEN)
    return engine


def _arrivals(text: str) -> str:
    kind, colon, rate = text.partition(":")
    if text in ("closed", "log"):
        return text
    try:
        valid = kind == "poisson" and 0 < float(rate) < math.inf
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"--arrivals cannot be `{text}`",
            hint="closed, log, or poisson:RATE with requests a second, e.g. poisson:2.5",
        )
    return f"{kind}{colon}{float(rate):g}"


@dataclass(frozen=True, kw_only=True)
class ServingFlags:
    """The engine that serves the target: flags for the fields of `ServingOptions`."""

    engine: str | None = in_serving(
        None,
        f"Start this engine and measure on it: {', '.join(STARTED)}.",
        "NAME",
        parse=_engine,
        autocompletion=lambda incomplete: list(DRIVEN),
    )
    server: str | None = in_serving(
        None, "Measure on a running server, with its speculation if it has any.", "URL"
    )
    baseline: str | None = in_serving(
        None,
        "The same model without speculation, on another server: what --server is compared with.",
        "URL",
        ("--baseline-server",),
    )
    args: str = in_serving(
        "",
        "More flags to start the engine with, as one string.",
        "ARGS",
        ("--engine-args",),
        show_default=False,
    )
    command: str | None = in_serving(
        None,
        "The command that starts the engine. {args} stands for the flags that draftbench adds; "
        "{model}, {host} and {port} work too.",
        "COMMAND",
        ("--engine-command",),
    )
    stop_command: str | None = in_serving(
        None,
        "The command that stops what --engine-command started elsewhere.",
        "COMMAND",
        ("--engine-stop-command",),
    )
    ready_timeout: float = in_serving(
        _READY_TIMEOUT,
        "How long to wait for a started server to answer.",
        "SECONDS",
        min=1,
    )
    tokenizer: str | None = in_serving(
        None, "The folder or id of the target's tokenizer (default: --target).", "MODEL"
    )
    arrivals: str = in_serving(
        "closed",
        "When requests are sent: closed keeps --concurrency of them in flight, log keeps the "
        "log's times, poisson:RATE sends RATE a second on average.",
        "HOW",
        parse=_arrivals,
    )
    time_scale: float = in_serving(
        1.0, "Replay the log this many times faster (--arrivals log).", "FACTOR", min=1e-6
    )
    restarts: int = in_serving(
        1,
        "Start each server this many times, since speed differs from start to start.",
        min=1,
    )
    replay: str = in_serving(
        "local",
        "Where drafts are replayed: local (here), or engine, which serves and scores each draft.",
        "WHERE",
        among=("local", "engine"),
    )

    def options(self) -> ServingOptions | None:
        """These flags for the sweep; None where no engine is named.

        Raises:
            UsageError: flags contradict each other, or lack an engine.
        """
        from draftbench.sweep.options import ServingOptions

        started = {
            "--engine-args": self.args,
            "--engine-command": self.command,
            "--engine-stop-command": self.stop_command,
            "--restarts": self.restarts > 1,
            "--ready-timeout": self.ready_timeout != _READY_TIMEOUT,
        }
        given = [name for name, value in started.items() if value]
        if self.time_scale != 1 and self.arrivals != "log":
            raise UsageError("--time-scale without --arrivals log", hint="leave it out")
        if self.engine is None and self.server is None:
            start, drive = "name one with --engine", "a running one with --server"
            without = [
                *((name, True, start) for name in given),
                ("--replay", self.replay != "local", start),
                ("--baseline-server", self.baseline, f"name {drive}"),
                ("--tokenizer", self.tokenizer, f"{start}, or {drive}"),
                ("--arrivals", self.arrivals != "closed", f"{start}, or {drive}"),
            ]
            for name, value, hint in without:
                if value:
                    raise UsageError(f"{name} without a serving engine", hint=hint)
            return None
        if self.server is not None and given:
            raise UsageError(
                f"{given[0]} with --server, which is running already",
                hint="leave it out, or let draftbench start the engine: --engine without --server",
            )
        if self.server is None and self.baseline is not None:
            raise UsageError(
                "--baseline-server without --server",
                hint="with --engine both are started; --server is the one with speculation",
            )
        if self.server is None and self.engine not in STARTED:
            raise UsageError(
                f"`{self.engine}` is no engine that can be started",
                hint=f"give its address with --server, or one of {', '.join(STARTED)}",
            )
        # llama.cpp does not return the best token at every position of a prompt.
        if self.replay == "engine" and (self.server is not None or self.engine == "llama.cpp"):
            why = "a server that is running" if self.server is not None else self.engine
            raise UsageError(
                f"--replay engine cannot score a draft with {why}",
                hint="--replay local needs the draft's files and no more",
            )
        return ServingOptions(**vars(self))


def with_slots(serving: ServingOptions, concurrency: tuple[int, ...] | None) -> ServingOptions:
    """The options with --concurrency as slots, since with --arrivals it does not set the load but
    how many requests a started server answers at once.

    Raises:
        UsageError: several numbers, or the server is already running.
    """
    if concurrency is None:
        return serving
    if serving.server is not None:
        raise UsageError(
            "--concurrency with --arrivals on a server that is running",
            hint="leave it out: how many requests are in flight follows from their arrivals, and "
            "how many the server answers at once from how it was started",
        )
    if len(concurrency) > 1:
        raise UsageError(
            "--concurrency with --arrivals takes one number: how many requests the server answers "
            "at once",
            hint="the load is that of the arrivals; measure another one, e.g. poisson:8, in "
            "another --out",
        )
    return replace(serving, slots=concurrency[0])


def with_dtype(serving: ServingOptions, dtype: str | None) -> ServingOptions:
    """With --dtype a vLLM that is started computes in that type as the replay here does, unless
    --engine-args names one; a running server is taken to, where it does not tell. The weights of
    llama.cpp have their type in the file.
    """
    if serving.server is not None:
        return replace(serving, dtype=dtype)
    named = "--dtype" in serving.args.replace("=", " ").split()
    if dtype is None or named or serving.engine != "vllm":
        return serving
    return replace(serving, args=f"{serving.args} --dtype {dtype}".strip())


def refuse_with_engine(serving: ServingOptions, settings: Any, drafts: tuple[str, ...]) -> None:
    """Raise a UsageError for a flag of `sweep` that makes no sense with a serving engine."""
    of_the_decoder, running = "it is the built-in decoder's", serving.server is not None
    where = "a server that is running" if running else "a serving engine"
    as_it_runs = "leave it out: a server that is running is measured as it was started"
    again = "--restarts starts each server several times"
    quantized = "name the quantized checkpoint, or the engine's flag in --engine-args"
    senseless = (
        ("--isolate", settings.isolate, "an engine runs in separate processes anyway"),
        ("--processes", settings.processes > 1, as_it_runs if running else again),
        ("--target-quant", settings.target_quant != "none", as_it_runs if running else quantized),
        ("--one-layout", settings.one_layout, of_the_decoder),
        ("--audit", settings.audit, "whether texts are the same is measured anyway"),
        ("--simulate-quant", settings.simulate_quant, "what is not served is replayed anyway"),
        ("--responses log", settings.responses == "log", "the server writes the responses"),
        (
            "--k",
            # A single k says how many tokens a server drafts that does not report it.
            running and not drafts and len(settings.ks) > 1 and settings.ks != tuple(range(1, 9)),
            "a running server has its k; --k is for drafts that are replayed (--drafts)",
        ),
    )
    for name, given, hint in senseless:
        if given:
            raise UsageError(f"{name} makes no sense with {where}", hint=hint)
