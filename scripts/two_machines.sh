#!/usr/bin/env bash
# two_machines.sh HEADWAY [MODEL]: ranks in processes of two machines, which are made of this one:
# namespaces with a network, a host name and shared memory of their own, and a link between them.
# Checks that four ranks say what they say in one process, that their session goes on elsewhere,
# that disks and budgets are a machine's own, and that a rank that is killed, or a network that is
# lost, ends all. Needs root, Open MPI, iproute2, util-linux, procps and jq.
set -euo pipefail
headway=$(realpath "$1")
model=$(realpath "${2:-$(dirname "$0")/../models/demo}")
work=$(mktemp -d)
machines=()
finish() {
  pkill -9 -f "^$headway run .*$work" || true
  kill -9 "${machines[@]}" 2> /dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# on MACHINE COMMAND ...
on() { nsenter -t "${machines[$1]}" -n -u -i -m "${@:2}"; }

printf '127.0.0.1 localhost\n10.9.0.1 first\n10.9.0.2 second\n' > "$work/hosts"
mkdir "$work/own"
for name in first second; do
  unshare -n -u -i -m sleep 1000 &
  machines+=($!)
  disown
done
sleep 0.5
for i in 0 1; do
  on $i hostname "$(cut -d' ' -f2 <<< "$(sed -n $((i + 2))p "$work/hosts")")"
  on $i mount -t tmpfs tmpfs /dev/shm
  on $i mount -t tmpfs tmpfs "$work/own"
  on $i mount --bind "$work/hosts" /etc/hosts
  on $i ip link set lo up
done
on 0 ip link add link0 type veth peer name link1
on 0 ip link set link1 netns "${machines[1]}"
for i in 0 1; do
  on $i ip addr add 10.9.0.$((i + 1))/24 dev link$i
  on $i ip link set link$i up
done

# What mpirun starts its daemons by, in place of ssh.
cat > "$work/agent" << AGENT
#!/usr/bin/env bash
exec nsenter -t ${machines[1]} -n -u -i -m bash -c "\${*:2}"
AGENT
chmod +x "$work/agent"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Without these Open MPI notices a lost machine after eight minutes.
alive=(--mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3)
# ranks FLAGS ...: four of them, two on each machine.
ranks() {
  on 0 timeout -k 1 100 mpirun --oversubscribe --mca plm_rsh_agent "$work/agent" "${alive[@]}" \
    -n 4 --host first:2,second:2 "$headway" run "$model" --tp 4 --temperature 0 "$@"
}
# The text alone.
said() { jq -r .text; }
check() {
  if [ "$2" != "$3" ]; then
    printf 'FAILED: %s\n  expected: %s\n  found:    %s\n' "$1" "$2" "$3"
    exit 1
  fi
  echo "ok: $1"
}
failing() {
  local output
  if output=$("$@" 2>&1); then
    echo "did not fail"
  else
    grep -a -o -m 1 "headway: error: .*" <<< "$output" || tail -n 3 <<< "$output"
  fi
}

prompt="The old house stood at the end of"
# alone FLAGS ...: in one process.
alone() { "$headway" run "$model" --temperature 0 "$@"; }
one=$(alone --tp 4 -p "$prompt" -n 24 --json --session "$work/one" | said)
two=$(ranks -p "$prompt" -n 24 --json --session "$work/two" | said)
check "four ranks of two machines say what four of one process say" "$one" "$two"

more=" and"
one=$(alone -p "$more" -n 12 --json --session "$work/one" | said)
two=$(alone -p "$more" -n 12 --json --session "$work/two" | said)
check "their session goes on in one process" "$one" "$two"

head -c 12000 "$(dirname "$0")/../examples/document.txt" > "$work/text"
one=$(alone --tp 4 -f "$work/text" -n 24 --json | said)
two=$(ranks -f "$work/text" -n 24 --json --kv-memory 5MiB --host-memory 8MiB --disk-memory 1GiB \
  --disk-path "$work/own" | said)
check "with pages on disks of their own, too" "$one" "$two"

check "a session on disks of their own is refused" \
  "rank 2 of 4: cannot open $work/own/session: No such file or directory" \
  "$(failing ranks -p "$prompt" -n 4 --session "$work/own/session" | grep -o "rank [^;]*")"

check "budgets are those of one machine, of which two ranks have a half each" \
  "which has 1/2 of what is given, by --tp" \
  "$(failing ranks -p "$prompt" -n 4 --kv-memory 16KiB | grep -o "which has .*")"

# lost NAME COMMAND ...: runs the command in the middle of a long run, which then ends by itself.
lost() {
  ranks -p "$prompt" -n 15000 --session "$work/lost" > "$work/out" 2>&1 &
  local run=$! begin
  sleep 4
  if ! kill -0 $run 2> /dev/null; then
    cat "$work/out"
    check "$1: a run is under way" yes no
  fi
  begin=$SECONDS
  "${@:2}"
  wait $run || true
  local took=$((SECONDS - begin))
  check "$1 ends all within 10 s" yes "$([ $took -le 10 ] && echo yes || echo "$took s")"
  sleep 1
  check "and nothing is left" "" "$(pgrep -f "^$headway run .*$work" || true)"
}
kill_one() { kill -9 "$(pgrep -f "^$headway run .*$work" | tail -n 1)"; }
lost "a rank that is killed" kill_one
lost "a network that is lost" on 0 ip link set link0 down
