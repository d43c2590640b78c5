"""Runs on a serving engine of five requests, each answered in nine tokens."""

from scenes import SMALL, manifest, replay, served, trajectory

from draftbench.records import Served
from draftbench.run_folder.run import run_of


def answers(k, changed=(), **fields):
    """Five requests answered; those of `changed` left the text at the third token."""
    return [
        served(
            SMALL if k else None,
            k,
            *(0.1 * (n + 1) for n in range(9)),
            request=request,
            **{"digest": f"text {request}"}
            | ({"accepted": 4, "drafted": 4 * k} if k else {})
            | fields,
            **{"first_difference": 3} if request in changed else {},
        )
        for request in "abcde"
    ]


def run(*rows, **question):
    responses = [
        trajectory(request, 9, origin="engine", margins=(), argmax=(), digest=f"text {request}")
        for request in "abcde"
    ]
    return run_of(manifest(**{"engine": "vllm", "ks": (1, 2)} | question), [*responses, *rows])


def in_pieces(k, first, each, pieces, accepted=None, **changes):
    """Five requests answered in pieces, `each` seconds after the last; if `accepted` does not say
    otherwise, all drafted tokens are.
    """
    times = [first + each * at for at in range(len(pieces))]
    rounds = len(pieces) - 1
    told = {"by_round": tuple((k, n) for n in accepted or (k,) * rounds)} if k else {}
    return [
        served(SMALL if k else None, k, *times, request=request, chunks=pieces, **(told | changes))
        for request in "abcde"
    ]


# The pieces of eight tokens after the first if every drafted token is accepted, by k.
PIECES = {0: (1,) * 9, 1: (1, 2, 2, 2, 2), 4: (1, 5, 3)}


def in_rounds(k: int, seconds: float) -> list[Served]:
    """Five requests whose steps or rounds took so many seconds each, all tokens accepted."""
    return in_pieces(k, 0.5, seconds, PIECES[k])


PLAIN = in_rounds(0, 0.1)


def served_run(*rows, ks=(1,), accept=(1.0,) * 8, requests=()):
    """What was served, the target's responses, and a replay of each that accepts so, if any."""
    names = requests or sorted({row.request for row in rows if isinstance(row, Served)})
    responses = [trajectory(name, 9, origin="engine", margins=(), argmax=()) for name in names]
    replays = [replay(tuple(map(float, accept)), request=name) for name in names if accept]
    return run_of(manifest(engine="vllm", ks=ks), [*responses, *replays, *rows])


def replayed_run(*rows, accept=(1.0,) * 8):
    return served_run(*rows, ks=(1, 2, 4), accept=accept, requests="abcde")
