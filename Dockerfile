# draftbench in a container, for a CPU or for CUDA. The first was built and run with buildah, upon Debian's
# libraries and Python 3.11; the second has not been built yet.
#   docker build -t draftbench --build-arg PIP_EXTRA_INDEX_URL=INDEX_OF_CPU_WHEELS .
#   docker run --rm -v draftbench:/root -v "$PWD:/work" draftbench demo
# With CUDA (driver 580 or later, NVIDIA Container Toolkit):
#   docker build -t draftbench --build-arg DRAFTBENCH_TORCH=torch==2.13.0 .
#   docker run --rm --gpus all -v draftbench:/root -v "$PWD:/work" draftbench check --device cuda
# The volume of /root keeps models of the hub, and the key by which the requests of two runs are paired.
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
ARG DRAFTBENCH_TORCH
COPY . /draftbench
RUN PIP_NO_CACHE_DIR=1 /draftbench/scripts/setup
WORKDIR /work
ENTRYPOINT ["/draftbench/.venv/bin/draftbench"]
