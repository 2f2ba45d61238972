# The images of Contrafact, all from this file (docker-compose.yml builds them):
#   docker build --target gateway .                                                gateway and worker, no torch
#   docker build --target weights --build-arg SERVICE=weights .                    fetches weights, no torch
#   docker build --target model-service --build-arg SERVICE=caption_service .      one model service
# PyPI's torch is the CUDA build. For CPUs: --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PYTHON_IMAGE=python:3.11.17-slim

FROM ${PYTHON_IMAGE} AS libraries
ARG SERVICE=gateway
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /app
RUN python -m venv /venv
# Only what names the libraries, so that a change of our code does not install torch again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared/__init__.py shared/
RUN /venv/bin/pip install --no-cache-dir -c constraints.txt -e ".[${SERVICE%_service}]"

FROM ${PYTHON_IMAGE} AS runtime
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp contrafact \
    && install -d -o contrafact -g contrafact /weights
ENV PATH=/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/weights
WORKDIR /app
COPY --from=libraries /venv /venv
COPY shared/ shared/
USER 10001:10001

FROM runtime AS weights
CMD ["python", "-m", "shared.fetch_weights"]

FROM runtime AS server
ENV UVICORN_FACTORY=true \
    UVICORN_HOST=0.0.0.0 \
    UVICORN_ACCESS_LOG=false \
    UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN=30
CMD ["uvicorn"]

FROM server AS model-service
ARG SERVICE
ARG PORT=8001
COPY tinyworld/weights/ tinyworld/weights/
COPY ${SERVICE}/ ${SERVICE}/
ENV UVICORN_APP=${SERVICE}.app:create_app \
    UVICORN_PORT=${PORT} \
    HF_HUB_OFFLINE=1
EXPOSE ${PORT}

FROM server AS gateway
COPY gateway/ gateway/
COPY contrafact/ contrafact/
ENV UVICORN_APP=gateway.app:create_app \
    UVICORN_PORT=8000
EXPOSE 8000
