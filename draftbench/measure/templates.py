"""Renders a request by a model's chat template and tokenizer, in a separate process.

A template is a stranger's program, and so is a tokenizer's pattern. Jinja's sandbox keeps a
template from files and from Python, but not from looping forever, nor from multiplying a text to
gigabytes, which no alarm could interrupt; a pattern may look for a match for years. So a forked
child renders and tokenizes. It has a limit of seconds for each request and a limit of memory, and
is killed when it takes more. The parent watches the time too, should the child stop its alarm.
Where the system does not limit memory (macOS), only the time is limited.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from operator import index
from pathlib import Path
from typing import Any

import msgspec

from draftbench.errors import ModelError, RefusedError
from draftbench.records import Request

# Seconds that the child has for one request.
SECONDS = 30.0
# How much longer the parent waits; by then the child's alarm should have ended it.
SLACK = 5.0
# Memory that the child may take beyond what this process has already.
MEMORY_BYTES = 2 << 30

# What renders a request → the hints for when it refuses one, and for when it takes too much.
_HINTS = {
    "chat template": (
        "it may not know these roles or tools; --skip-bad leaves such rows out, and counts them",
        "it is a program of whoever made the model: read chat_template.jinja or "
        "tokenizer_config.json, or give plain prompts",
    ),
    "tokenizer": (
        "it cannot read this text; --skip-bad leaves such rows out, and counts them",
        "its patterns are a program of whoever made the model: read tokenizer.json",
    ),
}
# Most characters of a template's own words, and fewest that say anything.
_MOST_WORDS, _FEWEST_WORDS = 200, 8
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_ANSWER = msgspec.msgpack.Decoder(list[int] | str)


class Renderer:
    """Renders requests by one tokenizer and its template. Its process starts with the first request
    and ends with this object.

    Args:
        name: what errors call the model.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._tokenizer, self._name = tokenizer, name
        self._pipe: Connection | None = None

    def tokens(self, request: Request, answer: Mapping[str, Any] | None = None) -> list[int]:
        """The prompt's token ids; a chat's with the opening of the response, or with an answer.

        Raises:
            RefusedError: the template or the tokenizer refuses this request.
            ModelError: it takes too long or too much memory, or ends its process.
        """
        if request.messages is None:
            return self._asked(request, "tokenizer", {"text": request.prompt})
        chat = {
            "conversation": [*request.messages, *([answer] if answer else [])],
            "tools": list(request.tools) if request.tools else None,
            "add_generation_prompt": answer is None,
            "tokenize": True,
            "return_dict": False,
            **request.template,
        }
        return self._asked(request, "chat template", chat)

    def answer(self, request: Request) -> list[int]:
        """The token ids of the logged answer.

        Raises:
            RefusedError, ModelError: as `tokens`.
        """
        plain = {"text": request.response or "", "add_special_tokens": False}
        return self._asked(request, "tokenizer", plain)

    def _asked(self, request: Request, what: str, arguments: dict[str, Any]) -> list[int]:
        pipe = self._pipe or self._start()
        answer: list[int] | str | None = None
        try:
            pipe.send(arguments)
            if pipe.poll(SECONDS + SLACK):
                answer = _ANSWER.decode(pipe.recv_bytes())
        except RecursionError as error:  # nested more deeply than can be sent
            self._stop()
            answer = type(error).__name__
        except (EOFError, ConnectionError):
            pass
        except BaseException:  # an answer that comes later would be taken for the next request's
            self._stop()
            raise
        if isinstance(answer, list):
            return answer
        refused, excessive = _HINTS[what]
        if answer is not None and answer != MemoryError.__name__:
            raise RefusedError(
                f"the {what} of `{self._name}` refuses {request.source} ({answer})",
                reason=f"the {what} refuses it ({answer})",
                hint=refused,
            )
        if answer:
            excess = f"needs more than {MEMORY_BYTES >> 30} GiB of memory"
        else:
            try:
                until = time.monotonic() + SLACK
                while self._child.exitcode is None and time.monotonic() < until:
                    time.sleep(0.01)  # join would wait for a child that closed its end and runs on
                late = self._child.exitcode in (None, -signal.SIGALRM)
            finally:
                self._stop()
            excess = f"did not end within {SECONDS:g} s" if late else "ended its process"
        raise ModelError(
            f"the {what} of `{self._name}` {excess} on {request.source}", hint=excessive
        )

    def _start(self) -> Connection:
        # One text is tokenized at a time; the tokenizers library would warn of a fork with threads.
        os.environ.setdefault(_PARALLELISM, "false")
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        ends = (theirs, ours)
        self._child = context.Process(target=_serve, args=(self._tokenizer, *ends), daemon=True)
        self._child.start()
        theirs.close()
        self._end = weakref.finalize(self, _end, self._child, ours)
        self._pipe = ours
        return ours

    def _stop(self) -> None:
        """Ends the process; the next request starts another."""
        self._pipe = None
        self._end()


def _end(child: BaseProcess, pipe: Connection) -> None:
    child.kill()
    child.join()
    pipe.close()


def _serve(tokenizer: Any, pipe: Connection, parents: Connection) -> None:
    """The child's work: answer every request with its token ids, or with what was raised."""
    parents.close()  # else this process would not notice that the parent ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends this process
    for ending in (signal.SIGALRM, signal.SIGTERM):  # handlers would wait for native code
        signal.signal(ending, signal.SIG_DFL)
    os.environ[_PARALLELISM] = "false"
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # native code prints why it aborts, which may quote a chat
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the chat
    # What is limited is the address space, where the system can limit it.
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        most = min([pages * resource.getpagesize() + MEMORY_BYTES, *limits])
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        text, chat = arguments.pop("text", None), arguments.pop("conversation", None)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            if chat is None:
                ids = tokenizer(text, **arguments)["input_ids"]
            else:
                ids = tokenizer.apply_chat_template(chat, **arguments)
            # A model may bring a tokenizer that returns anything; `int` alone accepts fractions.
            answer = msgspec.msgpack.encode(list(map(int, map(index, ids))))
        # A template may raise anything, with a message that quotes the chat.
        except Exception as error:
            template = "" if chat is None else getattr(tokenizer, "chat_template", None)
            words = _own_words(str(error), template) or type(error).__name__
            answer = msgspec.msgpack.encode(words)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pipe.send_bytes(answer)


def _own_words(message: str, template: Any) -> str:
    """The beginning of a message that stands in the template itself, so that it quotes no chat."""
    texts = template.values() if isinstance(template, Mapping) else [template]
    written = "\0".join(text for text in texts if isinstance(text, str))
    longest = min(len(message), _MOST_WORDS)
    length = next(n for n in range(longest, -1, -1) if message[:n] in written)
    if length < _FEWEST_WORDS:
        return ""
    return message[:length].strip() + "…" * (length < len(message))
