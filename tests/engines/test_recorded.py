"""What real servers answered, read once more: `scripts/record_engines.py` records them anew.

What must hold of any engine's answers is asked of all recordings; the values of one recording are
those that its raw answers show.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
from engines.replayed_head import ReplayedHead

from draftbench.engines.connect import connect
from draftbench.engines.vllm import VllmServer
from draftbench.records import RoundCounts

HERE = Path(__file__).parent
RECORDINGS = sorted((HERE / "recorded").glob("*.json"))
VLLM, VLLM_PLAIN = "vllm-0.32-k4", "vllm-0.32-plain"
LLAMA, LLAMA_PLAIN = "llama.cpp-0.7-k4", "llama.cpp-0.7-plain"
VLLM_HEAD, LLAMA_HEAD = "vllm-0.32-head-k3", "llama.cpp-0.7-head-k3"
END = {"target": 0, "target.gguf": 0, "qwen1.5.gguf": 151645}


@pytest.fixture(scope="module")
def scenes():
    """What a visit to each recorded server yields, by the recording's name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE.parents[1] / "scripts"))
        script = import_module("record_engines")
        # vLLM was recorded before its counters were read around every request.
        unread = property(lambda _: False, lambda *_: None)
        patch.setattr(VllmServer, "counts_around", unread)
        found = {}
        for path in RECORDINGS:
            exchanges = json.loads(path.read_text())["exchanges"]
            server = connect("http://recorded", transport=script.Player(exchanges))
            found[path.stem] = script.visit(server)
            server.close()
        yield found
        sys.modules.pop("record_engines")


def every(scenes):
    return [(scene, answer) for scene in scenes.values() for answer in scene.answers.values()]


def test_every_recorded_answer_is_whole(scenes):
    assert {VLLM, VLLM_PLAIN, LLAMA, LLAMA_PLAIN} <= scenes.keys()
    for _, answer in every(scenes):
        assert (answer.error, answer.reason) == (None, "")
        assert answer.tokens is not None
        assert len(answer.tokens) == answer.output_tokens == sum(answer.chunks)
        assert answer.prompt_tokens == len(answer.ask.prompt)


def test_a_response_that_ended_holds_its_end_token_and_counts_it(scenes):
    for scene in scenes.values():
        answer = scene.answers["end"]
        assert answer.finish == "stop"
        assert answer.tokens[-1] == END[scene.facts.model]


def test_a_response_that_reached_its_limit_is_as_long_as_asked(scenes):
    for scene in scenes.values():
        for name, length in (("greedy", 24), ("characters", 24), ("one token", 1)):
            answer = scene.answers[name]
            assert (answer.finish, answer.output_tokens) == ("length", length)


def test_a_stop_string_ends_the_ids_with_the_token_that_completed_it(scenes):
    for scene in scenes.values():
        greedy, answer = scene.answers["greedy"], scene.answers["stop string"]
        assert answer.finish == "stop"
        assert answer.tokens == greedy.tokens[: answer.output_tokens]
        assert "(" not in answer.text
        assert answer.text == greedy.text[: greedy.text.index("(")]
    # vLLM accepted `():`, an indent and `import` in one step; the last two are after the stop.
    assert scenes[VLLM].answers["stop string"].tokens == [199, 313, 1632, 795]
    assert scenes[VLLM].answers["stop string"].chunks == [1, 2, 1]


def test_ids_of_characters_of_several_tokens_are_complete(scenes):
    # 𓀀 and 🪿, each before `'` and `, '`, over and over: no stream of llama-server holds them all.
    goose, bird = (9284, 103, 123), (124373, 222, 222)
    for name in (LLAMA, LLAMA_PLAIN):
        tokens = scenes[name].answers["characters"].tokens
        assert tokens == [*(*bird, 516, 364, *goose, 516, 364) * 3][:24]


def test_rounds_make_the_length_and_what_was_accepted_past_its_end(scenes):
    for scene, answer in every({name: scenes[name] for name in (VLLM, LLAMA)}):
        if (counts := answer.counts) is None:
            assert (scene.facts.engine, answer.ask.key[0]) == ("vllm", "stop string")
            continue
        surplus = 1 + counts.rounds + counts.accepted - answer.output_tokens
        # llama-server drafts nothing for a last token alone, and counts no round.
        assert -1 * (scene.facts.engine == "llama.cpp") <= surplus <= 4
        assert sum(counts.by_position) == counts.accepted <= counts.drafted <= 4 * counts.rounds
        assert list(counts.by_position) == sorted(counts.by_position, reverse=True)


def test_vllm_tells_every_round(scenes):
    answer = scenes[VLLM].answers["greedy"]
    assert answer.counts == RoundCounts(
        rounds=13,
        drafted=52,
        accepted=12,
        by_position=(7, 5, 0, 0),
        by_round=tuple((4, accepted) for accepted in (1, 2, 0, 0, 1, 0, 2, 0, 2, 0, 2, 0, 2)),
    )
    # The last round accepted two and wrote a third, of which one fitted.
    assert answer.chunks == [1, 2, 3, 1, 1, 2, 1, 3, 1, 3, 1, 3, 1, 1]


def test_the_time_after_the_first_token_is_the_servers_own(scenes):
    # `generation_time_ms` and `predicted_ms` as they stand in the recordings.
    told = {VLLM: 0.741457, VLLM_PLAIN: 0.331852, LLAMA: 15.2315, LLAMA_PLAIN: 80.596549}
    for name, seconds in told.items():
        assert scenes[name].answers["greedy"].decode_seconds == pytest.approx(seconds, rel=1e-5)
    for _, answer in every(scenes):
        assert answer.decode_seconds is not None


@pytest.mark.parametrize("name", [VLLM, LLAMA])
def test_the_sums_of_requests_are_the_server_s_counters(scenes, name):
    scene = scenes[name]
    told = [answer.counts for answer in scene.answers.values() if answer.counts]
    # vLLM tells no rounds of the request that ended at a stop string: two, of 1 and 2 accepted.
    rounds, accepted = (2, 3) if len(told) < len(scene.answers) else (0, 0)
    assert scene.counted.rounds == sum(counts.rounds for counts in told) + rounds
    assert scene.counted.accepted == sum(counts.accepted for counts in told) + accepted


def test_a_server_without_speculation_tells_no_rounds(scenes):
    for name in (VLLM_PLAIN, LLAMA_PLAIN):
        facts = scenes[name].facts
        assert (facts.method, facts.k) == ("none", 0)
        for answer in scenes[name].answers.values():
            assert answer.counts is None


def test_speculation_at_temperature_0_wrote_what_the_plain_server_did(scenes):
    for speculating, plain in ((VLLM, VLLM_PLAIN), (LLAMA, LLAMA_PLAIN)):
        for name in ("greedy", "stop string", "characters"):
            one, other = scenes[speculating].answers[name], scenes[plain].answers[name]
            assert one.tokens == other.tokens


def test_what_a_server_says_of_itself(scenes):
    facts = scenes[VLLM].facts
    assert (facts.version, facts.model, facts.context_length) == ("0.32.0", "target", 512)
    assert (facts.method, facts.k, facts.prefix_cache) == ("draft_model", 4, False)
    assert facts.settings["speculative_model"] == "distilled"
    assert (facts.settings["dtype"], facts.settings["weights"]) == ("torch.float32", "target")
    facts = scenes[LLAMA].facts
    assert (facts.version, facts.model) == ("b11669-Debian", "qwen1.5.gguf")
    assert facts.prefix_cache is None
    assert facts.settings["ftype"] == "Q4_K - Medium"
    assert facts.settings["weights"] == "qwen1.5.gguf"
    assert (facts.context_length, facts.settings["slots"], facts.method) == (
        2048,
        "1",
        "draft-simple",
    )


def test_a_prompt_that_was_read_before_costs_no_less(scenes):
    # The plain vLLM runs with its prefix cache, and reads the same prompts over and over.
    assert scenes[VLLM_PLAIN].facts.prefix_cache
    for name in (LLAMA, LLAMA_PLAIN):
        assert all(answer.cached_tokens == 0 for answer in scenes[name].answers.values())


def test_log_probabilities_are_those_of_the_tokens_written(scenes):
    # One of the raw ones is -1.1103…; the margin is between it and the second best token.
    for name in (VLLM, VLLM_PLAIN):
        log_p = scenes[name].answers["log p"].log_p
        assert len(log_p) == 8
        assert log_p[0] == pytest.approx(-1.1103293895)
        assert scenes[name].margin == pytest.approx(0.8806343078)
    # After the truncations at temperature 0 every token is certain; a draft's are not computed.
    assert scenes[LLAMA_PLAIN].answers["log p"].log_p == [0.0] * 8
    assert scenes[LLAMA].answers["log p"].log_p is None


def test_a_prompt_beyond_the_context_is_refused_in_the_server_s_words(scenes):
    for scene in scenes.values():
        assert "answers 400" in scene.refused.message
        assert "context" in scene.refused.message


def test_rounds_of_a_head_on_vllm_are_those_of_its_replay(scenes):
    head, answers = ReplayedHead(), scenes[VLLM_HEAD].answers.values()
    assert sum(head.check_rounds(answer, 3) for answer in answers) > 20


def test_sums_of_a_head_on_llama_server_are_those_of_its_replay(scenes):
    head = ReplayedHead()
    for answer in scenes[LLAMA_HEAD].answers.values():
        counts = answer.counts or RoundCounts(drafted=0, accepted=0)
        assert head.sums(answer, 3) == (counts.drafted, counts.accepted)
    assert scenes[LLAMA_HEAD].counted.accepted > 0


def test_a_server_that_answers_nobody_else_counts_the_tokens_of_its_answers(scenes):
    """To the last token, with and without a draft: what it counts beyond them is another user's."""
    alone = [answer for name in (LLAMA, LLAMA_PLAIN) for answer in scenes[name].answers.values()]
    assert [answer.shared for answer in alone] == [False] * len(alone)
    for name in (VLLM, VLLM_PLAIN):
        written = sum(answer.output_tokens for answer in scenes[name].answers.values())
        assert abs(scenes[name].counted.written - written) <= 5
