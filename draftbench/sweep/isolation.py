"""Each candidate in a separate process, so that a crash in native code, the kernel's
out-of-memory killer or a pass that never ends costs one candidate and not the sweep.

The child measures and sends its records through a pipe; the parent, which loads no model and holds
the run folder's lock, writes them. A child whose parent is gone ends at its next record. Every
child loads the target again: that is the price.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from draftbench.decoder.device import set_threads
from draftbench.errors import DraftbenchError, ModelError, RunFolderError, TrafficError
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, Failure
from draftbench.run_folder.folder import RunFolder
from draftbench.sweep.failures import failure, timed_out
from draftbench.sweep.options import Watcher
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.resume import SweepState
from draftbench.sweep.worker import Keep, Worker

_LOOK_SECONDS = 5.0

# What can end a child as a whole, by name: an exception with a hint does not pickle.
_FATAL: dict[str, type[DraftbenchError]] = {
    kind.__name__: kind for kind in (ModelError, TrafficError, RunFolderError)
}


class IsolatedWorker:
    """A `Worker` in a new process for every candidate."""

    def __init__(self, prepared: Prepared, folder: RunFolder, keep: Keep, watcher: Watcher) -> None:
        self.folder, self.keep, self.watcher = folder, keep, watcher
        # Without configurations and tokenizers read so far: a checkpoint's code does not pickle.
        trust = prepared.options.trust
        self.prepared = replace(
            prepared,
            target=ModelSource(prepared.target.spec, trust),
            drafts={name: ModelSource(s.spec, trust) for name, s in prepared.drafts.items()},
        )
        self._in_child(None)

    def attempt(self, candidate: Candidate) -> Failure | None:
        """Measure one candidate in a separate process."""
        try:
            return self._in_child(candidate)
        except ModelError as error:
            return failure(candidate, error)

    def _in_child(self, candidate: Candidate | None) -> Failure | None:
        """Let a child measure a candidate, or, given none, write the target's responses."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (self.prepared, self.folder, candidate, theirs)
        child = context.Process(target=_work, args=arguments, daemon=True)
        child.start()
        theirs.close()
        try:
            return self._serve(ours, child)
        except (EOFError, ConnectionError):
            child.join()
            raise _died("its process" if candidate else "the target's process", child) from None
        finally:
            child.kill()
            child.join()
            ours.close()

    def _serve(self, pipe: Connection, child: BaseProcess) -> Failure | None:
        """Do what the child asks until it is done."""
        limit, deadline = self.prepared.options.candidate_timeout, math.inf
        while True:
            while not pipe.poll(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise timed_out(limit)
                # A process that the child left behind may hold the pipe open for ever.
                if not child.is_alive() and not pipe.poll():
                    raise EOFError
            match pipe.recv():
                case "done", (failed,):
                    return failed
                case "fatal", (kind, message, hint):
                    raise _FATAL.get(kind, ModelError)(message, hint=hint)
                case "begin", ():
                    deadline = math.inf if limit is None else time.monotonic() + limit
                case "keep", (records, private):
                    self.keep(records, private)
                case what, values:
                    getattr(self.watcher, what)(*values)
            pipe.send(None)


def _died(who: str, child: BaseProcess) -> ModelError:
    """The error of a child that ended without saying why."""
    how = f"with exit code {child.exitcode}"
    hint = "draftbench itself never exits like this: suspect the code that a checkpoint brings"
    if child.exitcode is not None and child.exitcode < 0:
        how = f"by {signal.Signals(-child.exitcode).name}"
        hint = "a crash in native code: try another quantization, dtype or device"
    if child.exitcode == -signal.SIGKILL:
        hint = "the kernel's out-of-memory killer does this: a smaller model may fit"
    return ModelError(f"{who} was ended {how}", hint=hint)


class _Parent:
    """The parent, seen from the child: every method runs there (`IsolatedWorker._serve`)."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __getattr__(self, what: str) -> Callable[..., None]:
        return partial(self._ask, what)

    def _ask(self, what: str, *values: object) -> None:
        """Send, and wait until the parent has done it. If the parent is gone, exit: an error would
        be blamed on the candidate.
        """
        try:
            self._pipe.send((what, values))
            self._pipe.recv()
        except (EOFError, OSError) as error:
            raise SystemExit(1) from error


def _work(
    prepared: Prepared, folder: RunFolder, candidate: Candidate | None, pipe: Connection
) -> None:
    """The child: load the target, read or make its responses, measure one candidate."""
    parent: Any = _Parent(pipe)  # keeps and watches
    try:
        set_threads(prepared.manifest.environment.threads)
        worker = Worker(prepared, SweepState.read(prepared, folder), parent.keep, parent)
        parent.begin()
        parent.done(worker.attempt(candidate) if candidate else None)
    except DraftbenchError as error:
        parent.fatal(type(error).__name__, error.message, error.hint)
    except KeyboardInterrupt:
        pass  # the parent was interrupted too, and says so
