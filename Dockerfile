# The image of the server, for amd64 and arm64. docs/deployment.md has its size, layer by layer.
#   docker build -t eyeline:0.1.0 .                                    runs on CPUs
#   docker build -t eyeline:0.1.0-cuda --build-arg DEVICE=cuda .       runs on NVIDIA GPUs (amd64) and CPUs
# A digest pins the base to the byte: --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm
ARG DEVICE=cpu

# pip stays outside the environment that it fills, and so outside the image.
FROM ${BASE} AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_PYTHON=/opt/venv/bin/python
ARG TORCH=torch==2.13.0
RUN python -m venv --without-pip /opt/venv

FROM builder AS torch-cpu
# The index of the CPU builds; empty means pip's own configuration (on PyPI, that is the CUDA build for amd64).
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
# TORCH names the version.
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-compile ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$TORCH"

FROM builder AS torch-cuda
ARG TORCH_CUDA_INDEX_URL=
# TORCH names the version.
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-compile ${TORCH_CUDA_INDEX_URL:+--index-url "$TORCH_CUDA_INDEX_URL"} "$TORCH"

# One of the two stages above.
# hadolint ignore=DL3006
FROM torch-${DEVICE} AS dependencies
# otel has OpenTelemetry besides, for traces (--otlp-endpoint).
ARG LOCK=runtime
COPY requirements/${LOCK}.txt /src/requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-compile --require-hashes --no-deps --requirement "/src/requirements/${LOCK}.txt"

# What no import can reach goes: C++ headers, tests, torch's tools for them (import looks for torch_shm_manager, which
# stays). Then what a start imports is compiled: a quarter of the bytecode that all modules would be.
FROM dependencies AS environment
RUN pip uninstall --yes setuptools \
    && find /opt/venv/lib/python3.*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete \
    && find /opt/venv -depth -type d \
        \( -name tests -o -path '*/torch/test' -o -path '*/torch/share' -o -path '*/torch/include' \
            -o -path '*/nvidia/*/include' \) \
        -exec rm -rf {} + \
    && /opt/venv/bin/python -c "import anyio._backends._asyncio, fastapi_offline, httptools, numpy.typing, orjson, \
        prometheus_client.openmetrics.exposition, pydantic.v1, pydantic_settings, safetensors.numpy, safetensors.torch, \
        tokenizers, torch.utils._device, tqdm, \
        uvicorn.lifespan.on, uvicorn.loops.uvloop, uvicorn.protocols.http.httptools_impl"

FROM dependencies AS project
WORKDIR /src
COPY LICENSE README.md pyproject.toml ./
COPY app app
COPY eyeline eyeline
COPY model model
RUN pip wheel --no-build-isolation --no-deps --no-index --wheel-dir /dist . \
    && pip install --no-cache-dir --compile --no-deps --no-index --prefix /project /dist/*.whl

FROM ${BASE}
# The standard library comes without bytecode, and a read-only root keeps none: compiled once here, not at every start and
# every health check. pip has no work here.
RUN groupadd --gid 10001 eyeline \
    && useradd --uid 10001 --gid eyeline --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin eyeline \
    && library=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') \
    && python -m pip uninstall --yes --quiet --root-user-action ignore pip setuptools wheel \
    && rm -rf "$library/ensurepip" \
    && python -m compileall -q -x '/(idlelib|lib2to3|test|tkinter|turtledemo|[a-z]+-packages)/' "$library"
COPY --from=environment /opt/venv /opt/venv
# The default model alone; others are mounted, or fetched into a volume.
COPY --chmod=755 weights /app/weights
COPY --chmod=755 deploy/healthcheck.py /app/
COPY --from=project /project /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    EYELINE_HOST=0.0.0.0 EYELINE_WEIGHTS_DIR=/app/weights
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Eyeline" \
      org.opencontainers.image.description="A sentence-embedding server that shows where it looked" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
WORKDIR /app
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --start-interval=1s --retries=3 \
    CMD ["python", "-IS", "/app/healthcheck.py"]
ENTRYPOINT ["eyeline"]
CMD ["serve"]
