// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Notes which backends refuse the connects of this node's sockets.
 *
 * Owns: the tracepoint and `refused_connects`. Reads: the kernel's socket, `reverse`. Writes: `refused_connects`. The
 * tracepoint fires when a TCP socket receives an RST, so a connect that succeeds costs nothing. No processor waits for
 * another one here, and an RST costs at most three array accesses, however many there are.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include "common.h"
#include "maps.h"
#include "sock_rev_nat.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The daemon sets a random seed, so a tenant cannot choose an address that shares the entries of another one. */
const volatile __u64 hash_seed = 0;

/* AF_INET and AF_INET6, whose header is not part of the kernel's. */
enum family { FAMILY4 = 2, FAMILY6 = 10 };

/* The parts of the kernel's types that are read. The kernel tells their offsets at load. */
struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
} __attribute__((preserve_access_index));

typedef struct {
	__s64 counter;
} atomic64_t;

struct sock_common {
	__u32 skc_daddr;
	__u16 skc_dport;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	atomic64_t skc_cookie;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

/* Not pinned: it ends with the daemon. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, REFUSED_GROUPS *REFUSED_BACKENDS);
	__type(key, __u32);
	__type(value, struct refused_connect);
} refused_connects SEC(".maps");

/* `false`: the socket is of another family, or the kernel has no IPv6. */
INLINE bool get_peer(const struct sock *sk, struct endpoint *peer)
{
	const struct sock_common *common = &sk->__sk_common;

	if (common->skc_family == FAMILY4) {
		endpoint4(peer, common->skc_daddr, common->skc_dport);
		return true;
	}
	if (common->skc_family != FAMILY6 || !bpf_core_field_exists(common->skc_v6_daddr))
		return false;
	for (int word = 0; word < 4; word++)
		peer->address[word] = common->skc_v6_daddr.in6_u.u6_addr32[word];
	peer->port = common->skc_dport;
	return true;
}

/* Replaces the entry, unless it tells the same already: a backend that refuses many clients costs a write a second. */
INLINE void write_entry(struct refused_connect *entry, const struct endpoint *frontend, const struct endpoint *backend,
			__u64 check)
{
	__u32 second = bpf_ktime_get_ns() / NS_PER_SECOND;

	if (entry->check == check && entry->second == second)
		return;
	copy_address(entry->frontend, frontend->address);
	copy_address(entry->backend, backend->address);
	entry->frontend_port = frontend->port;
	entry->backend_port = backend->port;
	entry->check = check;
	entry->second = second;
}

/*
 * The entry at a place, or the one beside it while another backend has the place: of two backends that refuse clients
 * in turn, neither hides the other.
 */
INLINE struct refused_connect *find_entry(__u32 at, __u64 check)
{
	__u32 second = bpf_ktime_get_ns() / NS_PER_SECOND;
	struct refused_connect *entry = bpf_map_lookup_elem(&refused_connects, &at);

	if (!entry || entry->check == check || entry->second + 1 < second)
		return entry;
	at ^= 1;
	return bpf_map_lookup_elem(&refused_connects, &at);
}

INLINE void save_refusal(const struct endpoint *frontend, const struct endpoint *backend)
{
	__u64 mixed = mix(hash_seed, frontend->port, 0);
	__u32 group, at;
	struct refused_connect *entry;

	mixed = mix_endpoint(mixed, frontend->address, frontend->port);
	group = mixed >> 32 & (REFUSED_GROUPS - 1);
	mixed = mix_endpoint(mixed, backend->address, backend->port);
	at = group * REFUSED_BACKENDS + (mixed >> 32 & (REFUSED_BACKENDS - 1));
	entry = find_entry(at, mixed);
	if (entry)
		write_entry(entry, frontend, backend, mixed);
}

/* The socket still has the state in which the RST met it. */
SEC("tp_btf/tcp_receive_reset")
int note_reset(__u64 *ctx)
{
	const struct sock *sk = (const struct sock *)ctx[0];
	struct endpoint backend, frontend;

	if (sk->__sk_common.skc_state != BPF_TCP_SYN_SENT || !get_peer(sk, &backend))
		return 0;
	frontend = backend;
	if (restore_tcp_frontend(sk->__sk_common.skc_cookie.counter, &frontend))
		save_refusal(&frontend, &backend);
	return 0;
}
