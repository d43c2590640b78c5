"""The two indexes that there were before `run_folder/observations.py`, as they were."""

from collections import defaultdict

from draftbench.records import (
    SELF,
    CostPoint,
    Decode,
    EngineFacts,
    Failure,
    LookupReplay,
    MachineState,
    ModelFacts,
    Replay,
    Served,
    StackReplay,
    Trajectory,
    WorkerFacts,
    stacked,
)
from draftbench.run_folder.run import Run
from draftbench.run_folder.served import OTHER_DRAFTING, decodes_of


def answers_that_count(rows, responses):
    drafted_as_asked = [row for row in rows if row.error != OTHER_DRAFTING]
    sessions = defaultdict(lambda: defaultdict(set))
    for row in drafted_as_asked:
        if row.load == "open":
            sessions[row.candidate, row.k, row.repeat][row.server].add(row.key)
    whole = set()
    for by_server in sessions.values():
        complete = [server for server, keys in by_server.items() if keys.issuperset(responses)]
        whole.update(complete[-1:])
    return [row for row in drafted_as_asked if row.load != "open" or row.server in whole]


def comparable(rows):
    def unit_of(row):
        return row.block, row.concurrency, row.key if row.concurrency == 1 else None

    decoded = {}
    for row in rows:
        by_process = decoded.setdefault(unit_of(row), {})
        by_process.setdefault(row.process, set()).add((row.k, row.key))
    counted = {}
    for unit, by_process in decoded.items():
        whole = set().union(*by_process.values())
        complete = {process for process, part in by_process.items() if part == whole}
        counted[unit] = complete or {list(by_process)[-1]}
    return [row for row in rows if row.process in counted[unit_of(row)]]


def old_run_of(manifest, records):
    trajectories = {r.key: r for r in records if isinstance(r, Trajectory)}
    replays = {(r.key, r.candidate): r for r in records if isinstance(r, (Replay, LookupReplay))}
    answers = {
        (r.server, r.key, r.load, r.asked_concurrency): r for r in records if isinstance(r, Served)
    }
    served = tuple(answers_that_count(answers.values(), trajectories.keys()))
    failures = {}
    for record in records:
        if isinstance(record, Failure) and record.resolved:
            failures.pop(record.candidate, None)
        elif isinstance(record, Failure):
            failures[record.candidate] = record
    run = Run(
        manifest=manifest,
        trajectories=tuple(trajectories.values()),
        replays=(*replays.values(), *stacked(replays.values(), manifest.specs)),
        decodes=(*comparable([r for r in records if isinstance(r, Decode)]), *decodes_of(served)),
        costs=tuple(r for r in records if isinstance(r, CostPoint)),
        facts=tuple(r for r in records if isinstance(r, ModelFacts)),
        failures=tuple(failures.values()),
        states=tuple(r for r in records if isinstance(r, MachineState)),
        workers=tuple(r for r in records if isinstance(r, WorkerFacts)),
        engines=tuple(r for r in records if isinstance(r, EngineFacts)),
        served=served,
    )
    drafts = {name: at for at, name in enumerate(run.manifest.specs)}
    levels = {level: at for at, level in enumerate(manifest.question.quants)}
    responses = sorted(run.trajectories, key=lambda t: (-t.prompt_tokens, *t.key))
    place = {response.key: at for at, response in enumerate(responses)}

    def order(row):
        of = row.candidate
        kind = isinstance(row, LookupReplay) + 2 * isinstance(row, StackReplay)
        draft, level = drafts.get(of.draft, len(drafts)), levels.get(of.quant, 0)
        return kind, draft, level, of.draft == SELF, place.get(row.key, 0)

    from dataclasses import replace

    return replace(
        run, trajectories=tuple(responses), replays=tuple(sorted(run.replays, key=order))
    )


class OldSweepState:
    """Its dicts, and `add` without texts."""

    def __init__(self):
        self.responses, self.facts, self.failures, self.replays = {}, {}, {}, {}
        self.costs, self.decodes, self.engines, self.answers, self.faults = {}, {}, [], {}, []

    def add(self, records):
        for record in records:
            match record:
                case Trajectory(key=key):
                    self.responses[key] = record
                case Replay() | LookupReplay():
                    self.replays.setdefault(record.candidate, {})[record.key] = record
                case CostPoint():
                    self.costs.setdefault(record.block, []).append(record)
                case Decode():
                    self.decodes.setdefault(record.block, []).append(record)
                case EngineFacts():
                    self.engines.append(record)
                case Served(candidate=candidate, k=k, repeat=repeat, key=key):
                    load = record.concurrency if record.load == "closed" else None
                    where = candidate, k, repeat, load
                    answers = self.answers.get(where, {})
                    if load is None and any(o.server != record.server for o in answers.values()):
                        answers.clear()
                    if record.error is None:
                        self.answers.setdefault(where, {})[key] = record
                        continue
                    self.faults.append(record)
                    if key in answers and answers[key].server == record.server:
                        del answers[key]
                case ModelFacts():
                    self.facts.setdefault(record.candidate, []).append(record)
                case Failure(resolved=True):
                    self.failures.pop(record.candidate, None)
                case Failure():
                    self.failures[record.candidate] = record
