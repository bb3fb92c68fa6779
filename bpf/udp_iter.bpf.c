// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lists what the UDP sockets of all network namespaces are connected to.
 *
 * Owns: the iterator. Reads: `udp_sockets`. Writes: struct udp_connection to the daemon's file. The program hangs at no
 * hook of clients. It runs when the daemon reads.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The parts of the kernel's types that are read. The kernel tells the offset of the state at load. */
struct sock_common {
	volatile unsigned char skc_state;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

/* Arguments, whose order does not change. */
struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	struct udp_socket *value;
};

SEC("iter/bpf_sk_storage_map")
int dump_udp_peers(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct udp_socket *socket = ctx->value;
	struct udp_connection record;

	/* The last run marks the end, and has no socket. */
	if (!socket || !ctx->sk || !socket->pairs[0].backend_port)
		return 0;
	/*
	 * Skips a socket that its owner or the daemon disconnected. It exists until it is closed, and a process with
	 * many of them would crowd out others.
	 */
	if (ctx->sk->__sk_common.skc_state != BPF_TCP_ESTABLISHED)
		return 0;
	record.cookie = socket->cookie;
	record.netns = socket->netns;
	record.pair = socket->pairs[0];
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
