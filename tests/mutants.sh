#!/usr/bin/env bash
# Plants faults in the consumer, the drivers and the retry service, and sees that the simulation, or a test of the retry service, finds
# each of them: mutants.sh [--quick] [WORD], where WORD chooses those that have it in their name or file. --quick plants a few that are
# spread over the list.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=static.sh
source tests/static.sh
planted=${1:-all}
if [ "$planted" = --quick ]; then planted=few && shift; fi
HOSTLER_PLANTED=$planted cargo build --release --workspace --all-targets --locked --quiet
exec "$release/mutants" "$@"
