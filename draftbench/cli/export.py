"""`draftbench export`: a run's recommendation → the configuration of a serving engine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from draftbench.cli.flags import COSTS, RunArgument, candidate_named, read, with_costs
from draftbench.cli.output import ResultFile, note, width
from draftbench.engines.every import ENGINES, listed
from draftbench.errors import UsageError
from draftbench.export.configurations import configure, known_engine
from draftbench.export.feeds import FEEDS, Feed
from draftbench.export.serve_plan import answer_for, rule_left_out, serve_plan
from draftbench.flags import flag
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.report.text import SCREEN_COLUMNS, Section, continued, counted, paragraph, printable
from draftbench.run_folder.run import Run

_SYNTHETIC = "; ".join(
    ", ".join(key for key, engine in ENGINES.items() if engine.synthetic == way) + words
    for way, words in (("by position", ""), ("at their mean", " at their mean"))
)
# How many notes are printed without --all.
SHOWN = 5


def export(
    *,
    run: RunArgument = None,
    engine: str = flag(
        ...,
        f"The engine: {listed(ENGINES, 'or')}; or a tool that takes measured figures: "
        f"{listed(FEEDS, 'or')}.",
        "ENGINE",
        autocompletion=lambda incomplete: [*ENGINES, *FEEDS],
    ),
    engine_version: str | None = flag(
        None,
        "The engine's version, e.g. 0.26; for llama.cpp a build, e.g. b11368.",
        "VERSION",
    ),
    target: str | None = flag(
        None, "What the engine calls the target (default: as swept).", "MODEL"
    ),
    draft: str | None = flag(None, "What the engine calls the draft (default: as swept).", "MODEL"),
    candidate: str | None = flag(
        None,
        "Export this candidate, DRAFT[:QUANT], at its best k (default: the recommended one).",
        "NAME",
    ),
    anyway: bool = flag(
        False, "Export the candidate that ranks first, even if it is not recommended."
    ),
    synthetic: bool = flag(
        False,
        "Make the engine accept drafts at the measured rates, so that any draft can be timed "
        f"({_SYNTHETIC}).",
    ),
    everything: bool = flag(
        False, f"Print every note, not only the {SHOWN} most urgent.", names=("--all",)
    ),
    about: bool = flag(
        False, "Print which versions the engine's rules were read from; needs no RUN."
    ),
    options: DecisionOptions,
    costs: Path | None = COSTS,
    output: ResultFile,
) -> int:
    """Print the engine's configuration for what a run recommends.

    draftbench export results/runs/RUN --engine vllm --draft org/small
    draftbench export results/runs/RUN --engine vllm --costs vllm.yaml
    draftbench export results/runs/RUN --engine llama.cpp
    draftbench export --engine sglang --about
    """
    if (feed := FEEDS.get(engine)) is not None:
        if target or draft or synthetic or engine_version:
            raise UsageError(
                f"--target, --draft, --synthetic and --engine-version are not for {feed.name}",
                hint="it takes figures; --candidate and --concurrency choose which",
            )
        return _fed(feed, read(run), candidate, options, output)
    known = known_engine(engine)
    if about:
        rows = [[x.rule, f"{known.name} {x.read}", x.tried or "nothing"] for x in known.sources]
        head = ["rule", "read in", "run with"]
        section = Section(f"What is known of {known.name}", head, rows, [known.form])
        output.write(section.text(width()))
        return 0
    observed = read(run)
    options = with_costs(options, costs, observed)
    answer = answer_for(known, observed, options, synthetic=synthetic)
    wanted = None if candidate is None else candidate_named(observed, candidate)
    plan = serve_plan(
        answer,
        observed,
        candidate=wanted,
        target=target,
        draft=draft,
        anyway=anyway,
        synthetic=synthetic,
    )
    picked = answer.choice or answer.leader
    exported = wanted or (picked and picked.candidate)
    if exported and draft in {each.draft for each in observed.candidates} - {exported.draft}:
        raise UsageError(
            f"`{draft}` is a draft of the run, and what is exported is {exported}",
            hint=f"export it with --candidate {draft}; --draft says how the engine names the draft",
        )
    configuration = configure(plan, known.key, engine_version)
    output.write(configuration.text)
    if configuration.command:
        named, label = configuration.command, "serve:"
        if output.output != "-":
            named = named.replace("FILE", shlex.quote(output.output))
        elif configuration.pasted:
            named = configuration.pasted
        else:
            label = "serve, with -o FILE:"
        note("\n".join(continued(printable(named), label, min(width(), SCREEN_COLUMNS))))
    borrowed = options.costs.caveats if options.costs else ()
    to_do = configuration.to_do
    if exported and not synthetic:
        to_do += rule_left_out(known, exported, observed, options)
    # First comes the note that costs were not measured in this run.
    remarks = (*borrowed[:1], *to_do, *borrowed[1:])
    urgent = len(borrowed[:1]) + len(to_do[:SHOWN])
    shown = remarks if everything else remarks[:urgent]
    for remark in shown:
        note(paragraph(f"note: {remark}", min(width(), SCREEN_COLUMNS)))
    if hidden := len(remarks) - len(shown):
        note(f"… {counted(hidden, 'more note')}: --all")
    return 0


def _fed(
    feed: Feed, run: Run, named: str | None, options: DecisionOptions, output: ResultFile
) -> int:
    """A measured figure for a tool, of the candidate that is named or ranks first."""
    answer = recommend(run, replace(options, stops=()))
    wanted = None if named is None else candidate_named(run, named)
    best = answer.choice or answer.leader if wanted is None else answer.best_of(wanted)
    if best is None:
        raise UsageError(
            f"no k of {wanted or 'any draft'} is known to be best, so there is nothing to export",
            hint="`draftbench recommend` says why",
        )
    fed = feed.write(run, best.candidate, best.k)
    output.write(fed.text)
    doubts = [f"the run does not recommend it: its answer is `{answer.decision.replace('_', ' ')}`"]
    doubts = [] if best == answer.choice else doubts
    for remark in (*doubts, *fed.notes, f"the format is that of {feed.name} {feed.read}"):
        note(paragraph(f"note: {remark}", min(width(), SCREEN_COLUMNS)))
    return 0
