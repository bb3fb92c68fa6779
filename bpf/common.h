/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Plain values that all programs share.
 *
 * Owns: endpoints, a client's request for a backend, hashes, and the macros for functions. Reads and writes: nothing.
 *
 * A request holds a client, what it dials, and the backend that it gets. Only the caller knows whether it comes from a
 * socket or from a packet.
 */
#ifndef HOLDFAST_COMMON_H
#define HOLDFAST_COMMON_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

#define NS_PER_SECOND 1000000000ULL

#define INLINE static __always_inline
/*
 * A function for rare cases. After a system call little of a program is in the caches, so a run costs what it touches.
 */
#define NOINLINE static __noinline
/*
 * A global function: the verifier checks it once for all its callers. So it takes only the packet and numbers, and
 * reads everything else anew. Rarely needed code stands in such functions. The stacks of a function and its callers
 * share 512 bytes, and older kernels round each one up to a multiple of 32.
 */
#define GLOBAL __noinline
/* One access. The compiler neither repeats nor splits it. */
#define READ_ONCE(word) (*(const volatile typeof(word) *)&(word))

/*
 * Adds to a counter to which other processors add too. For any stronger order clang 21 takes an instruction that
 * returns the former value, and Linux before 5.12 has none.
 */
#define ATOMIC_ADD(counter, more) ((void)__atomic_fetch_add(counter, more, __ATOMIC_RELAXED))

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/*
 * Returns the same pointer, but makes it depend on `first`, so no processor reads there earlier. A branch alone does
 * not order two reads.
 */
INLINE const __u64 *load_after(const __u64 *word, __u64 first)
{
	asm volatile("%0 &= 0" : "+r"(first));
	return word + first;
}

/* The third word of ::ffff:a.b.c.d. */
#define V4_MAPPED_PREFIX bpf_htonl(0xffff)

/* An address and a port. IPv4 is mapped. */
struct endpoint {
	__u32 address[4];
	__u16 port;
};

/* What identifies a client with affinity. */
struct client_id {
	__u32 id[4];
	/* enum client_kind */
	__u8 kind;
};

struct lb_request {
	struct endpoint frontend;
	struct endpoint backend;
	/* Set at least where the list has affinity. */
	struct client_id client;
	__u32 port_index;
	/* The number of the service's namespace, which has a share of each table. */
	__u32 share;
	__u32 kind;
	__u32 scope;
	/* IPPROTO_TCP, IPPROTO_UDP, or, for a packet, IPPROTO_SCTP. */
	__u8 transport;
	/* Whether the client dials IPv4, also by an IPv6 socket. The compiler knows it wherever it is used. */
	bool v4;
};

/* What became of a request: it is none of ours, it got a backend, it was denied, or the slow path must decide. */
enum outcome { PASSED, SERVED, DENIED, UNSURE };

INLINE void endpoint4(struct endpoint *endpoint, __u32 address, __u16 port)
{
	endpoint->address[0] = 0;
	endpoint->address[1] = 0;
	endpoint->address[2] = V4_MAPPED_PREFIX;
	endpoint->address[3] = address;
	endpoint->port = port;
}

/*
 * 0 if two addresses are equal. There are no branches: the verifier would follow both ways of each one, in every turn
 * of a loop. The maps cannot grow until the verifier is done.
 */
INLINE __u32 address_diff(const __u32 *a, const __u32 *b)
{
	return (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]);
}

INLINE bool same_address(const __u32 *a, const __u32 *b)
{
	return !address_diff(a, b);
}

INLINE void copy_address(__u32 *to, const __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

INLINE __u64 mix(__u64 mixed, __u32 low, __u32 high)
{
	mixed = (mixed ^ ((__u64)high << 32 | low)) * 0x9e3779b97f4a7c15;
	return mixed ^ mixed >> 29;
}

INLINE __u64 mix_endpoint(__u64 mixed, const __u32 *address, __u16 port)
{
	mixed = mix(mixed, address[3], address[2] ^ port);
	return mix(mixed, address[1], address[0]);
}

#endif
