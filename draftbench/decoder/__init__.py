"""The built-in speculative decoder, from the rounds down to the kernels.

Rounds
    speculate          draft, verify, accept: one round after another, for several rows at once
    sampling           which draft tokens are accepted, and what is drawn in place of the first
                       that is not
    drafters           what every drafter does in a round; each is in its folder of `drafts`
What runs a model
    runner             the interface: tokens → logits, caches, tasks, clocks
    llama              our own runner, for models of Llama's shape
    any_transformer    transformers' modules, for all others
    translated         a draft of another vocabulary
    scripted_model     a function in place of a model, for tests
What a model is made of
    attention, linear, quantized_linear, mixture
On CPUs
    compiling          how Numba compiles kernels, and what they share
    cpu_products       products with 16-bit weights
    cpu_kernels        norms and gates
    cpu_attention      attention
    cpu_layers         all of a pass's layers in one call
On GPUs
    cuda_graphs        passes that are recorded once and played
    fused, kernels     a layer in few launches
    device             which GPU or CPU, how many threads
"""
