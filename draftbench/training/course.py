"""A training from its forecast to its checkpoint.

An interrupted training resumes from a hidden folder beside that of the trained draft. It holds a
hash of what was asked, the forecast, the trainer's checkpoints and, until it is proved and renamed,
the trained draft.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import msgspec

import draftbench
from draftbench.errors import UsageError
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Record, to_json
from draftbench.run_folder.folder import FolderLock
from draftbench.run_folder.key import keyed_hash
from draftbench.run_folder.manifest import portable
from draftbench.safe_files import write_whole
from draftbench.training.examples import tokens_of
from draftbench.training.fit import Progress, fit, writing
from draftbench.training.forecast import first_parts, forecast
from draftbench.training.held_out import prove
from draftbench.training.outcome import Forecast, Proof, Split, Training
from draftbench.training.plan import Plan

REPORT = "training.json"
QUESTION, FORECAST, CHECKPOINTS = "question", "forecast.json", "checkpoints"
TRAINED = "trained"


class _Finished(Record, frozen=True):
    """A finished training, before its proof."""

    learning_rate: float
    looks: tuple[tuple[int, float], ...]  # steps, and the rate of acceptance after them
    seconds: float


def work_folder(out: Path) -> Path:
    """The hidden folder of a training that is under way."""
    return out.parent / f".{out.name}.training"


def check_apart(plan: Plan, out: Path) -> None:
    """Raise a UsageError if a checkpoint would lie in the draft's or the target's folder."""
    for model in (plan.draft, plan.target):
        if model.local and out.resolve().is_relative_to(Path(model.spec).expanduser().resolve()):
            raise UsageError(
                f"`{out}` is inside the folder of `{model.name}`, which training never changes",
                hint="take a folder beside it for --out",
            )


@contextlib.contextmanager
def begun(plan: Plan, work: Path, key: bytes) -> Iterator[None]:
    """Hold the work folder of a training, so that no other process writes to it. A forecast made
    with other data or settings is dropped.

    Raises:
        UsageError: weights were already trained with other data or settings.
        RunFolderError: it cannot be written, or another process writes to it.
    """
    # Everything that the weights depend on besides the machine.
    asked = plan.draft.fingerprint(), _splits(plan, key), asdict(plan.settings), plan.device
    digest, question = keyed_hash(key, repr(asked).encode()).encode(), work / QUESTION
    with writing(work):
        work.mkdir(exist_ok=True)
    with FolderLock(work):
        if question.exists() and question.read_bytes() != digest:
            if any(work.glob(f"{CHECKPOINTS}/*")):
                raise UsageError(
                    f"`{work}` holds a training with other data, settings or another draft",
                    hint="take another --out, or delete that folder",
                )
            (work / FORECAST).unlink(missing_ok=True)
        with writing(work):
            write_whole(question, digest)
        yield


def forecast_once(plan: Plan, work: Path, progress: Progress) -> Forecast:
    """The forecast, made now or kept from an earlier start."""
    kept = work / FORECAST
    # The forecast of another version of draftbench is made again.
    with contextlib.suppress(FileNotFoundError, msgspec.ValidationError):
        return msgspec.json.decode(kept.read_bytes(), type=Forecast)
    made = forecast(plan, first_parts(plan, work, progress))
    with writing(work):
        write_whole(kept, to_json(made).encode())
    return made


def trained_once(plan: Plan, work: Path, progress: Progress) -> _Finished:
    """Train and write the best weights, unless an earlier start has done so."""
    done = work / "looked.json"
    if done.exists():
        return msgspec.json.decode(done.read_bytes(), type=_Finished)
    draft, start = plan.in_training(), time.monotonic()

    def look() -> float:
        return plan.now(draft, work / "look", plan.examples.validation).rate.value or 0.0

    looks = fit(draft, plan.examples.train, plan.settings, work / CHECKPOINTS, progress, look)
    rate, seconds = plan.settings.rate_for(draft.width), time.monotonic() - start
    finished = _Finished(rate, tuple(looks), seconds)
    with writing(work):
        draft.save(work / TRAINED)
        write_whole(done, msgspec.json.encode(finished))
    return finished


def train(
    plan: Plan,
    made: Forecast | None,
    work: Path,
    out: Path,
    key: bytes,
    progress: Progress,
    other: Sequence[ScoredResponse] = (),
) -> Training:
    """Train on all of the data and prove the result, on `other` traffic too. If it is better, it is
    in `out` afterwards.
    """
    settings, trained = plan.settings, work / TRAINED
    finished = trained_once(plan, work, progress)
    progress.note("proving it on requests that it never saw")
    libraries = ["torch", "transformers", *["peft"] * (settings.lora is not None)]
    versions = {name: metadata.version(name) for name in libraries}

    def proof(responses: Sequence[ScoredResponse]) -> Proof:
        original, fitted = (plan.along(each, responses) for each in (plan.draft.spec, trained))
        return prove(original, fitted, plan.speeds, plan.run.manifest.question.ks)

    training = Training(
        draft=portable(plan.draft.spec),
        fingerprint=plan.draft.fingerprint(),
        target=plan.run.manifest.question.target,
        run=plan.run.manifest.run,
        **_splits(plan, key),
        lora=settings.lora,
        epochs=settings.epochs,
        learning_rate=finished.learning_rate,
        batch=settings.batch,
        seed=settings.seed,
        looks=finished.looks,
        seconds=finished.seconds,
        forecast=made,
        proof=proof(plan.examples.test),
        other=proof(other) if other else None,
        packages={"draftbench": draftbench.__version__, **versions},
    )
    if training.proof.better:
        with writing(work):
            write_whole(trained / REPORT, to_json(training).encode())
        if out.exists():  # renaming would replace an empty folder
            raise UsageError(
                f"`{out}` appeared during the training; the trained draft is kept in `{trained}`",
                hint=f"move `{out}` away, and repeat the command: nothing is trained again",
            )
        with writing(out):
            trained.rename(out)
    shutil.rmtree(work)
    return training


def _splits(plan: Plan, key: bytes) -> dict[str, Split]:
    splits = {}
    for name in ("train", "validation", "test"):
        responses = getattr(plan.examples, name)
        texts = [(tuple(r.prompt.tokens), tuple(r.tokens)) for r in responses]
        requests = len({r.trajectory.request for r in responses})
        digest = keyed_hash(key, repr(texts).encode())
        splits[name] = Split(requests, tokens_of(responses), digest)
    return splits
