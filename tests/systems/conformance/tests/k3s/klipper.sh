#!/usr/bin/env bash
# Sets the rules of klipper-lb 0.4.17 (its program `entry`) for one port in the network of a pod. They send packets for
# SRC_PORT on to DEST_IPS at DEST_PORT with the pod's address, and drop sources outside of SRC_RANGES.
set -euo pipefail

# Prints the program for the family of an address or range.
tables() { if [[ $1 == *:* ]]; then echo ip6tables; else echo iptables; fi; }

accept() {
	"$(tables "$1")" -w -t filter -I FORWARD -s "$1" -p "$DEST_PROTO" --dport "$DEST_PORT" -j ACCEPT
}

send_on() {
	local tables to=$1
	tables=$(tables "$1")
	[[ $1 != *:* ]] || to="[$1]"
	"$tables" -w -t filter -A FORWARD -d "$1" -p "$DEST_PROTO" --dport "$DEST_PORT" -j DROP
	"$tables" -w -t nat -I PREROUTING -p "$DEST_PROTO" --dport "$SRC_PORT" -j DNAT --to "$to:$DEST_PORT"
	"$tables" -w -t nat -I POSTROUTING -d "$1" -p "$DEST_PROTO" -j MASQUERADE
}

for range in ${SRC_RANGES//,/ }; do accept "$range"; done
for address in ${DEST_IPS//,/ }; do send_on "$address"; done
exec sleep infinity
