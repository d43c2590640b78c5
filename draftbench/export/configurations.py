"""Turns a plan into an engine's configuration: calls the engine's writer and adds what all engines
need (refusals, quantization, sampling, revisions, paths).
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from draftbench.errors import UsageError, did_you_mean
from draftbench.export import (
    for_llama_cpp,
    for_sglang,
    for_tensorrt_llm,
    for_transformers,
    for_vllm,
)
from draftbench.export.serve_plan import ServePlan
from draftbench.export.writer_result import Version, WriterResult, version_of
from draftbench.memory import level_of
from draftbench.models.engine_rules import (
    ENGINE_RULES,
    EngineRules,
    check_method,
    engine_called,
    engine_refusal,
    shorter_context,
)

_WRITERS: dict[str, Callable[[ServePlan, Version], WriterResult]] = {
    "vllm": for_vllm.write,
    "sglang": for_sglang.write,
    "llama.cpp": for_llama_cpp.write,
    "tensorrt-llm": for_tensorrt_llm.write,
    "transformers": for_transformers.write,
}
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


def known_engine(name: str) -> str:
    """The engine's name as `ENGINE_RULES` spells it.

    Raises:
        UsageError: it is unknown.
    """
    known = ", ".join(ENGINE_RULES)
    engine = engine_called(name)
    if engine not in ENGINE_RULES:
        raise UsageError(
            f"unknown engine `{name}`",
            hint=did_you_mean(engine, ENGINE_RULES, f"the engines are {known}"),
        )
    return engine


def configure(plan: ServePlan, engine: str, version: str | None = None) -> EngineConfiguration:
    """The configuration for one version of an engine (default: the newest known).

    Raises:
        UsageError: the engine or the version is unknown, or cannot serve this.
    """
    engine = known_engine(engine)
    rules = ENGINE_RULES[engine]
    number = version_of(version)
    how = plan.speculation
    _check(plan, engine, rules)
    written = _WRITERS[engine](plan, number)
    name = rules.name if version is None else f"{rules.name} {version}"
    differences = [*plan.differences, *written.differences]
    made = how.quant == "none" or engine in level_of(how.quant).made_by
    if plan.draft is not None and not rules.converts and not made:
        form = level_of(how.quant).checkpoint or how.quant
        form = f"{'an' if form.startswith('8') else 'a'} {form}"
        differences.append(
            f"{rules.name} cannot quantize to {how.quant} while loading, as the run did: make "
            f"{form} checkpoint of the draft (llm-compressor, GPTQ or AWQ; --draft names it) and "
            "measure it; an unquantized draft is not the one recommended"
        )
    files = [name for name in (plan.target, plan.draft) if name and name.endswith(".gguf")]
    if files and not rules.reads_gguf and engine != plan.engine:
        head = how.model in files and how.method != "draft-model"
        differences.insert(
            0,
            f"{rules.name} {'takes no .gguf head' if head else 'was not tried with .gguf files'}: "
            f"give it what {' and '.join(f'`{name}`' for name in files)} "
            f"{'was' if len(files) == 1 else 'were'} made from, with --target and --draft, and "
            "measure there: other weights may be accepted otherwise",
        )
    # The most urgent first: what breaks requests, why not to trust the answer, what is not as
    # measured, what has to be set.
    to_do = [*plan.doubts, *differences]
    if plan.contexts and (cut := shorter_context(rules, *plan.contexts)):
        to_do.insert(0, f"{rules.name}: {cut}")
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
            f"{name} takes one draft length, here k = {how.k}; the best by concurrent "
            f"requests: {steps}. --concurrency N exports the best for N"
        )
    if rules.sampling is not None:
        to_do.append(f"{_to_send(plan)}; otherwise {rules.sampling}")
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
        if revision and side not in rules.pins
    ]
    text = written.text
    if not text.startswith("{"):  # JSON, alone of the formats, has no comments
        text = "\n".join([*map(_COMMENT.fill, differences), text])
    return EngineConfiguration(text, written.command, tuple(to_do))


def _check(plan: ServePlan, engine: str, rules: EngineRules) -> None:
    """Raise a UsageError if no version of the engine can serve the plan."""
    sizes, drafts, measured_on = plan.vocabularies, plan.speculation, plan.engine
    if sizes and (refusal := engine_refusal(rules, *sizes, translated=plan.other_ids)):
        raise UsageError(
            f"{rules.name} refuses this pair: {refusal}",
            hint="`draftbench check` says which engines take it",
        )
    if misread := plan.misread.get(engine):
        raise UsageError(
            f"{rules.name} would use this head differently from the run: it {misread}",
            hint="write what config.json leaves open into it and sweep again, or export for "
            "another engine: `draftbench check` lists them",
        )
    if plan.survival and not rules.synthetic:
        can = ", ".join(name for name, each in ENGINE_RULES.items() if each.synthetic)
        raise UsageError(
            f"{rules.name} plays back no measured acceptance",
            hint=f"--synthetic is for {can}",
        )
    if drafts.raw is not None and engine != measured_on:
        raise UsageError(
            f"spec:FILE.json is written for {measured_on}: it cannot be exported for {rules.name}",
            hint=f"use --engine {measured_on}, or sweep on {rules.name}",
        )
    check_method(engine, drafts)


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
