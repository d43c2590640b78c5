"""Which of a run's records count. A sweep that measures, one that resumes and every reader of a run
folder ask here.

Of two records of one thing (a response, a replay, a server's answer, a pass, a decoding run of a
process, …) the later one counts, and a failure until a later attempt succeeds. Two rules are about
several records: which processes' decoding runs can be compared (`decodes`), and which servers'
answers are a measurement (`served`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from draftbench.drafts.kinds import remembers
from draftbench.records import (
    AnyObservation,
    Candidate,
    CostPoint,
    Decode,
    DraftLength,
    EngineFacts,
    Failure,
    Key,
    LookupReplay,
    MachineState,
    ModelFacts,
    Observation,
    Replay,
    Served,
    StopRule,
    Trajectory,
    WorkerFacts,
)
from draftbench.run_folder.served import OTHER_DRAFTING

# What a server was asked: a candidate, k, repeat and rule to stop by, with how many requests in
# flight (None: sent at their times of arrival).
Asked = tuple[Candidate | None, int, int, StopRule | None, int | None]


class Observations:
    """An index of a run's records; iterating gives those that count.

    Args:
        records: in the order in which they were made.
    """

    def __init__(self, records: Iterable[Observation] = ()) -> None:
        self.trajectories: dict[Key, Trajectory] = {}
        self.replays: dict[Candidate, dict[Key, Replay | LookupReplay]] = {}
        self.facts: dict[Candidate | None, ModelFacts] = {}
        self.failures: dict[Candidate | None, Failure] = {}
        self.engines: dict[str, EngineFacts] = {}  # by server
        self.costs: dict[Any, CostPoint] = {}
        self._decodes: dict[Any, Decode] = {}
        self._served: dict[Any, Served] = {}
        self._sessions: dict[Asked, dict[str, dict[Key, Served]]] = {}  # by server and response
        self._drafted_otherwise: set[str] = set()  # servers
        self.states: dict[Any, MachineState] = {}
        self.workers: dict[str, WorkerFacts] = {}
        self.add(records)

    def add(self, records: Iterable[Observation]) -> None:
        """Take in what was observed next."""
        for record in records:
            match record:
                case Trajectory():
                    self.trajectories[record.key] = record
                case Replay() | LookupReplay():
                    self.replays.setdefault(record.candidate, {})[record.key] = record
                case Decode(block=block, process=process, concurrency=concurrency, length=length):
                    run = block, process, concurrency, length, record.repeat, record.key
                    self._decodes[run] = record
                case CostPoint(block=block, process=process, candidate=candidate, what=what):
                    shape = record.concurrency, record.new_tokens, record.context
                    self.costs[block, process, candidate, what, shape] = record
                case Served(server=server, key=key, error=error):
                    in_flight = record.concurrency if record.load == "closed" else None
                    asked = record.candidate, record.k, record.repeat, record.stop, in_flight
                    self._served[asked, server, key] = record
                    self._sessions.setdefault(asked, {}).setdefault(server, {})[key] = record
                    if error == OTHER_DRAFTING:
                        self._drafted_otherwise.add(server)
                case ModelFacts():
                    self.facts[record.candidate] = record
                case EngineFacts():
                    self.engines[record.server] = record
                case Failure(resolved=True):
                    self.failures.pop(record.candidate, None)
                case Failure():
                    self.failures[record.candidate] = record
                case MachineState():
                    self.states[record.process, record.at] = record
                case WorkerFacts():
                    self.workers[record.process] = record

    def __iter__(self) -> Iterator[AnyObservation]:
        return chain(
            self.trajectories.values(),
            *(along.values() for along in self.replays.values()),
            self.decodes(),
            self.costs.values(),
            self.facts.values(),
            self.engines.values(),
            self.served,
            self.failures.values(),
            self.states.values(),
            self.workers.values(),
        )

    def decodes(self, block: str | None = None) -> list[Decode]:
        """The decoding runs, of all blocks or one, that can be compared with a baseline run of the
        same process.

        A candidate's draft lengths and the baseline are interleaved: on each response or, at a
        higher concurrency, where rows share rounds, on all responses together. Of each response (or
        of all together) only processes that finished it count; if none did, the last one.
        """
        rows = [row for row in self._decodes.values() if block in (None, row.block)]
        # What each process decoded of each unit, in the order of processes.
        decoded: dict[Any, dict[str, set[tuple[DraftLength, Key]]]] = {}
        for row in rows:
            by_process = decoded.setdefault(_unit_of(row), {})
            by_process.setdefault(row.process, set()).add((row.length, row.key))
        counted: dict[Any, set[str]] = {}
        for unit, by_process in decoded.items():
            whole = set().union(*by_process.values())
            complete = {process for process, part in by_process.items() if part == whole}
            counted[unit] = complete or {list(by_process)[-1]}
        return [row for row in rows if row.process in counted[_unit_of(row)]]

    @property
    def served(self) -> list[Served]:
        """The answers that are a measurement: see `servers`."""
        servers = {asked: self.servers(asked) for asked in self._sessions}
        return [row for (asked, server, _), row in self._served.items() if server in servers[asked]]

    def servers(self, asked: Asked) -> list[str]:
        """The servers whose answers count, of those that were asked this.

        None that drafted differently from what was asked, not even with answers that do not show
        it. A server that was asked for only some of the requests had less load if they came at
        their times of arrival, and less to draft from if it remembers its answers, be it that it
        was cut or that it was asked for the rest: then one server alone counts, the last that was
        asked for every response, whether it answered or not.
        """
        sessions = self._sessions.get(asked, {})
        servers = [server for server in sessions if server not in self._drafted_otherwise]
        if asked[-1] is not None and not (asked[0] and remembers(asked[0])):
            return servers
        responses = self.trajectories.keys()
        return [server for server in servers if sessions[server].keys() >= responses][-1:]

    def answers(self, asked: Asked) -> list[Served]:
        """The answers that count to what was asked, failed ones included."""
        sessions = self._sessions.get(asked, {})
        return [row for server in self.servers(asked) for row in sessions[server].values()]

    def answered(self) -> set[Asked]:
        """What was asked of servers that answered any of it, whether that counts yet or not."""
        return {
            asked
            for asked, sessions in self._sessions.items()
            for server in sessions.keys() - self._drafted_otherwise
            if any(row.error is None for row in sessions[server].values())
        }


def _unit_of(row: Decode) -> tuple[str, int, Key | None]:
    """What a process decodes as a whole."""
    return row.block, row.concurrency, row.key if row.concurrency == 1 else None
