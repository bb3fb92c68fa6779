#!/usr/bin/env bash
# Builds the programs that tests start, which no test of cargo's asks for: the daemon, `bed_child`, `vm`, `drill`,
# `conformance`. Arguments go to cargo.
set -euo pipefail
cd "$(dirname "$0")/.."
# The smallest test is built with them: only then has cargo the same features for what they are made from as for what
# tests are made from. Without it most libraries and the daemon are compiled once more, which takes minutes.
exec cargo build --workspace --locked --features holdfast-tests/root --profile test --bins --test tidy "$@"
