#!/usr/bin/env bash
# Asks the holdfast that `make run` started: its table, and the backends that the table names.
set -euo pipefail

admin=localhost:9890

show() {
	printf '\n$ %s\n' "$*"
	"$@"
}

curl --silent --fail --max-time 2 --output /dev/null "$admin/healthz" || {
	echo "try: nothing answers at $admin; start \`make run\` in another terminal first" >&2
	exit 1
}

show curl --silent --show-error "$admin/frontends"
show curl --silent --show-error "$admin/frontends?service=demo/empty"
show curl --silent --show-error "$admin/backends?service=demo/web"

cat <<'TEXT'

The table is what a client would get. The memory datapath does not reach the kernel, so connections are not
translated yet: `curl 10.96.0.80` would leave this machine unanswered. The backends in the table answer directly:
TEXT
show curl --silent --show-error --max-time 2 127.0.0.1:18081
show curl --silent --show-error --max-time 2 127.0.0.1:18082
