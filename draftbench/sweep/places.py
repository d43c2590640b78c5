"""Where a worker runs: in this process, or in a child (on a cluster: `ray_cluster.py`).

A worker sends one message at a time and waits for the answer, so nothing is written or drawn while
it times something. A child whose parent is gone ends at its next message.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import msgspec

from draftbench.decoder.device import card_names, set_threads
from draftbench.errors import DraftbenchError, ModelError
from draftbench.models.source import ModelSource
from draftbench.records import WorkerFacts
from draftbench.run_folder.manifest import environment
from draftbench.sweep.options import Watcher
from draftbench.sweep.prepared import Prepared
from draftbench.sweep.worker import Keep, Task, Worker

# How long a child that closed its pipe may take to end, before it is killed.
_LAST_SECONDS = 5.0
# The GPUs that a process may use.
_SEEN = "CUDA_VISIBLE_DEVICES"

# A worker's state, with its values: `ready` for a task, with its machine and that machine's name;
# `begin` once the target is loaded; `done`; `fatal`. Or a call to run in the parent, with its
# arguments: `keep`, or a method of the watcher.
Message = tuple[str, tuple[Any, ...]]


class WorkerDiedError(Exception):
    """A worker ended without saying why; `how` continues a sentence that begins with who it was."""

    def __init__(self, how: str, hint: str) -> None:
        super().__init__(how)
        self.how, self.hint = how, hint

    def error(self, who: str) -> ModelError:
        return ModelError(f"{who} {self.how}", hint=self.hint)


class Place(Protocol):
    """A worker, as seen by the process that keeps what it measures."""

    def reply(self, value: Task | None) -> None:
        """Reply to its last message: with a task if it is ready or done."""
        ...

    def hear(self) -> Message | None:
        """Its next message; None if there is none yet.

        Raises:
            WorkerDiedError: there will be none.
        """
        ...

    def end(self) -> None:
        """Stop it, whatever it is doing."""
        ...

    @staticmethod
    def wait(places: Sequence[Any], seconds: float) -> None:
        """Wait until one of these places has a message, for at most this many seconds."""
        ...


class Here:
    """A worker in this process; it does a task within the call that hands it over."""

    def __init__(self, prepared: Prepared, keep: Keep, watcher: Watcher) -> None:
        self._worker = Worker(prepared, keep, watcher)
        self._task: Task | None = None
        self._message: Message | None = ("ready", (None, ""))

    def reply(self, value: Task | None) -> None:
        if value is not None:
            self._worker.prepare(value)
            self._task, self._message = value, ("begin", ())
        elif self._task is not None:
            task, self._task = self._task, None
            self._message = "done", (self._worker.take(task),)

    def hear(self) -> Message | None:
        message, self._message = self._message, None
        return message

    def end(self) -> None:
        pass

    @staticmethod
    def wait(places: Sequence[Any], seconds: float) -> None:
        pass


class Child:
    """A worker in a process of its own, so that a crash in native code, the kernel's out-of-memory
    killer or a pass that never ends costs a task and not the sweep.

    Args:
        card: the GPU that it sees, of those that this process sees; None: all.
    """

    def __init__(self, prepared: Prepared, card: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(prepared, theirs), daemon=True)
        seen = os.environ.get(_SEEN)
        if card is not None:
            os.environ[_SEEN] = seen.split(",")[card] if seen else str(card)
        self._process.start()
        if card is not None:
            os.environ.pop(_SEEN)
            os.environ.update({_SEEN: seen} if seen else {})
        theirs.close()

    def reply(self, value: Task | None) -> None:
        with suppress(OSError):  # `hear` says how it ended
            self._pipe.send(value)

    def hear(self) -> Message | None:
        try:
            if self._pipe.poll():
                return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_LAST_SECONDS)
            self._process.kill()
            self._process.join()
            raise self._died() from None
        # A process that the child left behind may hold the pipe open for ever.
        if self._process.is_alive() or self._pipe.poll():
            return None
        raise self._died()

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    @staticmethod
    def wait(places: Sequence[Any], seconds: float) -> None:
        signs = [sign for each in places for sign in (each._pipe, each._process.sentinel)]
        wait(signs, seconds)

    def _died(self) -> WorkerDiedError:
        code = self._process.exitcode
        how = f"was ended with exit code {code}"
        hint = "draftbench itself never exits like this: suspect the code that a checkpoint brings"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
            hint = "a crash in native code: try another quantization, dtype or device"
        if code == -signal.SIGKILL:
            hint = "the kernel's out-of-memory killer does this: a smaller model may fit"
        return WorkerDiedError(how, hint)


def for_workers(prepared: Prepared) -> Prepared:
    """What a worker elsewhere knows about a sweep: no prompts, which come with its tasks, and none
    of the configurations and tokenizers read so far, since a checkpoint's code cannot be pickled.
    Folders are absolute, so that another machine finds them.
    """

    def anew(source: ModelSource) -> ModelSource:
        spec = str(Path(source.spec).expanduser().absolute()) if source.local else source.spec
        return ModelSource(spec, prepared.options.trust)

    return replace(
        prepared,
        target=anew(prepared.target),
        drafts={name: anew(source) for name, source in prepared.drafts.items()},
        prompts=(),
        traffic=msgspec.structs.replace(prepared.traffic, first=None),
    )


class _Parent:
    """The parent, as seen by its child: every method runs in the parent."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __getattr__(self, what: str) -> Callable[..., Any]:
        return partial(self._ask, what)

    def _ask(self, what: str, *values: object) -> Any:
        """Send, and wait for the answer. If the parent is gone, exit: an error would be blamed on
        the candidate.
        """
        try:
            self._pipe.send((what, values))
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise SystemExit(1) from error


def work(prepared: Prepared, pipe: Connection) -> None:
    """The child: one task after the other."""
    parent: Any = _Parent(pipe)
    try:
        set_threads(prepared.manifest.environment.threads)
        worker = Worker(prepared, parent.keep, parent)
        facts = WorkerFacts(
            process=worker.process,
            node=hashlib.sha256(platform.node().encode()).hexdigest()[:8],
            environment=environment(
                prepared.manifest.environment.threads, card_names(prepared.build.device)
            ),
        )
        task = parent.ready(facts, platform.node())
        while True:
            worker.prepare(task)
            parent.begin()
            task = parent.done(worker.take(task))
    except DraftbenchError as error:
        parent.fatal(type(error).__name__, error.message, error.hint)
    except KeyboardInterrupt:
        pass  # the parent was interrupted too, and says so
