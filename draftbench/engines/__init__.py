"""Serving engines: how each drafts, which pairs it takes, how it is started, asked and driven.

A file for each, whose record is at its end
    vllm, sglang, llama_cpp, tensorrt_llm, transformers
    openai           any server with OpenAI's API, asked as a black box
    every            all of these: whatever lists engines follows from it
What they fill in
    engine           the record of an engine, and what its functions are given
    pair_rules       how a target and a draft differ → an engine's answer
    server           a server that runs: what it is asked, and what it answers
    flags            words of a command line that several share
A server that runs
    start            it is started and stopped; guardian: even if draftbench is killed
    client           HTTP; faults: what can go wrong; secrets: what must not be shown
    connect          an address → the server there
    drive            requests, sent at a load → answers
"""
