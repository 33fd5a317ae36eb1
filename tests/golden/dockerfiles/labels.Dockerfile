FROM registry.example.com/scanflow/base@sha256:0000000000000000000000000000000000000000000000000000000000000000
USER 0:0
COPY code/ /app/
RUN python -m compileall -q /app || true
USER 10001:10001
WORKDIR /app
LABEL dev.scanflow.app="shop" dev.scanflow.code="1111111111111111111111111111111111111111111111111111111111111111" dev.scanflow.team="data" org.example.owner="the \"data\" team, \$PATH"
