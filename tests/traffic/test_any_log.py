"""Any request with any answer is read back: in any form, whole, streamed, repeated or as text."""

import json
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traffic.asked import asked
from traffic.test_request_formats import FORMS, TEXTS, chat, requests
from traffic.written import KEPT, STREAMED, WHOLE

# An answer is no text in which a program speaks of an object, and no row of stars.
ANSWERS = TEXTS.filter(
    lambda text: not re.search(r"serializable|[*•█]{3}|gateway|error", text, re.I)
)
TEXT = {"a text": lambda text: text}
WAYS = {
    **{f"{api}, whole": write for api, write in (WHOLE | TEXT).items()},
    **{f"{api}, whole, as text": lambda text, write=write: json.dumps(write(text))
       for api, write in WHOLE.items()},
    **{f"{api}, streamed, {kept}": (write, keep)
       for api, write in STREAMED.items() for kept, keep in KEPT.items()},
}  # fmt: skip


@st.composite
def answers(draw, text):
    """An answer as an API returned it and a log kept it."""
    way = WAYS[draw(st.sampled_from(sorted(WAYS)))]
    if not isinstance(way, tuple):
        return way(text)
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    write, keep = way
    return keep(write(pieces))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(requests(), ANSWERS, st.sampled_from(sorted(set(FORMS) - {"Alpaca"})), st.data())
def test_an_answer_is_the_same_in_whichever_form_it_is_kept(asks, text, form, data):
    said, given_settings = asks
    row = FORMS[form](said, given_settings) | {"response": data.draw(answers(text))}
    request = asked(row)
    assert (request.messages, request.response) == (tuple(chat(said)), text)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS, ANSWERS, st.sampled_from(["echo", "return_full_text"]), st.data())
def test_an_answer_that_repeats_its_prompt_is_read_without_it(prompt, text, setting, data):
    answer = data.draw(answers(prompt + text))
    body = {"model": "m", "prompt": prompt, setting: True, "temperature": 0}
    request = asked({"request": body, "response": answer})
    assert (request.prompt, request.response) == (prompt, text)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(ANSWERS, st.sampled_from(sorted(KEPT)), st.sampled_from(sorted(STREAMED)), st.data())
def test_of_a_stream_that_lacks_its_end_nothing_is_an_answer(text, kept, api, data):
    chunks = STREAMED[api]([text, text])
    shown = [at for at, chunk in enumerate(chunks) if "usage" not in json.dumps(chunk)]
    end = data.draw(st.integers(1, shown[-1]))
    row = {"request": {"model": "m", "prompt": "Once"}, "response": KEPT[kept](chunks[:end])}
    assert asked(row).response is None
