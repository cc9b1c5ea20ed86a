#!/usr/bin/env bash
# Plants faults in the consumer and the SQS driver, and sees that the simulation finds each of them: mutants.sh [WORD], where
# WORD chooses those that are named with it.
set -euo pipefail
cd "$(dirname "$0")/mutants"
# With the versions of hostler itself.
cp ../../Cargo.lock Cargo.lock
exec cargo run --release --quiet -- "$@"
