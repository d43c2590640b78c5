"""The kinds of draft, a folder each: what is known of a kind, how it is checked and loaded, how it
drafts, what a replay of it says.

What is known without loading anything (no torch)
    kind         the record of a kind; each folder's `KIND` is one
    kinds        the list of kinds, and which an entry of `--drafts` is
    engine_only  the kinds that only serving engines run
    speculation  an entry of `--drafts` → what an engine needs to draft
    laws         what a replay says of the rounds along its response
What is loaded
    loading      the interface: with what a draft is checked and loaded
    built_in     the list of kinds that are loaded here
    check        all drafts of `draftbench check` → `CheckResult`
The kinds
    model, lookup, suffix, eagle3, mtp, stack
    heads        what kinds share that draft from the target's states
"""
