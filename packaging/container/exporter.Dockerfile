# The exporter, for a sidecar (sidecar.yaml).
#   docker build -f packaging/container/exporter.Dockerfile -t lanemalloc-exporter .
# It takes the wheel that `make dist` has made.
FROM python:3.13-slim
COPY dist/*-manylinux_2_28_x86_64.whl /wheels/
# hadolint ignore=DL3013,DL3042
RUN pip install --no-cache-dir "$(echo /wheels/lanemalloc-*.whl)[exporter]" && rm -r /wheels
EXPOSE 9464
ENTRYPOINT ["lanemalloc", "exporter", "--listen", ":9464"]
