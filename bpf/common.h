/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What one program run is about: a client, what it dials, and where it will go. Plain values: whether they come from a
 * socket or elsewhere is known to the code that fills them in.
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
 * What few clients need stands apart: after a system call little of a program is in the processor's caches, so a run
 * costs what it touches.
 */
#define NOINLINE static __noinline
/*
 * A function that the verifier checks once for all its callers: so it is given nothing but the packet and numbers, and
 * reads the rest anew. What most packets do not need stands in such functions. Its stack is beside that of its callers:
 * all of them together have 512 bytes, of which older kernels give each one a multiple of 32.
 */
#define GLOBAL __noinline
/* One access, which the compiler neither repeats nor divides. */
#define READ_ONCE(word) (*(const volatile typeof(word) *)&(word))

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/*
 * The same pointer, but not known before `first` is, so no processor reads there earlier. A branch alone does not
 * order two reads.
 */
INLINE const __u64 *load_after(const __u64 *word, __u64 first)
{
	asm volatile("%0 &= 0" : "+r"(first));
	return word + first;
}

/* The third word of ::ffff:a.b.c.d. */
#define V4_MAPPED_PREFIX bpf_htonl(0xffff)

/* An address and a port; IPv4 as mapped. */
struct endpoint {
	__u32 address[4];
	__u16 port;
};

/* What a client is known by when it comes again. */
struct client_id {
	__u32 id[4];
	/* enum client_kind */
	__u8 kind;
};

struct lb_request {
	struct endpoint to;
	struct endpoint backend;
	/* Filled in at least where a backend is chosen from a list with affinity. */
	struct client_id client;
	__u32 port_index;
	/* The number of the service's namespace, by which that has its share of what all services use up. */
	__u32 share;
	__u32 kind;
	__u32 scope;
	/* IPPROTO_TCP, IPPROTO_UDP, or, for a packet, IPPROTO_SCTP */
	__u8 transport;
	/* IPv4, also when it comes by an IPv6 socket. Known when compiling, wherever it is asked. */
	bool v4;
};

/* What became of a dial: not ours, led to a backend, denied, or left to be looked at with care. */
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
 * 0 if the two addresses are the same. Without branches, each of which the verifier would follow both ways, in every
 * turn of a loop: the time that the verifier takes is the time that the maps take to grow.
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
