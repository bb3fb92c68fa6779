// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Tells the daemon what the UDP sockets of all network namespaces are connected to, at once. The program is attached to
 * nothing that clients run through; it runs when the daemon reads.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The kernel's own types, as far as they are read. Where a socket has its state, each kernel says at the load. */
struct sock_common {
	volatile unsigned char skc_state;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

/* What stands here are arguments, in an order that does not change. */
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

	/* The last run is for the end, and has no socket. */
	if (!socket || !ctx->sk || !socket->pairs[0].backend_port)
		return 0;
	/*
	 * A socket that was disconnected, by its owner or because its backend had left, is there until it is closed: a
	 * process that has many of them would keep others from being found.
	 */
	if (ctx->sk->__sk_common.skc_state != BPF_TCP_ESTABLISHED)
		return 0;
	record.cookie = socket->cookie;
	record.netns = socket->netns;
	record.pair = socket->pairs[0];
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
