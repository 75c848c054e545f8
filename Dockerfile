ARG BASE=python:3.11-slim-bookworm

# What the server needs, in an order in which the dear layers change least: torch, the lock, the weights, the project.
FROM ${BASE} AS dependencies
ARG TORCH=torch==2.13.0
# The index of the CPU builds; empty means pip's own configuration (on PyPI, that is the CUDA build).
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$TORCH"
# otel has OpenTelemetry besides, for traces (--otlp-endpoint).
ARG LOCK=runtime
COPY requirements/${LOCK}.txt /src/requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --require-hashes --no-deps --requirement /src/requirements/${LOCK}.txt

FROM dependencies AS wheel
WORKDIR /src
COPY LICENSE README.md pyproject.toml ./
COPY app app
COPY eyeline eyeline
COPY model model
RUN pip wheel --no-build-isolation --no-deps --no-index --wheel-dir /dist .

FROM ${BASE}
LABEL org.opencontainers.image.title="Eyeline" \
      org.opencontainers.image.description="A sentence-embedding server that shows where it looked" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 eyeline \
    && useradd --uid 10001 --gid eyeline --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin eyeline
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 EYELINE_WEIGHTS_DIR=/app/weights
COPY --from=dependencies /opt/venv /opt/venv
# The default model alone; others are mounted, or fetched into a volume.
COPY --chmod=755 weights /app/weights
# Installed here, not copied, so that a change of the source is a layer of a few hundred kilobytes.
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/*.whl
WORKDIR /app
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
# Without proxies: http_proxy in the environment must not send the check elsewhere. urlopen raises on 503.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-IS", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8080/health/ready', timeout=2)"]
ENTRYPOINT ["eyeline"]
CMD ["serve", "--host", "0.0.0.0"]
