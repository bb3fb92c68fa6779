#!/bin/sh
# Asks servers as whom they see this client, by TCP and by UDP. A target is NAME=ADDRESS:TCP-PORT:UDP-PORT; an IPv6
# address has brackets. Each answer is a line: the name, the address that the server sees by TCP, and by UDP. Without an
# answer the word is `nobody`.
#
#   sources.sh SOURCE TARGET...    from an address of this machine, or from `any`
set -u
source=$1
shift
[ "$source" != any ] || source=

# A busy machine may answer late, and a packet of UDP may be lost.
again() {
	for attempt in 1 2 3; do
		seen=$("$@" 2>/dev/null)
		[ -z "$seen" ] || break
		sleep "$attempt"
	done
	echo "${seen:-nobody}" | sed 's/:[0-9]*$//; s/[][]//g'
}

by_tcp() { curl -s --max-time 5 ${source:+--interface "$source"} "http://$1:$2/clientip"; }
by_udp() { echo clientip | timeout 5 nc -u -W 1 ${source:+-s "$source"} "$(echo "$1" | tr -d '[]')" "$2"; }

ask() { echo "$1 $(again by_tcp "$2" "$3") $(again by_udp "$2" "$4")"; }

for target; do
	address=${target#*=}
	udp=${address##*:}
	address=${address%:*}
	ask "${target%%=*}" "${address%:*}" "${address##*:}" "$udp" &
done
wait
