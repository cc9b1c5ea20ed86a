# The image of hostler: one static binary, CA roots, a folder for the config; no shell, no C library, nothing else.
#
#   docker build -t hostler .
#
# It builds for the architecture that it is built on, with BuildKit, which is Docker's default since version 23. Where public images
# cannot be pulled, name others: --build-arg BUILDER=… (has Rust 1.95, a C compiler and CA roots) --build-arg BASE=… (anything; it
# needs to hold nothing).
ARG BUILDER=rust:1.95-bookworm
ARG BASE=scratch

FROM ${BUILDER} AS build
ENV CARGO_INCREMENTAL=0
WORKDIR /src
COPY . .
# A static binary needs no base image. What was downloaded and built before stays in caches beside the layers: a change of the sources
# builds hostler alone. Cargo goes by times of change, and those of the checkout may be older than the caches.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    target="$(uname -m)-unknown-linux-gnu" \
    && find src crates -name '*.rs' -exec touch {} + \
    && RUSTFLAGS=-Ctarget-feature=+crt-static cargo build --release --locked --bin hostler --target "$target" \
    && mkdir -p /image/etc/hostler /image/etc/ssl/certs /image/tmp /image/var/lib/hostler \
    && strip --strip-all -o /image/hostler "target/$target/release/hostler" \
    && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
    # Without this file the C library asks DNS before /etc/hosts.
    && echo 'hosts: files dns' >/image/etc/nsswitch.conf \
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
