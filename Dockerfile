# hexa on a CPU. Build and try it: docker build -t hexa . && docker run --rm hexa pretrain digits-moco-v2 --epochs 1
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /hexa
COPY . .
# --build-arg INDEX=ADDRESS takes torch from where its pages say that the CPU build is: a tenth of the size
ARG INDEX=
RUN if [ -n "$INDEX" ]; then pip install --no-cache-dir --index-url "$INDEX" torch torchvision; fi \
    && pip install --no-cache-dir --constraint constraints.txt .
ENTRYPOINT ["hexa"]
