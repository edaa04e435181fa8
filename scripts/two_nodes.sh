#!/usr/bin/env bash
# Runs `nmt ARGUMENTS` on two machines that are made for it: two network namespaces of this one, joined by a virtual
# cable, each with its own torchrun. Needs root and iproute2. What real machines do differently: each line that
# begins with `ip netns exec` is a command on one of them, and they share the file system of the run directory.
#   sudo scripts/two_nodes.sh train experiment=toy_en_fr run=outputs/two_nodes
#   PYTHON=.venv/bin/python PROCESSES=2 scripts/two_nodes.sh train ...       (so many processes per machine)
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: two_nodes.sh VERB [ARGUMENTS of nmt]" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "two_nodes.sh: making network namespaces needs root" >&2; exit 2; }
python=${PYTHON:-python}
prefix=nmt$$
first=$prefix-a second=$prefix-b

clean_up() {
    ip netns delete "$first" 2>/dev/null || true
    ip netns delete "$second" 2>/dev/null || true
}
trap clean_up EXIT

ip netns add "$first"
ip netns add "$second"
ip link add "v$$a" netns "$first" type veth peer name "v$$b" netns "$second"
ip -n "$first" address add 10.77.0.1/24 dev "v$$a"
ip -n "$second" address add 10.77.0.2/24 dev "v$$b"
for end in "$first v$$a" "$second v$$b"; do
    read -r node cable <<< "$end"
    ip -n "$node" link set lo up
    ip -n "$node" link set "$cable" up
done

node() { # name, rank, network interface, arguments of nmt
    local name=$1 rank=$2 cable=$3
    shift 3
    GLOO_SOCKET_IFNAME=$cable NCCL_SOCKET_IFNAME=$cable ip netns exec "$name" \
        "$python" -m torch.distributed.run --nnodes 2 --node-rank "$rank" --nproc-per-node "${PROCESSES:-1}" \
        --master-addr 10.77.0.1 --master-port 29500 -m nmt "$@"
}

node "$second" 1 "v$$b" "$@" &
other=$!
trap 'kill -TERM $(jobs -p) 2>/dev/null; wait; exit 143' INT TERM
node "$first" 0 "v$$a" "$@"
wait "$other"
