# The image of hostler: one static binary, CA roots, a folder for the config; no shell, no C library, nothing else.
#
#   docker build -t hostler .
#
# It builds for the architecture that it is built on. Where public images cannot be pulled, name others:
# --build-arg BUILDER=… (has Rust 1.95, a C compiler and CA roots) --build-arg BASE=… (anything; it needs to hold nothing).
ARG BUILDER=rust:1.95-bookworm
ARG BASE=scratch

FROM ${BUILDER} AS build
ENV CARGO_INCREMENTAL=0
# A static binary needs no base image: musl.
RUN command -v musl-gcc >/dev/null || { apt-get update && apt-get install -y --no-install-recommends musl-tools; }
WORKDIR /src
# First the dependencies alone, a layer that stays until they change: they take most of the time.
COPY Cargo.toml Cargo.lock build.rs ./
COPY benches/pgo benches/pgo
RUN mkdir src && touch src/lib.rs && echo 'fn main() {}' > src/main.rs \
    && bash benches/pgo/build.sh \
    && rm -r src
COPY src src
# What `hostler new` writes is in the binary.
COPY sdk sdk
COPY templates templates
COPY wit wit
# Cargo goes by times of change, which are those of the checkout and so may be older than the layer above.
RUN find src -name '*.rs' -exec touch {} + \
    && hostler="$(bash benches/pgo/build.sh)" \
    && mkdir -p /image/etc/hostler /image/etc/ssl/certs /image/tmp /image/var/lib/hostler \
    && cp "$hostler" /image/hostler \
    && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
    && chmod 1777 /image/tmp /image/var/lib/hostler

FROM ${BASE}
LABEL org.opencontainers.image.title="hostler" \
      org.opencontainers.image.description="Runs a WASM handler on each message of a queue" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image/ /
# Writable whoever runs it, with a read-only root too: the health file, and what the config names by a relative path, such as
# the embedded queue.
VOLUME ["/tmp", "/var/lib/hostler"]
WORKDIR /var/lib/hostler
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=300s --retries=3 CMD ["/hostler","check-consumer-health"]
ENTRYPOINT ["/hostler", "run"]
