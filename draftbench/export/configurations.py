"""Turns a plan into an engine's configuration: lets the engine write it and adds what all engines
need (refusals, quantization, sampling, revisions, paths).
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass

from draftbench.drafts.stopping import STOP_RULES
from draftbench.engines.engine import Engine, ServePlan, Version
from draftbench.engines.every import ENGINES, STARTED, check_method, engine_called
from draftbench.errors import UsageError, did_you_mean
from draftbench.export.feeds import FEEDS
from draftbench.memory import level_of

NEWEST = (10**9, 0)
_COMMENT = textwrap.TextWrapper(
    88, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
)
_TEXT_OF_FILE = '"$(cat FILE)"'


@dataclass(frozen=True)
class EngineConfiguration:
    """The text to paste; `to_do` lists what the user must do, the most urgent first. `command`
    starts the engine with the text in FILE; it is None if the text can be run itself.
    """

    text: str
    command: str | None
    to_do: tuple[str, ...]

    @property
    def pasted(self) -> str | None:
        """The command with the text in it; None if the text must be in a file."""
        if self.command is None or _TEXT_OF_FILE not in self.command:
            return None
        return self.command.replace(_TEXT_OF_FILE, shlex.quote(self.text))


def known_engine(name: str) -> Engine:
    """The engine of this name, however it is spelled.

    Raises:
        UsageError: it is unknown.
    """
    key = engine_called(name)
    if key not in ENGINES:
        raise UsageError(
            f"unknown engine `{name}`",
            hint=did_you_mean(key, [*ENGINES, *FEEDS], f"they are {', '.join([*ENGINES, *FEEDS])}"),
        )
    return ENGINES[key]


def configure(plan: ServePlan, name: str, version: str | None = None) -> EngineConfiguration:
    """The configuration for one version of the engine of this name (default: the newest known).

    Raises:
        UsageError: the engine or the version is unknown, or cannot serve this.
    """
    engine = known_engine(name)
    number = _version_of(version)
    how = plan.speculation
    _check(plan, engine)
    written = engine.write(plan, number)
    name = engine.name if version is None else f"{engine.name} {version}"
    differences = [*plan.differences, *written.differences]
    made = how.quant == "none" or how.quant in engine.quantizes
    if plan.draft is not None and not engine.converter and not made:
        form = level_of(how.quant).checkpoint or how.quant
        form = f"{'an' if form.startswith('8') else 'a'} {form}"
        differences.append(
            f"{engine.name} cannot quantize to {how.quant} while loading, as the run did: make "
            f"{form} checkpoint of the draft (llm-compressor, GPTQ or AWQ; --draft names it) and "
            "measure it; an unquantized draft is not the one recommended"
        )
    files = [name for name in (plan.target, plan.draft) if name and name.endswith(".gguf")]
    if files and not engine.reads_gguf and engine.key != plan.engine:
        head = how.model in files and not how.kind.is_model
        differences.insert(
            0,
            f"{engine.name} {'takes no .gguf head' if head else 'was not tried with .gguf files'}: "
            f"give it what {' and '.join(f'`{name}`' for name in files)} "
            f"{'was' if len(files) == 1 else 'were'} made from, with --target and --draft, and "
            "measure there: other weights may be accepted otherwise",
        )
    # The most urgent first: what breaks requests, why not to trust the answer, what is not as
    # measured, what has to be set.
    to_do = [*plan.doubts, *differences]
    if not (engine.key == plan.engine or plan.costs_given or plan.survival):
        own = ENGINES.get(plan.engine or "")
        there = f": `draftbench sweep --engine {engine.key}`" * (engine.key in STARTED)
        to_do.append(
            f"the speed-up was measured in {own.name if own else 'draftbench'}, and "
            f"{engine.name} may gain less or nothing: measure it there{there}"
        )
    if how.stop is not None:
        rule = STOP_RULES[how.stop.kind].at(how.stop.threshold)
        to_do.insert(0, f"the rule of a round: {rule}; draft {how.k} tokens at most")
    if plan.contexts and (cut := engine.shorter_context(*plan.contexts)):
        to_do.insert(0, f"{engine.name}: {cut}")
    if plan.sampled and written.mode not in (None, how.mode):
        to_do.append(
            f"{name} drafts in the mode `{written.mode}`, and the run measured `{how.mode}`: "
            "above temperature 0 acceptance will differ, so measure again there"
        )
    to_do += plan.open_loads
    if plan.schedule and not written.scheduled:
        steps = ", ".join(
            f"{k} at {first if first == last else f'{first}–{last}'}"
            for first, last, k in plan.schedule
        )
        to_do.append(
            f"{name} takes one length of such a draft, here k = {how.k}; the best by "
            f"concurrent requests: {steps}. --concurrency N exports the best for N"
        )
    if engine.sampling is not None:
        to_do.append(f"{_to_send(plan)}; otherwise {engine.sampling}")
    to_do += written.to_do
    if plan.target_quant != "none":
        to_do.append(f"serve the target at {plan.target_quant}, as it was measured")
    pinned = (
        ("target", plan.target, plan.target_revision),
        ("draft", plan.draft, plan.draft_revision),
    )
    to_do += [
        f"serve `{model}@{revision}`, the revision that was measured"
        for side, model, revision in pinned
        if revision and side not in engine.pins
    ]
    text = written.text
    if not text.startswith("{"):  # JSON, alone of the formats, has no comments
        text = "\n".join([*map(_COMMENT.fill, differences), text])
    return EngineConfiguration(text, written.command, tuple(to_do))


def _version_of(text: str | None) -> Version:
    """The first two numbers of a version, or a build of llama.cpp (b11368); the newest if none is
    given.

    Raises:
        UsageError: it is not a version.
    """
    if text is None:
        return NEWEST
    numbers = re.match(r"(?:b|v?(?=\d+\.))(\d{1,9})(?:\.(\d{1,9}))?(?![0-9])", text)
    if not numbers:
        raise UsageError(
            f"`{text}` is not a version",
            hint="for example 0.26 or 1.4.0rc1; of llama.cpp a build, b11368",
        )
    return int(numbers[1]), int(numbers[2] or 0)


def _check(plan: ServePlan, engine: Engine) -> None:
    """Raise a UsageError if no version of the engine can serve the plan."""
    sizes, drafts, measured_on = plan.vocabularies, plan.speculation, plan.engine
    if sizes and (refusal := engine.refusal(*sizes, translated=plan.other_ids)):
        raise UsageError(
            f"{engine.name} refuses this pair: {refusal}",
            hint="`draftbench check` says which engines take it",
        )
    if misread := plan.misread.get(engine.key):
        raise UsageError(
            f"{engine.name} would use this head differently from the run: it {misread}",
            hint="write what config.json leaves open into it and sweep again, or export for "
            "another engine: `draftbench check` lists them",
        )
    if plan.survival and not engine.synthetic:
        can = ", ".join(key for key, each in ENGINES.items() if each.synthetic)
        raise UsageError(
            f"{engine.name} plays back no measured acceptance",
            hint=f"--synthetic is for {can}",
        )
    if drafts.raw is not None and engine.key != measured_on:
        raise UsageError(
            f"spec:FILE.json is written for {measured_on}: it cannot be exported for {engine.name}",
            hint=f"use --engine {measured_on}, or sweep on {engine.name}",
        )
    check_method(engine.key, drafts)


def _to_send(plan: ServePlan) -> str:
    """The sampling settings that requests must carry to be sampled as in the run."""
    if plan.mixed:
        return "send every request's temperature, top-k, top-p and min-p, as measured"
    sampling = plan.sampling
    if sampling.temperature == 0:
        return "send temperature 0 with every request, as measured"
    cuts = (("top-k", sampling.top_k), ("top-p", sampling.top_p), ("min-p", sampling.min_p))
    words = [f"no {name}" if value is None else f"{name} {value:g}" for name, value in cuts]
    sent = ", ".join([f"temperature {sampling.temperature:g}", *words])
    return f"send {sent} with every request, as measured"
