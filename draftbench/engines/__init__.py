"""Serving engines: how each drafts, which pairs it takes, how it is started, asked and driven.

A file for each
    vllm, sglang, llama_cpp, tensorrt_llm, transformers
    openai           any server with OpenAI's API, asked as a black box
    every            all of these: whatever lists engines follows from it
What they fill in
    engine           the record of an engine
    pair_rules       how a target and a draft differ → an engine's answer
    configuration    what is to be served → the text that `export` writes
    server           a server that runs: what it is asked, and what it answers
    flags, counters  what several share: words of a command line; Prometheus pages
A server that runs
    commands         the command line that starts one; guardian, start: it runs, and is stopped
    client           HTTP; faults: what can go wrong; secrets: what must not be shown
    connect          an address → the server there
    drive            requests, sent at a load → answers
"""
