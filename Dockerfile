# One environment with pinned versions, for `aotbuild verify KEY --rebuild` and for the experiments:
# a key names the versions of torch, diffusers, torchao and the compiler, and these are such.
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends g++ git && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir torch==2.14.1 diffusers==0.42.1 torchao==0.18.0 transformers==5.24.0 \
    && pip install --no-cache-dir -e '.[bench]'
ENTRYPOINT ["aotbuild"]
