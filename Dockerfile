# The image of hostler: the binary and nothing else. The base images are build arguments.
ARG BUILDER=rust:1.95-bookworm
ARG BASE=debian:bookworm-slim

FROM ${BUILDER} AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin hostler

FROM ${BASE}
COPY --from=build /src/target/release/hostler /hostler
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=300s --retries=3 CMD ["/hostler", "check-consumer-health"]
ENTRYPOINT ["/hostler", "run"]
