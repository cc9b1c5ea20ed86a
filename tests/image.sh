#!/usr/bin/env bash
# Builds the image hostler:test by the Dockerfile, without a network, on a running engine (see engine.sh).
# No image can be pulled everywhere, so its base images are made here: Debian by debootstrap, and a builder of it, the Rust
# toolchain and the crates at hand.
set -euo pipefail
cd "$(dirname "$0")/.."

have() { [ -n "$(docker image ls --quiet "$1")" ]; }

debian=hostler-test-debian:bookworm-1
if ! have "$debian"; then
  root="$(mktemp -d)"
  debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev,musl-tools bookworm "$root" >&2
  tar --directory "$root" --exclude='./var/cache/apt/archives/*.deb' --create . | docker import - "$debian"
  rm -rf "$root"
fi

# What cargo needs in order to build this lock file without a network.
key="$( (rustc --version; cat Cargo.lock) | sha256sum | cut -c1-16)"
builder="hostler-test-builder:$key"
if ! have "$builder"; then
  target="$(uname -m)-unknown-linux-musl"
  [ -d "$(rustc --print target-libdir --target "$target")" ] || rustup target add "$target"
  cargo fetch --locked
  context="$(mktemp -d)"
  sysroot="$(rustc --print sysroot)"
  others=()
  for other in "$sysroot"/lib/rustlib/*/; do
    case "$(basename "$other")" in
      "$target" | "$(uname -m)-unknown-linux-gnu" | etc) ;;
      *) others+=(--exclude="./lib/rustlib/$(basename "$other")") ;;
    esac
  done
  tar --directory "$sysroot" --exclude=./share --exclude=./libexec "${others[@]}" --create --file "$context/toolchain.tar" .
  # The machine's own config may say where crates come from.
  (cd "${CARGO_HOME:-$HOME/.cargo}" && tar --create --file "$context/crates.tar" registry/index registry/cache $(ls config.toml 2>/dev/null || true))
  cat >"$context/Dockerfile" <<-END
	FROM $debian
	ENV CARGO_HOME=/usr/local/cargo CARGO_NET_OFFLINE=true PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin
	ADD toolchain.tar /usr/local/rust/
	ADD crates.tar /usr/local/cargo/
	END
  # Those of earlier lock files.
  docker image ls --format '{{.Repository}}:{{.Tag}}' hostler-test-builder | xargs --no-run-if-empty docker image rm >&2
  docker build --network none --tag "$builder" --tag hostler-test-builder:latest "$context" >&2
  rm -rf "$context"
fi

docker build --network none --build-arg BUILDER="$builder" --tag hostler:test . >&2
# The same over a base image that has a shell.
docker build --network none --build-arg BUILDER="$builder" --build-arg BASE="$debian" --tag hostler:test-debian . >&2
# Layers that no build has used for long.
docker image prune --force --filter until=168h >/dev/null
