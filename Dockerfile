# draftbench in a container, for a CPU or for CUDA. It has not been built yet: tell us what fails.
#   docker build -t draftbench --build-arg PIP_EXTRA_INDEX_URL=INDEX_OF_CPU_WHEELS .
#   docker run --rm -v "$PWD:/work" draftbench demo
# With CUDA (driver 580 or later, NVIDIA Container Toolkit):
#   docker build -t draftbench --build-arg DRAFTBENCH_TORCH=torch==2.13.0 .
#   docker run --rm --gpus all -v "$PWD:/work" draftbench selfcheck --device cuda
FROM python:3.12-slim
ARG PIP_EXTRA_INDEX_URL
ARG DRAFTBENCH_TORCH
COPY . /draftbench
RUN PIP_NO_CACHE_DIR=1 /draftbench/scripts/setup
WORKDIR /work
ENTRYPOINT ["/draftbench/.venv/bin/draftbench"]
