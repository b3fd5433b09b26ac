# hexa on a CPU. `make docker` builds and tries it.
FROM python:3.11-slim
WORKDIR /hexa
COPY . .
# --build-arg INDEX=ADDRESS takes torch from where its pages say that the CPU build is: a tenth of the size
ARG INDEX=
RUN if [ -n "$INDEX" ]; then pip install --no-cache-dir --constraint constraints.txt --index-url "$INDEX" torch torchvision; fi \
    && pip install --no-cache-dir --constraint constraints.txt .
ENTRYPOINT ["hexa"]
