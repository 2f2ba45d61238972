# The images of Contrafact, all from this file (docker-compose.yml builds them):
#   docker build --target gateway .                                                gateway and worker, no torch
#   docker build --target weights .                                                fetches weights, no torch
#   docker build --target model-service --build-arg SERVICE=caption_service .      one model service
#   docker build --target cuda --build-arg SERVICE=diffusion_service .             the same with a compiler
# PyPI's torch is a CUDA build. For another one: --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PYTHON_IMAGE=python:3.11.17-slim

FROM ${PYTHON_IMAGE} AS base
# The base image has no bytecode, and a container cannot write any: each health check would compile its imports again.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp contrafact \
    && install -d -o contrafact -g contrafact /weights /quarantine \
    && python -m compileall -q -x '/(tests?|site-packages)/' "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
ENV PATH=/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/weights \
    UVICORN_FACTORY=true \
    UVICORN_HOST=0.0.0.0 \
    UVICORN_ACCESS_LOG=false \
    UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN=30
WORKDIR /app
RUN python -m venv /venv
COPY constraints.txt ./

FROM base AS torch
ARG PIP_EXTRA_INDEX_URL=""
# One layer for all model services; only other pins or another index change it.
RUN pip install --no-cache-dir -c constraints.txt torch transformers

FROM torch AS model-service
ARG SERVICE
ARG PORT=8001
# Only what names the libraries, so that a change of our code installs nothing.
COPY pyproject.toml wheel_layout.py README.md LICENSE ./
COPY shared/__init__.py shared/
RUN pip install --no-cache-dir -c constraints.txt -e ".[${SERVICE%_service}]"
COPY shared/ shared/
COPY tinyworld/weights/ tinyworld/weights/
COPY ${SERVICE}/ ${SERVICE}/
RUN python -m compileall -q shared "${SERVICE}"
USER 10001:10001
# Batches differ in size: segments of memory that grow leave no gaps that none of them fits into.
ENV UVICORN_APP=${SERVICE}.app:create_app \
    UVICORN_PORT=${PORT} \
    HF_HUB_OFFLINE=1 \
    PYTORCH_ALLOC_CONF=expandable_segments:True
EXPOSE ${PORT}
CMD ["uvicorn"]

# For NVIDIA GPUs: torch.compile starts a C++ compiler, and loads what it compiles from a folder that must be executable.
FROM model-service AS cuda
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
    && install -d -o contrafact -g contrafact /compiled
USER 10001:10001

FROM base AS weights
COPY pyproject.toml wheel_layout.py README.md LICENSE ./
COPY shared/__init__.py shared/
RUN pip install --no-cache-dir -c constraints.txt -e ".[weights]"
COPY shared/ shared/
RUN python -m compileall -q shared
USER 10001:10001
CMD ["python", "-m", "shared.profiles.fetch_weights"]

FROM base AS gateway
COPY pyproject.toml wheel_layout.py README.md LICENSE ./
COPY shared/__init__.py shared/
RUN pip install --no-cache-dir -c constraints.txt -e ".[gateway]"
COPY shared/ shared/
COPY gateway/ gateway/
COPY contrafact/ contrafact/
RUN python -m compileall -q shared gateway contrafact
USER 10001:10001
ENV UVICORN_APP=gateway.app:create_app \
    UVICORN_PORT=8000
EXPOSE 8000
CMD ["uvicorn"]
