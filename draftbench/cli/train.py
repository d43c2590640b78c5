"""`draftbench train`: the forecast of what fitting a draft gains, the training, and the proof."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from draftbench.acceptance.intervals import Estimate
from draftbench.cli.flags import RunArgument, read
from draftbench.cli.invocation import command
from draftbench.cli.output import QUIET, TextOutput
from draftbench.cli.signals import resumable
from draftbench.drafts.kinds import kind_drafting
from draftbench.errors import UsageError
from draftbench.flags import flag, in_models
from draftbench.planner.caveat_kinds import ACCEPTANCE
from draftbench.planner.doubts import about_acceptance
from draftbench.report.text import Section, TableCell, counted, duration, signed, with_ends
from draftbench.run_folder.key import request_key
from draftbench.training.outcome import Forecast, Gain, Proof, TrainingAnswer, Verdict
from draftbench.training.settings import TrainingSettings


def train(
    *,
    run: RunArgument = None,
    draft: str = flag(
        ...,
        "The draft to train: a name of the run, a folder or a hub id; a head is eagle3:HEAD.",
        "MODEL",
    ),
    out: Path | None = flag(
        None, "The new folder for the trained draft; needed unless --forecast.", "FOLDER"
    ),
    forecast: bool = flag(
        False,
        "Only forecast the gain: in about a tenth of the training's time, more with few requests.",
    ),
    anyway: bool = flag(
        False, "Train even if the forecast advises against it, cannot tell or cannot be made."
    ),
    other: Path | None = flag(
        None, "Also prove it on the traffic of this run of the same target.", "RUN"
    ),
    device: str | None = in_models(
        None,
        "The device to train on: cpu or cuda (default: the GPU, if there is one).",
        "DEVICE",
    ),
    settings: TrainingSettings,
    output: TextOutput,
    quiet: bool = QUIET,
) -> int:
    """Fine-tune a draft on the traffic of a run: forecast what that gains, train, and prove it on
    requests that the training never saw. The draft itself is never changed.

    draftbench train results/runs/prod --draft ./draft --forecast
    draftbench train results/runs/prod --draft ./draft --out ./draft-prod
    """
    if out is None and not forecast:
        raise UsageError(
            "no folder for the trained draft",
            hint="add `--out ./NAME`, or ask for the forecast alone with `--forecast`",
        )
    if out is not None and out.exists():
        raise UsageError(f"`{out}` exists", hint="take a new folder for --out")
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(
            f"there is no folder `{out.absolute().parent}`", hint="create it, or take another --out"
        )
    observed, key = read(run), request_key()
    from draftbench.models.source import quiet_libraries

    quiet_libraries()  # some print when they are imported
    from draftbench.training.examples import examples_of, other_traffic

    examples = examples_of(observed, key)  # refuses too few before libraries for training load
    from draftbench.cli.progress import TerminalWatcher
    from draftbench.training import course
    from draftbench.training.forecast import part_steps
    from draftbench.training.plan import plan_training

    with TerminalWatcher(quiet=quiet) as watcher, contextlib.ExitStack() as stack:
        if out is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            work = course.work_folder(out)  # where an interrupted training resumes
            stack.enter_context(resumable(work / course.QUESTION))
        watcher.note(
            f"{counted(len(examples.train), 'response')} to train on, {len(examples.validation)} "
            f"for validation, {len(examples.test)} to prove it on"
        )
        elsewhere = () if other is None else other_traffic(read(other), observed, examples)
        plan = plan_training(observed, examples, draft, settings, device)
        doubtful = [
            doubt.text
            for doubt in about_acceptance(observed)
            if doubt.decisive and doubt.kind in ACCEPTANCE and doubt.concerns(plan.candidate)
        ]
        if doubtful and not anyway:
            raise UsageError(
                f"acceptance, which forecast and proof rest on, is doubtful: {doubtful[0]}",
                hint="sweep again, or train all the same with --anyway",
            )
        if out is not None:
            course.check_apart(plan, out)
        with course.begun(plan, work, key):
            blind = anyway and not forecast and not part_steps(len(examples.train), settings)
            made = None if blind else course.forecast_once(plan, work, watcher)
            answer = TrainingAnswer(forecast=made)
            if out and not forecast and (anyway or made is None or made.expects_it):
                watcher.note(_forecast(draft, made).title if made else "no forecast: too few steps")
                training = course.train(plan, made, work, out, key, watcher, elsewhere)
                answer = TrainingAnswer(made, training, kept=training.proof.better)
    output.show(answer, sections(answer, draft, out))
    if answer.training or made is None:
        return 0 if answer.kept else 1
    return 0 if made.expects_it else 3 if made.verdict == "cannot tell" else 1


def sections(answer: TrainingAnswer, draft: str, out: Path | None) -> list[Section]:
    """The forecast or, after the training, its proof."""
    if answer.training is None:
        assert answer.forecast is not None
        return [_forecast(draft, answer.forecast)]
    named = f"{kind_drafting(draft).written}{out}"
    proof, other = answer.training.proof, answer.training.other
    notes = list(_outcome(proof, answer.forecast, named))
    found = [_proof(draft, proof, "requests that it never saw", notes)]
    return [*found, _proof(draft, other, "requests of the other traffic")] if other else found


def _rate(draft: str) -> str:
    """What the rate is called: a head has no α by position."""
    return "α" if kind_drafting(draft).is_model else "acceptance of the first token"


_VERDICTS: dict[Verdict, str] = {
    "worth it": "Worth training",
    "may be worth it": "May be worth training",
    "cannot tell": "Cannot tell if training pays",
    "not worth it": "Not worth training",
}
# What is said of a gain in speed, and of one in tokens per round.
_GAINS: dict[Gain, tuple[str, str]] = {
    "more": ("is faster", "yields more"),
    "perhaps more": ("may be faster", "may yield more"),
    "no more": ("is no faster", "yields no more"),
    "less": ("is slower", "yields fewer"),
}
_BEATS = {"yes": "beats", "perhaps": "may beat", "no": "does not beat"}


def _forecast(draft: str, found: Forecast) -> Section:
    """What the training will bring."""
    verdict, rate, gain = _VERDICTS[found.verdict], _rate(draft), found.gain
    value, low, high = (found.rate + each for each in (gain.value, gain.low, gain.high))
    if found.before and found.after and found.fastest:
        becomes = f"{found.before.speedup.value:.2f}× → {with_ends(found.after.speedup, '×')}"
        title = f"{verdict}: `{draft}` {becomes} at k = {found.after.k}"
        if found.fastest > found.before.speedup.value:
            title += f"; the run's fastest is {found.fastest:.2f}×"
    else:
        reached = with_ends(Estimate(value, low, high))
        title = f"{verdict}: {rate} of `{draft}` {found.rate:.2f} → {reached}"
    seen = ", ".join(f"{part.rate:.3f} after {part.share:.0%}" for part in found.parts)
    notes = [
        f"{rate} on {found.requests} held-out requests: {found.rate:.3f} before the training, "
        f"{seen} of it, and {value:.3f} ({low:.3f}–{high:.3f}) forecast after all of it",
        f"all of the training, {found.tokens:,} tokens an epoch, takes about "
        f"{duration(found.seconds)} on {found.device}",
    ]
    if found.after is None:
        notes.append("the run did not time this draft, so the effect on its speed is unknown")
    if found.verdict == "cannot tell":
        notes.append("only the training can tell: `--anyway` trains, and proves what it gained")
    return Section(title, notes=notes)


def _proof(draft: str, proof: Proof, where: str, notes: Sequence[str] = ()) -> Section:
    """What the training brought."""
    of_speed, of_tokens = _GAINS[proof.verdict]
    verdict = of_speed if proof.faster else f"{of_tokens} tokens per round"
    title = f"The trained draft {verdict} on {proof.requests} {where}"
    of_round = f"tokens per round, k = {proof.k}"
    rows: list[list[TableCell]] = [
        [name, each.original, each.trained, signed(each.difference)]
        for name, each in ((_rate(draft), proof.rate), (of_round, proof.tokens_per_round))
    ]
    if proof.before and proof.after and proof.faster:
        faster = proof.faster
        value, low, high = (f"{e - 1:+.0%}" for e in (faster.value, faster.low, faster.high))
        speeds = proof.before.speedup, proof.after.speedup
        rows.append(["speed-up", *speeds, f"{value} ({low} to {high})"])
    return Section(title, ["", "original", "trained", "difference"], rows, notes)


def _outcome(proof: Proof, forecast: Forecast | None, out: str) -> Iterator[str]:
    """What to make of the proof; `out` names the trained draft."""
    if proof.after and proof.beats_fastest and forecast and forecast.fastest:
        reached, beats = proof.after.speedup.value, _BEATS[proof.beats_fastest]
        yield f"with {reached:.2f}× it {beats} the run's fastest, {forecast.fastest:.2f}×"
    if forecast is None:
        yield "there was no forecast: too few steps to tell"
    else:
        held = forecast.held(proof.rate.difference.value)
        came = {True: "held", False: "did not hold", None: "did not promise a gain"}[held]
        yield f"the forecast of {signed(forecast.gain)} {came}"
    again = command("sweep", "--target", "TARGET", "--drafts", out)
    match proof.verdict:
        case "more":
            yield f"a draft like any other: {again} …"
        case "perhaps more":
            yield f"it may be better: compare both on newer requests before you serve it: {again} …"
        case _:
            yield "it is no better than the original, and was not kept"
