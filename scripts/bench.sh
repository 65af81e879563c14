#!/usr/bin/env bash
# bench.sh BUILD: Headway's own figures of docs/BENCHMARKS.md on this machine: the demo model resident, streamed from host
# memory and from disk, each beside its floor; then the kernels. The peers' side of the tables needs scripts/peers.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
headway=$build/src/cli/headway
disk=$(mktemp -d "${TMPDIR:-/tmp}/headway-bench.XXXXXX")
trap 'rm -rf "$disk"' EXIT

run() { printf '\n$ headway bench %s\n' "$*"; "$headway" bench "$@" --no-progress; }
run prefill models/demo -c 2048,8192,16384
run decode models/demo -c 2048,8192,16384 --synthetic-kv
for phase in prefill "decode --synthetic-kv"; do
  # shellcheck disable=SC2086
  run $phase models/demo -c 16384 --placement host-only --kv-memory 8MiB
  # shellcheck disable=SC2086
  run $phase models/demo -c 16384 --placement disk-only --kv-memory 16MiB --disk-memory 1GiB --disk-path "$disk"
done
printf '\n$ kernels\n'
"$build/bench/linear_bench" --benchmark_min_time=0.1
"$build/bench/attention_bench" --benchmark_min_time=0.1
