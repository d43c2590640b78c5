"""`draftbench train`: what fitting a draft to a run's traffic gains, the training, the proof."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from draftbench.acceptance.intervals import Estimate
from draftbench.cli.flags import RunArgument, read
from draftbench.cli.invocation import command
from draftbench.cli.output import QUIET, TextOutput, width
from draftbench.cli.signals import resumable
from draftbench.errors import UsageError
from draftbench.flags import complete_devices, flag, in_models
from draftbench.records import to_json
from draftbench.report.terminal.text import (
    SCREEN_COLUMNS,
    Cell,
    Section,
    counted,
    duration,
    render_sections,
    with_ends,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.key import request_key
from draftbench.training.outcome import Compared, Forecast, Proof, TrainingAnswer
from draftbench.training.settings import TrainingSettings


def train(
    *,
    run: RunArgument = None,
    draft: str = flag(..., "The draft to train: a name of the run, a folder or a model.", "MODEL"),
    out: Path | None = flag(None, "The folder to write the trained draft to.", "FOLDER"),
    forecast: bool = flag(False, "Only forecast what training would gain: a tenth of its time."),
    anyway: bool = flag(False, "Train even if the forecast says that it is not worth it."),
    device: str | None = in_models(
        None,
        "The device to train on: cpu, cuda or cuda:1 (default: the GPU, if there is one).",
        "DEVICE",
        autocompletion=complete_devices,
    ),
    settings: TrainingSettings,
    output: TextOutput,
    quiet: bool = QUIET,
) -> int:
    """Fit a draft to the traffic of a run: forecast what that gains, train, and prove it on
    requests that the training never saw. The draft itself is never changed.

    draftbench train results/runs/prod --draft ./draft --forecast
    draftbench train results/runs/prod --draft ./draft --out ./draft-prod
    """
    if out is None and not forecast:
        raise UsageError(
            "no folder for the trained draft",
            hint="add `--out ./NAME`, or ask for the forecast alone with `--forecast`",
        )
    observed, key = read(run), request_key()
    assert observed.path is not None
    from draftbench.models.source import quiet_libraries

    quiet_libraries()  # some speak as they are imported
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.training import course
    from draftbench.training.examples import examples_of
    from draftbench.training.plan import plan_training

    if out is not None:
        course.check_place(out)
    with TerminalWatcher(quiet=quiet) as watcher, _work_folder(out) as work:
        examples = examples_of(observed, RunFolder(observed.path), key)
        watcher.note(
            f"{counted(len(examples.train), 'response')} to train on, {len(examples.stop)} to stop "
            f"by, {len(examples.prove)} to prove it on"
        )
        plan = plan_training(observed, examples, draft, settings, device)
        course.begin(plan, work, key)
        answer = TrainingAnswer(forecast=course.forecast_once(plan, work, watcher))
        if not forecast and out is not None and (anyway or answer.forecast.worth_it):
            watcher.note(_forecast(draft, answer.forecast).text(SCREEN_COLUMNS))
            training, kept = course.train(plan, answer.forecast, work, out, key, watcher)
            answer = TrainingAnswer(forecast=answer.forecast, training=training, kept=kept)
    output.write(render(answer, draft, out, output.style, width()))
    done = answer.kept if answer.training else answer.forecast.worth_it
    return 0 if done else 1


@contextlib.contextmanager
def _work_folder(out: Path | None) -> Iterator[Path]:
    """Where an interrupted training resumes; of a forecast alone a temporary folder."""
    from draftbench.training.course import QUESTION, work_folder

    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        work = work_folder(out)
        with resumable(work / QUESTION):
            yield work


def render(answer: TrainingAnswer, draft: str, out: Path | None, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(answer)
    sections = [_forecast(draft, answer.forecast)]
    if answer.training is not None:
        sections.append(_proof(answer, answer.training.proof, str(out)))
    return render_sections(sections, style, min(width, SCREEN_COLUMNS))


def _forecast(draft: str, found: Forecast) -> Section:
    verdict = "Worth training" if found.worth_it else "Not worth training"
    now = Estimate(*[found.rate] * 3)
    reached = Estimate(*(found.rate + each for each in _values(found.gain)))
    if found.before and found.after and found.fastest:
        becomes = f"{found.before.speedup.value:.2f}× → {with_ends(found.after.speedup, '×')}"
        title = f"{verdict}: `{draft}` {becomes} at k = {found.after.k}"
        if found.fastest > found.before.speedup.value:
            title += f"; the fastest of the run is {found.fastest:.2f}×"
    else:
        title = f"{verdict}: α of `{draft}` {now.value:.2f} → {with_ends(reached)}"
    seen = ", ".join(f"{part.rate:.3f}" for part in found.parts)
    shares = ", ".join(f"{part.share:.2%}" for part in found.parts)
    notes = [
        f"α {now.value:.3f} → {reached.value:.3f} ({reached.low:.3f}–{reached.high:.3f}), by "
        f"training on {shares} of the responses: {seen} on {found.requests} held-out requests",
        f"training on all of them, {found.tokens:,} tokens, takes about "
        f"{duration(found.seconds)} on {found.device}",
    ]
    if found.after is None:
        notes.append("the run did not time this draft, so what that does to its speed is unknown")
    return Section(title, notes=notes)


def _proof(answer: TrainingAnswer, proof: Proof, out: str) -> Section:
    rate, gain = proof.rate, proof.rate.difference
    better = "accepted more often" if gain.low > 0 else "not surely accepted more often"
    title = f"The trained draft is {better} on {proof.requests} requests that it never saw"
    rows: list[list[Cell]] = [
        ["α", rate.original, rate.trained, _signed(rate)],
        [
            f"tokens per round, k = {proof.k}",
            proof.tokens_per_round.original,
            proof.tokens_per_round.trained,
            _signed(proof.tokens_per_round),
        ],
    ]
    if proof.before and proof.after:
        before, after = proof.before.speedup, proof.after.speedup
        rows.append(["speed-up", before, after, f"{after.value / before.value - 1:+.0%}"])
    forecast = answer.forecast.gain
    held = forecast.low <= gain.value <= forecast.high
    notes = [
        f"forecast of α: {forecast.value:+.3f} ({forecast.low:+.3f} to {forecast.high:+.3f}); it "
        f"became {gain.value:+.3f}, {'inside' if held else 'outside'}"
    ]
    if answer.kept:
        again = command("sweep", "--target", "TARGET", "--drafts", out)
        notes.append(f"it is in `{out}`, a draft like any other: {again} …")
    else:
        notes.append(
            "no weights were better than the original's where that was looked at: none kept"
        )
    return Section(title, ["", "original", "trained", "difference"], rows, notes)


def _signed(figure: Compared) -> str:
    value, low, high = _values(figure.difference)
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def _values(figure: Estimate) -> tuple[float, float, float]:
    return figure.value, figure.low, figure.high
