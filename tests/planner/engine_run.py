"""Runs on a serving engine of five requests, each answered in nine tokens."""

from scenes import SMALL, manifest, served, trajectory

from draftbench.run_folder.run import run_of


def answers(k, changed=(), **fields):
    """Five requests answered; those of `changed` left the text at the third token."""
    return [
        served(
            SMALL if k else None,
            k,
            *(0.1 * (n + 1) for n in range(9)),
            request=request,
            **{"digest": f"text {request}"} | ({"kept": 4, "drafted": 4 * k} if k else {}) | fields,
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
