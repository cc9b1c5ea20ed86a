#!/usr/bin/env bash
# Builds hostler as its image holds it: static, and optimised across crates by what train.sh saw of a worker's work (PGO), where
# that is known of the architecture. Prints where the binary lies; arguments go to cargo.
# build.sh --train builds it so that it counts what it runs instead, and writes that down when it ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
architecture=$(uname -m)
triple=$architecture-unknown-linux-musl
profile=$here/$architecture.profdata

command -v musl-gcc >/dev/null || { echo "musl-gcc is missing (Debian: musl-tools)" >&2 && exit 1; }
[ -d "$(rustc --print target-libdir --target "$triple")" ] || rustup target add "$triple" >&2

flags=()
if [ "${1:-}" = --train ]; then
  shift
  flags+=(-Cprofile-generate)
elif [ -e "$profile" ]; then
  if [ "$(bash "$here/of.sh")" != "$(cat "$profile.of")" ]; then
    echo "$profile is of other dependencies or another Rust: it may help less, until benches/pgo/train.sh makes it anew" >&2
  fi
  # What is not in the profile is taken for what seldom runs. Functions that changed since are built without it, and not told of.
  # The sum is there for cargo, which does not look into the file.
  flags+=("-Cprofile-use=$profile" -Cllvm-args=-inline-threshold=100 -Cllvm-args=-no-pgo-warn-mismatch)
  flags+=("--cfg=pgo=\"$(sha256sum "$profile" | cut -c1-16)\"")
fi
# shellcheck disable=SC2206 # As cargo splits them.
flags=(${RUSTFLAGS:-} ${flags[@]+"${flags[@]}"})
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
[ -z "$CARGO_ENCODED_RUSTFLAGS" ] || export CARGO_ENCODED_RUSTFLAGS
cargo build --profile image --locked --bin hostler --target "$triple" --manifest-path "$root/Cargo.toml" "$@"
echo "${CARGO_TARGET_DIR:-$root/target}/$triple/image/hostler"
