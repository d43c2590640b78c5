import json
import os
import shlex
import stat
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from draftbench.drafts.speculation import speculation_of
from draftbench.engines import start as starting
from draftbench.engines.engine import ServerStart
from draftbench.engines.start import server_threads, started
from draftbench.engines.vllm import MODEL_RUNNER
from draftbench.errors import EngineError

ENGINE = shlex.join([sys.executable, "-S", str(Path(__file__).with_name("scripted_engine.py"))])


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch):
    monkeypatch.setattr(starting, "GRACE_SECONDS", 0.3)


@pytest.fixture
def engine(tmp_path):
    @contextmanager
    def running(behaviour="", name="llama.cpp", **changes):
        start = ServerStart(name, "t.gguf", command=f"{ENGINE} {behaviour}", **changes)
        with started(start, tmp_path) as server:
            yield server

    return running


def asked(server):
    with urllib.request.urlopen(server.url, timeout=5) as answer:
        return json.loads(answer.read())


def of_group(port):
    """The scripted processes of this server, and what they started."""
    found = [p for p in psutil.process_iter() if str(port) in _words(p)]
    return [*found, *(child for parent in found for child in parent.children(recursive=True))]


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def port_of(server):
    return server.url.rpartition(":")[2]


def test_a_server_answers_under_its_address_until_it_is_ended(engine):
    with engine(speculation=speculation_of("d.gguf", 4), threads=1) as server:
        told = asked(server)
        assert server.ended() is None
        assert [*shlex.split(ENGINE), *told["argv"]] == shlex.split(server.whole_command)
        assert told["threads"] == server.settings["threads"] == "1"
        assert 0 < server.ready_seconds < 30
    assert of_group(port_of(server)) == []


@pytest.mark.parametrize(("said", "kept"), [("0", "0"), (None, "unset")])
def test_which_of_its_model_runners_vllm_is_started_with_is_kept(engine, monkeypatch, said, kept):
    """Its prompt lookup depends on it, and its command line does not show it."""
    monkeypatch.delenv(MODEL_RUNNER, raising=False)
    if said is not None:
        monkeypatch.setenv(MODEL_RUNNER, said)
    with engine(name="vllm") as server:
        assert server.settings == {MODEL_RUNNER: kept}


def test_a_port_is_on_this_machine_alone_and_the_log_the_users(engine):
    with engine() as one, engine() as other:
        assert one.url.startswith("http://127.0.0.1:")
        assert one.url != other.url
        assert stat.S_IMODE(one.log.stat().st_mode) == 0o600
        assert "loading weights" in one.log.read_text()


@pytest.mark.parametrize("behaviour", ["deaf", "family"])
def test_what_does_not_end_when_asked_is_killed_with_all_that_it_started(engine, behaviour):
    with engine(behaviour) as server:
        processes = of_group(port_of(server))
        assert len(processes) == (3 if behaviour == "family" else 1)
    assert not any(process.is_running() for process in processes)


def test_an_error_beside_the_server_ends_it_too(engine):
    with pytest.raises(ZeroDivisionError), engine() as server:
        raise ZeroDivisionError
    assert of_group(port_of(server)) == []


def test_how_a_server_ended_is_not_lost_if_it_ends_just_after_it_was_asked(engine, monkeypatch):
    with engine() as server:
        guardian = server._guardian
        listen = guardian._listen

        def ends_afterwards(seconds):
            listen(seconds)
            os.kill(of_group(port_of(server))[0].pid, 9)
            guardian._process.wait(10)

        with monkeypatch.context() as patch:
            patch.setattr(guardian, "_listen", ends_afterwards)
            assert server.ended() is None
        assert server.ended() == "SIGKILL"


def test_an_error_of_a_server_that_died_says_so_without_its_log(engine):
    def dying():
        with engine() as server:
            os.kill(of_group(port_of(server))[0].pid, 9)
            raise EngineError(str(server.log), hint="resume")

    with pytest.raises(EngineError) as caught:
        dying()
    log, _, rest = caught.value.message.partition("; ")
    assert rest == f"llama.cpp ended (SIGKILL), its log is {log}"
    assert caught.value.hint == "resume"


def test_a_server_whose_guardian_was_killed_is_ended_all_the_same(engine):
    with engine() as server:
        of_group(port_of(server))[0].parent().kill()
        _wait_for(lambda: server.ended() is not None)
        assert server.ended() == "the process that guards it is gone"
    _wait_for(lambda: of_group(port_of(server)) == [])


def _wait_for(done, seconds=10):
    import time

    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_stop_command_is_run_once_the_server_is_gone(engine, tmp_path):
    note = tmp_path / "note"
    stop = shlex.join(["sh", "-c", f"echo stopped {{port}} >> {note}"])
    with engine(stop_command=stop) as server:
        assert not note.exists()
    assert note.read_text() == f"stopped {port_of(server)}\n"


def test_the_shared_command_holds_no_value_of_what_the_user_added(engine, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "of-the-environment")
    with engine(args="--api-key of-the-command -c 4096") as server:
        assert server.command.endswith("--api-key '…' -c '…'")
        assert "-np 1" in server.command
        assert "of-the-environment" not in server.whole_command
        assert server.whole_command.endswith("--api-key of-the-command -c 4096")


def test_a_server_that_ends_at_once_shows_the_end_of_its_log_without_secrets(engine, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "of-the-environment")
    with pytest.raises(EngineError) as caught, engine("exits"):
        pass
    assert caught.value.message.splitlines() == [
        "llama.cpp ended before it answered: exit code 1; its log ends:",
        "  100%",
        "  api_key: ['***'], hub ***, red \ufffd bell",
        "  environment ***",
        "  no kernel image is available",
    ]
    assert "--engine-command" in caught.value.hint


def test_a_long_line_of_the_log_is_shown_in_part_and_none_of_the_log_is_recorded(engine):
    with pytest.raises(EngineError) as caught, engine("chatty"):
        pass
    assert caught.value.message.splitlines()[-1] == "  " + "z" * 300 + "…"
    assert caught.value.safe_message == "llama.cpp ended before it answered: exit code 1"


def test_the_first_error_is_shown_where_those_that_it_caused_fill_the_log_and_what_helps(engine):
    with pytest.raises(EngineError) as caught, engine("worker", "vllm"):
        pass
    _, first, gap, *last = caught.value.message.splitlines()
    told = "  (Worker) ERROR 11-23 ValueError: Available memory on node 0 is less than asked"
    assert (first, gap) == (told, "  …")
    assert (len(last), last[-1]) == (starting.LAST_LINES, "  RuntimeError: see above")
    assert "set VLLM_CPU_KVCACHE_SPACE" in caught.value.hint


def test_a_server_that_never_gets_ready_is_ended_and_shows_its_log(engine, tmp_path):
    with pytest.raises(EngineError) as caught, engine("loading", ready_timeout=0.5):
        pass
    message = "llama.cpp did not answer within 0.5 s; its log ends:\n  100%"
    assert caught.value.message == message
    assert caught.value.hint.startswith("a longer --ready-timeout waits for it; its whole log is ")
    assert str(tmp_path) in caught.value.hint


@pytest.mark.parametrize(
    ("command", "problem"),
    [("/nowhere/llama-server", "No such file or directory"), ("/", "Permission denied")],
)
def test_a_command_that_cannot_be_run_is_named_with_the_flag_that_names_another(
    tmp_path, command, problem
):
    with (
        pytest.raises(EngineError) as caught,
        started(ServerStart("llama.cpp", "t", command=command), tmp_path),
    ):
        pass
    assert caught.value.message == f"cannot run `{command}`: {problem}"
    assert caught.value.safe_message == f"cannot run the command of llama.cpp: {problem}"
    assert "--engine-command" in caught.value.hint


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (16, 15), (17, None)])
def test_on_few_cores_one_is_kept_for_the_client(monkeypatch, cores, threads):
    monkeypatch.setattr(starting, "cores_here", lambda: cores)
    assert server_threads() == threads
