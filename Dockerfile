# The command line with the lab, for a CPU or an NVIDIA GPU.
#
#   docker build --tag flashpoint .
#   docker run --rm --volume "$PWD":/work flashpoint train configs/digits.yaml
#   docker run --rm --gpus all --volume "$PWD":/work flashpoint bench --device cuda
FROM python:3.11-slim AS build
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --outdir /dist

FROM python:3.11-slim
# Triton compiles its launchers with a C compiler when a kernel first runs.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    pip install --no-cache-dir "$(ls /dist/*.whl)[lab]"
WORKDIR /work
ENTRYPOINT ["flashpoint"]
CMD ["--help"]
