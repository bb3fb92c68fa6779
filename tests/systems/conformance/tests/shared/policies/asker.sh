#!/usr/bin/env bash
# A client of servers that network policies protect (agnhost's netexec). A target is NAME@WAY=PROTOCOL,ADDRESS,PORT;
# each verdict is a line `NAME@WAY passes` or `NAME@WAY stopped`.
#
#   asker.sh ask TARGET...    asks each by a new connection, at once
#   asker.sh hold TARGET...   opens a connection to each and asks by it again and again; says at once how that began
#   asker.sh held             whether answers still come by the held connections
#   asker.sh end              ends the held connections
set -uo pipefail
folder=/tmp/asker

# Waits without a process; this pipe has no writer.
exec 9<> <(:)
pause() { read -r -t "$1" -u 9; }

open() { exec 3<>"/dev/$1/$2/$3"; }

question() {
	case $1 in
	tcp) printf 'GET /clientip HTTP/1.1\r\nHost: it\r\n\r\n' >&3 ;;
	udp) printf 'echo it' >&3 ;;
	esac
}

# TCP: waits for the answer, or for the end of the connection. UDP: waits a second for a packet, and reads its first
# byte; the rest goes with it. Dozens do this all the time, so it starts no program.
answer() {
	local line length=0
	if [[ $1 == udp ]]; then
		IFS= read -r -t 1 -N 1 line <&3 && [[ $line == i ]]
		return
	fi
	while IFS= read -r line <&3; do
		line=${line%$'\r'}
		[[ -n $line ]] || break
		[[ ${line,,} != content-length:* ]] || length=${line##* }
	done
	((length > 0)) && read -r -N "$length" _ <&3
}

# A packet of UDP may be lost, so it is sent up to three times.
is_answered() {
	local attempt
	open "$@" || return
	for attempt in 1 2 3; do
		question "$1" && answer "$1" && return
		[[ $1 == udp ]] || return
	done
	return "$attempt"
}

export -f open question answer is_answered

# Runs what follows for each target at once: its name, then protocol, address and port.
each() {
	local what=$1 target
	shift
	for target; do
		# Names and addresses have no blanks.
		# shellcheck disable=SC2086
		$what "${target%%=*}" ${target#*=} &
	done
	wait
}

ask() {
	if timeout 8 bash -c 'is_answered "$@"' it "${@:2}" 2>/dev/null; then echo "$1 passes"; else echo "$1 stopped"; fi
}

# Writes a byte for each answer, until the connection ends.
run() {
	open "${@:2}" || return
	while question "$2" || [[ $2 == udp ]]; do
		if answer "$2"; then printf . >>"$folder/$1"; else [[ $2 == udp ]] || return; fi
		pause 0.5
	done
}

hold() {
	: >"$folder/$1"
	setsid bash "$0" run "$@" </dev/null >/dev/null 2>&1 &
	echo $! >>"$folder/pids"
	for _ in {1..200}; do
		if [[ -s $folder/$1 ]]; then
			echo "$1 passes"
			return
		fi
		pause 0.1
	done
	echo "$1 stopped"
}

# How many answers there were by a held connection.
count() {
	local dots=
	IFS= read -r -d '' dots <"$1"
	REPLY=${#dots}
}

# Waits for two answers by each connection: one may have been under way. TCP sends again after 0.2 s, 0.6 s, 1.4 s, 3 s
# and 6 s, and a busy machine lets a client wait longer than that.
held() {
	local file
	declare -A before missing
	for file in "$folder"/*@*; do
		count "$file"
		before[$file]=$REPLY
	done
	for _ in {1..160}; do
		missing=()
		for file in "${!before[@]}"; do
			count "$file"
			((REPLY >= before[$file] + 2)) || missing[$file]=1
		done
		((${#missing[@]} > 0)) || break
		pause 0.25
	done
	for file in "${!before[@]}"; do
		echo "${file##*/} $([[ -n ${missing[$file]:-} ]] && echo stopped || echo passes)"
	done
}

end() {
	[[ ! -e $folder/pids ]] || xargs -r kill <"$folder/pids" 2>/dev/null
	rm -rf "$folder"
}

order=$1
shift
case $order in
ask) each ask "${@//,/ }" ;;
hold)
	end
	mkdir -p "$folder"
	each hold "${@//,/ }"
	;;
held | end | run) "$order" "$@" ;;
esac
