# hexa on a CPU. `make docker` builds and tries it.
FROM python:3.11-slim
WORKDIR /hexa
COPY . .
# --build-arg INDEX=ADDRESS takes torch from where its pages say that the CPU build is: a tenth of the size
ARG INDEX=
RUN pip install --no-cache-dir --constraint constraints.txt ${INDEX:+--extra-index-url "$INDEX"} .
ENTRYPOINT ["hexa"]
