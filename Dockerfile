# An image with Bespoke, for a server or a node of a deployment; compose.yaml starts both.
#
#   docker build --build-arg TORCH_INDEX=ADDRESS --tag bespoke .
#
# ADDRESS is the index of torch's CPU build: what torch's install page shows after --index-url for Linux, pip and CPU.
# Without it, pip takes the build of its own index, which on x86-64 needs several gigabytes of CUDA libraries. It is an
# additional index: a local version such as 2.13.0+cpu is preferred to 2.13.0, and everything else comes from pip's own.
FROM python:3.11-slim

ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/source/constraints.txt

WORKDIR /source
COPY constraints.txt ./
# hadolint ignore=DL3013
RUN pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0
COPY pyproject.toml setup.py README.md LICENSE ./
COPY src src
COPY evidence evidence
# hadolint ignore=DL3013
RUN pip install ".[flower,privacy,tables]" && useradd --uid 1000 --create-home bespoke && install --directory --owner bespoke /deployment

USER 1000
WORKDIR /deployment
ENTRYPOINT ["bespoke"]
CMD ["--help"]
