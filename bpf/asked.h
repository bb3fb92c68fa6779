/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the kernel has told of ways in this second, kept by each CPU for whatever asks the very same.
 *
 * A question is all that the kernel looks at, byte for byte, so an answer is given to nothing else that asks. Where the
 * kernel looks at no ports, the question has none, and all connections between two hosts ask the same.
 */
#ifndef HOLDFAST_ASKED_H
#define HOLDFAST_ASKED_H

#include "flow.h"
#include "packet.h"
#include "way.h"

/* How many answers a CPU keeps: a power of two. Where two questions have one place, the later one has it. */
#define ASKED_WAYS 1024
#define ASKED_BITS 10

/*
 * The question is the first part of what the kernel is given, but for the length of the packet: the rest of that it
 * only writes.
 */
#define QUESTION_WORDS 6
_Static_assert(QUESTION_WORDS * 8 == __builtin_offsetof(struct bpf_fib_lookup, ipv6_dst) + 16, "it ends with where to");

union route {
	struct bpf_fib_lookup asked;
	__u64 words[sizeof(struct bpf_fib_lookup) / 8];
};

struct asked_way {
	__u64 question[QUESTION_WORDS];
	/* As the kernel wrote it. */
	union route answer;
	/* What the kernel returned: the whole way, or only the device, of which the neighbour is not known. */
	__u32 found;
	/* In which second; 0: there is no answer. */
	__u32 second;
	__u32 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ASKED_WAYS);
	__type(key, __u32);
	__type(value, struct asked_way);
} asked_ways SEC(".maps");

/*
 * A length that no way is too short for: the kernel tells how long packets may be on a way only where it is asked for
 * one.
 */
#define ANY_LENGTH 1

/* Part of an IPv6 packet's class and label: the class. */
#define CLASS6 bpf_htonl(0x0ff00000)

/* What a packet says that its way may depend on, beside where it goes: the type of service, or the class and label. */
INLINE __u32 class_of(const struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	if (v4) {
		const struct iphdr *ip = header(skb, packet->ip, sizeof(*ip));

		return ip ? ip->tos : 0;
	} else {
		const struct ipv6hdr *ip = header(skb, packet->ip, sizeof(*ip));

		return ip ? *(const __u32 *)ip & bpf_htonl(0x0fffffff) : 0;
	}
}

/*
 * Puts the question how a packet goes on that comes by a device. `flags`: what is known of that device; it says whether
 * ports and labels may be left out.
 */
INLINE void set_question(union route *route, const struct tuple *tuple, __u32 class, __u32 came, __u32 flags, bool v4)
{
	struct bpf_fib_lookup *asked = &route->asked;
	bool is_plain = flags & (v4 ? DEVICE_PLAIN4 : DEVICE_PLAIN6);

	asked->family = v4 ? FAMILY4 : FAMILY6;
	asked->l4_protocol = tuple->transport;
	asked->sport = is_plain ? 0 : tuple->source.port;
	asked->dport = is_plain ? 0 : tuple->destination.port;
	asked->ifindex = came;
	if (v4) {
		asked->tos = class;
		asked->ipv4_src = tuple->source.address[3];
		asked->ipv4_dst = tuple->destination.address[3];
	} else {
		asked->flowinfo = is_plain ? class & CLASS6 : class;
		copy_address(asked->ipv6_src, tuple->source.address);
		copy_address(asked->ipv6_dst, tuple->destination.address);
	}
}

INLINE struct asked_way *place_of_question(const union route *route)
{
	__u64 mixed = 0;
	__u32 at;

	for (int word = 0; word < QUESTION_WORDS; word++)
		mixed = (mixed ^ route->words[word]) * 0x9e3779b97f4a7c15;
	at = mixed >> (64 - ASKED_BITS);
	return bpf_map_lookup_elem(&asked_ways, &at);
}

/* Without branches, as differences() is, and for the same reason. */
INLINE bool is_same_question(const struct asked_way *way, const union route *route)
{
	__u64 differs = 0;

	for (int word = 0; word < QUESTION_WORDS; word++)
		differs |= way->question[word] ^ route->words[word];
	return !differs;
}

/*
 * Whether an answer is one for a packet of that length; 0: only the device is asked for. Kernels that tell no length
 * give the one back for which they were asked.
 */
INLINE bool is_answer_for(const struct asked_way *way, __u32 length)
{
	return !length || (way->found == BPF_FIB_LKUP_RET_SUCCESS && length <= way->answer.asked.mtu_result);
}

/*
 * Has the question answered in its own place, for a packet of that length as above, and returns what the kernel does.
 * That there is no way is not kept: one that comes is to be found at once.
 */
INLINE long ask(struct __sk_buff *skb, union route *route, __u32 length)
{
	struct asked_way *way = place_of_question(route);
	__u32 now = seconds();
	bool is_same;
	long found;

	if (!way)
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	is_same = way->second == now && is_same_question(way, route);
	if (is_same && is_answer_for(way, length)) {
		*route = way->answer;
		return way->found;
	}
	if (!is_same) {
		way->second = 0;
		for (int word = 0; word < QUESTION_WORDS; word++)
			way->question[word] = route->words[word];
	}
	route->asked.tot_len = length ? length : ANY_LENGTH;
	found = look_up(skb, &route->asked);
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) {
		way->answer = *route;
		way->found = found;
		way->second = now;
	}
	return found;
}

/* As way_out(), for what may have been asked in this second. */
INLINE __u32 way_asked(struct __sk_buff *skb, const struct tuple *tuple, __u32 class, __u32 came, __u32 flags, bool v4)
{
	union route route = {};
	long found;

	set_question(&route, tuple, class, came, flags, v4);
	found = ask(skb, &route, 0);
	return way_told(found, &route.asked);
}

#endif
