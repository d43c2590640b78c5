"""Workers on a Ray cluster: what machines it has, and a worker on one of them.

Ray starts an actor for each worker where its processors or its GPU are free, and says when one has
ended. Prompts travel as token ids in the arguments of its calls; nothing is printed there, and no
exception leaves it, so that Ray has nothing of them to write to its logs.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

# Ray reads this while it is imported. An attempt to connect waits 40 seconds; after twenty, a
# cluster that has died is still dead.
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
# Without a connection Ray would start a new cluster on this machine.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import draftbench
from draftbench.decoder.device import card_names, environment_threads
from draftbench.errors import UsageError
from draftbench.records import Environment
from draftbench.run_folder.manifest import difference_lines, differing_machine, environment
from draftbench.sweep.options import RayCluster, SweepOptions, Watcher
from draftbench.sweep.places import Message, WorkerDiedError, work
from draftbench.sweep.prepared import Prepared
from draftbench.sweep.worker import Task

# What is asked of a node before workers are there shares its GPU with whoever has it.
_OF_A_CARD = 0.01


def connect(cluster: RayCluster) -> None:
    """Connect to a cluster, or start one on this machine where none is running.

    Raises:
        UsageError: none answers.
    """
    # Whatever `log_to_driver` says, Ray prints to stdout that a worker has died.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves this machine
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it reports every fork
    ours = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings(action="ignore"):
            ray.init(
                cluster.address,
                log_to_driver=False,
                logging_level="critical",
                include_dashboard=False,
            )
    except (ConnectionError, ImportError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster can be used at {cluster}: {str(error).splitlines()[0]}",
            hint="`ray status` must answer there (`ray stop` clears one that has died), Ray and "
            "Python must be those of here, and RAY_AUTH_MODE=token be set if it wants a token",
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ours)


def workers_of(
    options: SweepOptions, device: str, watcher: Watcher
) -> tuple[RayCluster, int, Environment]:
    """The cluster with its workers counted, the CPU threads that each has, and the machine that
    times: of the kind of which there are most. Each node has a worker, or with --threads or GPUs as
    many as fit.

    Raises:
        UsageError: no worker fits, or a node has another draftbench.
    """
    assert options.cluster is not None
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"--workers {options.cluster} with the device `{device}`",
            hint="each worker has one GPU (--device cuda), or none (--device cpu)",
        )
    connect(options.cluster)
    nodes = {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}
    cards = sum(int(has.get("GPU", 0)) for has in nodes.values())
    if device == "cpu" and cards and options.device is None:
        raise UsageError(
            "the Ray cluster has GPUs, and this machine has none to prepare a sweep on them",
            hint="start the sweep on a node with a GPU, or give --device cpu",
        )
    processors = [int(has["CPU"]) for has in nodes.values() if has.get("CPU", 0) >= 1]
    share = min(processors, default=1)
    if device == "cuda":
        share = max(1, sum(processors) // max(1, cards))
    threads = options.threads or environment_threads() or share
    needs = {"num_cpus": threads, "num_gpus": 1 if device == "cuda" else 0}
    kind = "GPU" if device == "cuda" else "CPU"
    room = {
        node: int(min(has.get("CPU", 0) // threads, has.get(kind, 0)))
        for node, has in nodes.items()
    }
    if not (count := sum(room.values())):
        what = f"{threads} CPUs" + (" and a GPU" if device == "cuda" else "")
        raise UsageError(
            f"no node of the Ray cluster has {what}",
            hint="--threads asks for fewer CPUs; `ray status` lists what there is",
        )
    watcher.note(f"Ray workers: {count}, nodes: {len(nodes)}, CPU threads of a worker: {threads}")
    free = ray.available_resources()
    if free.get("CPU", 0) < threads or free.get("GPU", 0) < needs["num_gpus"]:
        watcher.note("others use the whole Ray cluster: the sweep waits for them", always=True)
    found = _machines([node for node in room if room[node]], threads, device)
    kinds = Counter(machine.machine for _, machine in found.values())
    timing = max(kinds, key=lambda kind: (kinds[kind], kind))
    node = next(node for node, (_, machine) in found.items() if machine.machine == timing)
    for name, machine in found.values():
        if differ := difference_lines(differing_machine(found[node][1], machine)):
            watcher.note(
                f"{name} differs from {found[node][0]}, where steps are timed: {', '.join(differ)}",
                always=True,
            )
    cluster = replace(options.cluster, workers=count, needs=needs, timing_node=node)
    return cluster, threads, found[node][1]


def _machines(
    nodes: Sequence[str], threads: int, device: str
) -> dict[str, tuple[str, Environment]]:
    """The name and the machine of each node, by its id."""
    ask = ray.remote(max_retries=0)(_machine)
    asked = [
        ask.options(
            num_cpus=0,
            num_gpus=_OF_A_CARD if device == "cuda" else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(threads, device)
        for node in nodes
    ]
    try:
        found = ray.get(asked)
    except RayError as error:
        raise UsageError(
            f"a node of the Ray cluster cannot run draftbench ({type(error).__name__})",
            hint=f"install draftbench {draftbench.__version__} on every node",
        ) from error
    for version, name, _ in found:
        if version != draftbench.__version__:
            raise UsageError(
                f"{name} has draftbench {version}, and this machine {draftbench.__version__}",
                hint="install the same on every node",
            )
    return {node: (name, machine) for node, (_, name, machine) in zip(nodes, found, strict=True)}


def _machine(threads: int, device: str) -> tuple[str, str, Environment]:
    return draftbench.__version__, platform.node(), environment(threads, card_names(device))


class SweepWorker:
    """The process of a worker: each call hands it an answer and returns what it says next."""

    def begin(self, prepared: Prepared) -> Message:
        # What a checkpoint's code prints may quote a prompt.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        self._pipe, theirs = Pipe()

        def to_the_end() -> None:
            try:
                work(prepared, theirs)
            finally:  # an error that has no message ends the process, as elsewhere
                os._exit(1)

        threading.Thread(target=to_the_end, daemon=True).start()
        return self._pipe.recv()

    def reply(self, value: Task | None) -> Message:
        self._pipe.send(value)
        return self._pipe.recv()


class OnRay:
    """A worker as a Ray actor, which Ray places where what it needs is free.

    Args:
        node: the id of the node on which it must run; None: any.
    """

    def __init__(self, prepared: Prepared, cluster: RayCluster, node: str | None) -> None:
        options: dict[str, Any] = {**cluster.needs, "max_restarts": 0}
        if node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        self._actor = ray.remote(SweepWorker).options(**options).remote()
        # Not an argument of the actor itself, which Ray keeps with its description.
        self._next = self._actor.begin.remote(prepared)

    def reply(self, value: Task | None) -> None:
        with _connected():
            self._next = self._actor.reply.remote(value)

    def hear(self) -> Message | None:
        try:
            with _connected():
                said, _ = ray.wait([self._next], timeout=0)
                return ray.get(self._next) if said else None
        except OutOfMemoryError:
            how, hint = (
                "was ended by Ray's memory monitor",
                "a smaller model or fewer workers may fit",
            )
        except RayError as error:
            how = f"was ended on its node ({type(error).__name__})"
            hint = (
                "a crash in native code, the kernel's out-of-memory killer, or the loss of the "
                "node: `ray list actors` tells which"
            )
            if isinstance(error, RayActorError) and error.preempted:
                how, hint = "lost its node", "the same command resumes on another"
        raise WorkerDiedError(how, hint)

    def end(self) -> None:
        with suppress(Exception):  # it ends without a connection too
            ray.kill(self._actor)

    @staticmethod
    def wait(places: Sequence[Any], seconds: float) -> None:
        with _connected():
            ray.wait([each._next for each in places], timeout=seconds)


@contextmanager
def _connected() -> Iterator[None]:
    """Raise a UsageError for what Ray raises without a connection, which is of many kinds."""
    try:
        yield
    except RayError:
        raise
    except Exception as error:
        raise UsageError(
            "the connection to the Ray cluster was lost",
            hint="the same command resumes once `ray status` answers there",
        ) from error
