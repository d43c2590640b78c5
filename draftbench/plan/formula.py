"""α, k and c → what the closed form of speculative decoding promises.

Source: Leviathan, Kalman & Matias 2023, arXiv 2211.17192. Every position is assumed alike and a
pass over k+1 tokens to cost as much as one over a single token: figures for `estimate` and for
explanations, labelled so. With a replay at hand the planner sums over expected rounds instead.

`cost` is c per draft *token*, so a round costs 1 + k·c target steps. Formulas that divide by 1 + c
mean the whole draft pass by c; with a per-token c they promise too much.
"""

from __future__ import annotations

from draftbench.errors import UsageError


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens of a round, (1 - α^(k+1)) / (1 - α) (eq. 1), k+1 at α = 1.

    Raises:
        UsageError: α outside [0, 1] or k < 0; so do all functions here.
    """
    _check(alpha, k)
    # The sum of the geometric series: the quotient loses its digits near α = 1.
    return sum(alpha**i for i in range(k + 1))


def speedup(alpha: float, k: int, cost: float) -> float:
    """Tokens per second with speculation over without (theorem 3.8)."""
    _check(alpha, k, cost)
    return expected_tokens(alpha, k) / (1 + k * cost)


def best_k(alpha: float, cost: float, *, largest: int = 64) -> int:
    """The k in 0 … `largest` with the highest speed-up, the smallest of equals.

    0 says: do not speculate.
    """
    return max(range(largest + 1), key=lambda k: speedup(alpha, k, cost))


def break_even_alpha(k: int, cost: float) -> float | None:
    """The α from which k drafted tokens pay for themselves; None where not even α = 1 does (c > 1).

    At k = 1 it equals c (corollary 3.9).
    """
    _check(0.0, k, cost)
    if speedup(1.0, k, cost) < 1:
        return None
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if speedup(middle, k, cost) < 1 else (low, middle)
    return high if speedup(low, k, cost) < 1 else low


def operations_factor(alpha: float, k: int, cost: float) -> float:
    """Arithmetic operations with speculation over without (theorem 3.11); `cost` in operations."""
    _check(alpha, k, cost)
    return (k * cost + k + 1) / expected_tokens(alpha, k)


def _check(alpha: float, k: int, cost: float = 0.0) -> None:
    if not 0 <= alpha <= 1:
        raise UsageError(
            f"an acceptance rate of {alpha} is not a probability",
            hint="give it between 0 and 1; a mean accepted length is not an acceptance rate",
        )
    if k < 0:
        raise UsageError(f"a draft length of {k} is negative", hint="0 means no speculation")
    if not 0 <= cost < float("inf"):
        raise UsageError(
            f"a draft cost ratio of {cost} cannot be used",
            hint="give the time of one draft step over that of one target step, 0 or more",
        )
