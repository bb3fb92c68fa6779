/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets as plain values, and the steps that handle them.
 *
 * Owns: the parser of IP, TCP, UDP and SCTP headers, enum step, and the scratch map of the steps. Reads: the headers of
 * a packet. Writes: `packet_counts`. nat.h writes headers. No other header knows the offsets in a packet.
 */
#ifndef HOLDFAST_PACKET_H
#define HOLDFAST_PACKET_H

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include "common.h"
#include "packet_maps.h"

/*
 * --- Connection flags of TCP and SCTP. TCP has flags and SCTP has chunks. Both become TCP flags here, so that one
 * state machine serves both. ---
 */

/* EXPECTS_REPLY is set for SCTP alone: the other side has to reply. In TCP this bit is another flag. */
enum { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, EXPECTS_REPLY = 8, TCP_ACK = 16 };

/* The bytes of an IP header, in either family, up to the end of its length field. */
#define IP_LENGTH_END 6

/* The length of a packet from its IP header. 0: the field cannot hold the length. */
INLINE __u32 ip_packet_length(const __u8 *ip)
{
	__u32 length;

	if (ip[0] >> 4 == 4)
		return ip[2] << 8 | ip[3];
	length = ip[4] << 8 | ip[5];
	return length ? length + sizeof(struct ipv6hdr) : 0;
}

/*
 * Whether the other side has to acknowledge a TCP segment. A segment whose length does not fit into the IP header
 * counts as one with data.
 */
GLOBAL int has_data(struct __sk_buff *skb, __u32 at, __u32 transport)
{
	__u8 ip[IP_LENGTH_END], tcp[2];
	__u32 length, headers;

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)) || bpf_skb_load_bytes(skb, transport + 12, tcp, sizeof(tcp)))
		return 0;
	if (tcp[1] & TCP_FIN)
		return 1;
	headers = transport - at + (tcp[0] >> 4) * 4;
	length = ip_packet_length(ip);
	return !length || length > headers;
}

/* --- SCTP. --- */

/* The header of SCTP: ports, tag, sum. */
struct sctp_header {
	__u16 source;
	__u16 destination;
	__u32 tag;
	__u32 sum;
};

struct sctp_chunk {
	__u8 type;
	__u8 flags;
	/* Includes this header. */
	__u16 length;
};

enum {
	CHUNK_DATA = 0,
	CHUNK_INIT = 1,
	CHUNK_INIT_ACK = 2,
	CHUNK_HEARTBEAT = 4,
	CHUNK_ABORT = 6,
	CHUNK_SHUTDOWN = 7,
	CHUNK_SHUTDOWN_ACK = 8,
	CHUNK_COOKIE_ECHO = 10,
	CHUNK_SHUTDOWN_COMPLETE = 14,
	/* All other chunks belong to an established association, and change nothing. */
	CHUNKS_KNOWN = 15,
};

static const __u8 chunk_flags[CHUNKS_KNOWN] = {
	[CHUNK_DATA] = TCP_ACK | EXPECTS_REPLY,
	[CHUNK_INIT] = TCP_SYN,
	[CHUNK_INIT_ACK] = TCP_SYN | TCP_ACK,
	[CHUNK_HEARTBEAT] = TCP_ACK | EXPECTS_REPLY,
	[CHUNK_ABORT] = TCP_RST,
	[CHUNK_SHUTDOWN] = TCP_FIN | TCP_ACK | EXPECTS_REPLY,
	[CHUNK_SHUTDOWN_ACK] = TCP_FIN | TCP_ACK | EXPECTS_REPLY,
	[CHUNK_COOKIE_ECHO] = TCP_ACK | EXPECTS_REPLY,
	[CHUNK_SHUTDOWN_COMPLETE] = TCP_FIN | TCP_ACK,
};

/* How many chunks are read. A chunk that matters stands before all data, and seldom behind more than two others. */
#define CHUNKS_MAX 4

/*
 * The TCP flags for the first chunks of an SCTP packet. `ip`: the offset of the IP header, whose length says where the
 * packet ends. Padding of the frame behind it is no chunk.
 */
GLOBAL int sctp_flags(struct __sk_buff *skb, __u32 ip, __u32 at)
{
	__u8 lengths[IP_LENGTH_END];
	__u32 flags = 0, length, end;

	if (bpf_skb_load_bytes(skb, ip, lengths, sizeof(lengths)))
		return 0;
	length = ip_packet_length(lengths);
	end = length ? ip + length : skb->len;
	for (int seen = 0; seen < CHUNKS_MAX; seen++) {
		struct sctp_chunk chunk;

		if (at + sizeof(chunk) > end || bpf_skb_load_bytes(skb, at, &chunk, sizeof(chunk)))
			break;
		length = bpf_ntohs(chunk.length);
		if (length < sizeof(chunk))
			break;
		flags |= chunk.type < CHUNKS_KNOWN && chunk_flags[chunk.type] ? chunk_flags[chunk.type] : TCP_ACK;
		if (chunk.type == CHUNK_DATA)
			break;
		at += (length + 3) & ~3U;
	}
	return flags;
}

/* The bytes before the IP header: 14, or 0 at a device without a link header. */
const volatile __u32 link_header = ETH_HLEN;

/*
 * What is left to do with a packet: the next step. A finished packet has no next step, and its verdict of TC stands
 * there instead: see finish() and get_verdict(). Each step is a function of its own, because a program has 512 bytes of
 * stack, and the verifier stops after a million instructions. A step has the name of its function.
 */
enum step {
	/* Finished: the packet goes on as it is, also to other programs. */
	STEP_PASS = TC_ACT_UNSPEC,
	/* Finished: the packet ends here. */
	STEP_DROP = TC_ACT_SHOT,
	/* The packet belongs to no flow. It may be a new client's. */
	STEP_SELECT_BACKEND = 100,
	/* The client has a backend, and no flow yet. */
	STEP_OPEN_FLOW = 101,
	/* Another CPU has opened the flow meanwhile, for a packet of the same client. */
	STEP_INGRESS_LOOKUP = 102,
	/* No backend serves the client: reject it. */
	STEP_REJECT = 103,
	/* The packet may be an ICMP error about a packet of a flow. */
	STEP_ICMP_ERROR = 104,
	/* The packet goes on as it is, and the flow that has its tuple ends. */
	PASS_AND_END_FLOW = 105,
	/* The packet and its flow end here: see replies_for_other_backend() and forward_first(). */
	DROP_AND_END_FLOW = 106,
	/* The flow has a record, and no ports yet. */
	STEP_COMMIT_FLOW = 107,
	/* The flow is open: forward its first packet to the backend. */
	STEP_FORWARD_FIRST = 108,
	/* The packet belongs to a flow with a fast path. */
	STEP_FAST_PATH = 109,
	/* The packet goes encapsulated to another node. */
	STEP_ENCAP = 110,
	/* The packet was decapsulated, and belongs to a connection that this node does not know: reset it. */
	STEP_RESET_UNKNOWN_SEGMENT = 111,
	/* The packet is none of ours, and unchanged. */
	STEP_NOT_OURS = 112,
	/* This node does not know the connection. Another node may have opened it. */
	STEP_ADOPT_FLOW = 113,
	/* Whether the client hears of the error depends on where its frontend leads now. */
	STEP_CHECK_FRONTEND = 114,
};

/* Ends the steps of a packet with a verdict of TC, or with what bpf_redirect() returns. */
INLINE enum step finish(int verdict)
{
	return verdict;
}

INLINE bool is_finished(enum step step)
{
	return step < STEP_SELECT_BACKEND;
}

/* The verdict of a finished packet. */
INLINE int get_verdict(enum step step)
{
	return step;
}

/* The verdict of any packet. A packet that is not finished after the last step is dropped. */
INLINE int to_verdict(enum step step)
{
	return step >= STEP_SELECT_BACKEND ? TC_ACT_SHOT : get_verdict(step);
}

/* How many IPv6 extension headers are read. IPv6 allows more, but no host sends them. */
#define EXTENSIONS_MAX 6
/* Any header that is read begins before this offset. */
#define HEADERS_END 512

#define MORE_FRAGMENTS 0x2000
#define FRAGMENT_OFFSET 0x1fff
#define MORE_FRAGMENTS6 1
#define FRAGMENT_OFFSET6 0xfff8

/* The fields that ICMP headers of both families share. The kernel's headers for them are not for BPF programs. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__u32 rest;
};

/* ICMP types of errors, and the codes for a closed port and for a packet that is too big. */
enum {
	ICMP_UNREACHABLE = 3,
	ICMP_PORT_UNREACHABLE = 3,
	ICMP_FRAG_NEEDED = 4,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMP6_UNREACHABLE = 1,
	ICMP6_PORT_UNREACHABLE = 4,
	/* All lower types are errors. */
	ICMP6_MESSAGES = 128,
};

/* The source, the destination and the transport of a packet. */
struct tuple {
	struct endpoint source;
	struct endpoint destination;
	__u8 transport;
};

/* Which part of a datagram a packet is. */
enum frag_part { WHOLE, FIRST_FRAGMENT, LATER_FRAGMENT };

struct packet {
	struct tuple tuple;
	/* The offsets of the IP header and of the transport header. */
	__u32 ip;
	__u32 transport;
	/* enum frag_part, and the datagram's id. */
	__u32 part;
	__u32 id;
	/* The connection flags: TCP's own, or SCTP's as above. */
	__u8 flags;
};

INLINE void count_packet(enum packet_count which)
{
	__u32 at = which;
	__u64 *count = bpf_map_lookup_elem(&packet_counts, &at);

	if (count)
		*count += 1;
}

/*
 * Reads the pointer by inline assembly: the compiler takes it for a number of 32 bits, and the verifier for a pointer.
 */
INLINE void *skb_data(const struct __sk_buff *skb)
{
	void *data;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(data) : "r"(skb), "i"(offsetof(struct __sk_buff, data)));
	return data;
}

INLINE void *skb_end(const struct __sk_buff *skb)
{
	void *end;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(end) : "r"(skb), "i"(offsetof(struct __sk_buff, data_end)));
	return end;
}

/* A header of that size, or NULL. The mask on the offset is for the verifier. */
INLINE void *get_header(const struct __sk_buff *skb, __u32 at, __u32 size)
{
	void *start = skb_data(skb) + (at & (HEADERS_END - 1));

	return start + size <= skb_end(skb) ? start : NULL;
}

/* Makes the packet's first bytes linear. `false`: the packet is shorter, or the kernel refused. */
INLINE bool make_readable(struct __sk_buff *skb, __u32 up_to)
{
	if (LIKELY(skb_data(skb) + up_to <= skb_end(skb)))
		return true;
	return skb->len >= up_to && !bpf_skb_pull_data(skb, up_to);
}

INLINE void set_addresses4(struct tuple *tuple, __u32 source, __u32 destination)
{
	endpoint4(&tuple->source, source, 0);
	endpoint4(&tuple->destination, destination, 0);
}

/* `false`: not a sane IPv4 packet. */
INLINE bool parse4(struct __sk_buff *skb, struct packet *packet)
{
	struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	__u32 fragment, length;

	if (!ip || ip->version != 4)
		return false;
	length = ip->ihl * 4;
	if (length < sizeof(*ip))
		return false;
	set_addresses4(&packet->tuple, ip->saddr, ip->daddr);
	packet->tuple.transport = ip->protocol;
	packet->transport = packet->ip + length;
	packet->id = ip->id;
	fragment = bpf_ntohs(ip->frag_off);
	if (UNLIKELY(fragment & FRAGMENT_OFFSET))
		packet->part = LATER_FRAGMENT;
	else if (UNLIKELY(fragment & MORE_FRAGMENTS))
		packet->part = FIRST_FRAGMENT;
	return true;
}

struct extension_header {
	__u8 next;
	/* Unused in the fragment header. */
	__u8 length;
	/* Of the fragment header. */
	__u16 offset;
	__u32 id;
};

/* A bit for the protocol number of each extension header that is walked. */
#define BIT_OF(protocol) (1ULL << (protocol))
#define EXTENSION_BITS                                                                                       \
	(BIT_OF(IPPROTO_HOPOPTS) | BIT_OF(IPPROTO_ROUTING) | BIT_OF(IPPROTO_FRAGMENT) | BIT_OF(IPPROTO_AH) | \
	 BIT_OF(IPPROTO_DSTOPTS))

/* Tests one bit. The verifier would follow every branch of a comparison with each number. */
INLINE bool is_extension(__u8 protocol)
{
	return protocol < 64 && EXTENSION_BITS >> protocol & 1;
}

INLINE __u32 extension_length(__u8 protocol, const struct extension_header *extension)
{
	if (protocol == IPPROTO_FRAGMENT)
		return 8;
	if (protocol == IPPROTO_AH)
		return (extension->length + 2) * 4;
	return (extension->length + 1) * 8;
}

/*
 * The fields of what walk_extensions() returns: the transport, its offset, and the offset of the fragment header or 0.
 */
enum walk_result {
	WALK_TRANSPORT_AT = 8,
	WALK_FRAGMENT_AT = 17,
	WALK_END = HEADERS_END - 64,
};

INLINE int pack_walk_result(__u32 protocol, __u32 at, __u32 fragment)
{
	return at > WALK_END ? -1 : (int)(protocol | at << WALK_TRANSPORT_AT | fragment << WALK_FRAGMENT_AT);
}

/*
 * Walks over the extension headers. A later fragment has no transport header, nor the extension headers behind the
 * fragment header. The fragment header names the first of them. The function copies what it reads, and stands alone:
 * few packets have extension headers. -1: the headers cannot be walked.
 */
GLOBAL int walk_extensions(struct __sk_buff *skb, __u32 at, __u32 protocol)
{
	__u32 fragment = 0;

	for (int seen = 0; seen < EXTENSIONS_MAX; seen++) {
		struct extension_header extension;
		bool is_later;

		if (!is_extension(protocol))
			break;
		if (at > WALK_END || bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			return -1;
		is_later = protocol == IPPROTO_FRAGMENT && bpf_ntohs(extension.offset) & FRAGMENT_OFFSET6;
		if (protocol == IPPROTO_FRAGMENT)
			fragment = at;
		at += extension_length(protocol, &extension);
		protocol = extension.next;
		if (is_later)
			return pack_walk_result(protocol, at, fragment);
	}
	return is_extension(protocol) ? -1 : pack_walk_result(protocol, at, fragment);
}

INLINE bool read_fragment6(struct __sk_buff *skb, struct packet *packet, __u32 at)
{
	struct extension_header extension;
	__u16 offset;

	if (bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
		return false;
	offset = bpf_ntohs(extension.offset);
	packet->id = extension.id;
	if (offset & FRAGMENT_OFFSET6)
		packet->part = LATER_FRAGMENT;
	else if (offset & MORE_FRAGMENTS6)
		packet->part = FIRST_FRAGMENT;
	return true;
}

INLINE bool skip_extensions(struct __sk_buff *skb, struct packet *packet)
{
	int walked = walk_extensions(skb, packet->transport, packet->tuple.transport);
	__u32 fragment = walked >> WALK_FRAGMENT_AT & (HEADERS_END - 1);

	if (walked < 0)
		return false;
	packet->tuple.transport = walked;
	packet->transport = walked >> WALK_TRANSPORT_AT & (HEADERS_END - 1);
	return !fragment || read_fragment6(skb, packet, fragment);
}

/* As parse4(), for IPv6. */
INLINE bool parse6(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));

	if (!ip || ip->version != 6)
		return false;
	copy_address(packet->tuple.source.address, ip->saddr.in6_u.u6_addr32);
	copy_address(packet->tuple.destination.address, ip->daddr.in6_u.u6_addr32);
	packet->tuple.source.port = packet->tuple.destination.port = 0;
	packet->tuple.transport = ip->nexthdr;
	packet->transport = packet->ip + sizeof(*ip);
	if (LIKELY(!is_extension(ip->nexthdr)))
		return true;
	return skip_extensions(skb, packet) && make_readable(skb, packet->transport);
}

/* Reads the ports, which all transports have at the same offset, and the connection flags. */
INLINE bool parse_transport(struct __sk_buff *skb, struct packet *packet)
{
	bool is_tcp = packet->tuple.transport == IPPROTO_TCP;
	__u32 size = is_tcp ? sizeof(struct tcphdr) : sizeof(struct udphdr);
	const __u16 *ports;

	if (!make_readable(skb, packet->transport + size))
		return false;
	if (is_tcp) {
		struct tcphdr *tcp = get_header(skb, packet->transport, sizeof(*tcp));

		if (!tcp)
			return false;
		packet->flags = ((__u8 *)tcp)[13];
		ports = (__u16 *)tcp;
	} else {
		if (UNLIKELY(packet->tuple.transport == IPPROTO_SCTP))
			packet->flags = sctp_flags(skb, packet->ip, packet->transport + sizeof(struct sctp_header));
		ports = get_header(skb, packet->transport, sizeof(struct udphdr));
		if (!ports)
			return false;
	}
	packet->tuple.source.port = ports[0];
	packet->tuple.destination.port = ports[1];
	return true;
}

/* Reads the IP header. `false`: the packet is none of ours. */
INLINE bool parse(struct __sk_buff *skb, struct packet *packet, bool v4)
{
	__u32 min_length = link_header + (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));

	packet->ip = link_header;
	return make_readable(skb, min_length) && (v4 ? parse4(skb, packet) : parse6(skb, packet));
}

INLINE bool is_transport(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* True for TCP and SCTP. Both sides agree first, and say when they are done. */
INLINE bool is_connection_oriented(__u8 transport)
{
	return transport != IPPROTO_UDP;
}

INLINE bool is_icmp(const struct packet *packet, bool v4)
{
	return packet->tuple.transport == (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/* --- What the steps of one packet pass on. --- */

/* An ICMP error, and the packet that it quotes. */
struct icmp_error {
	struct packet packet;
	/* Eight bytes behind its IP header are present: the ports, and the UDP checksum. */
	struct packet quoted;
	/* The offset of the error's checksum. */
	__u32 sum;
	/* Whether the error says that the port is closed. */
	bool is_refusal;
	/* Whether the error says that the destination is out of reach. */
	bool is_unreachable;
};

/*
 * What the steps know of a packet. It stands in a map, and each step reads it back from there. So the verifier tracks
 * none of its values, and checks the code behind a step once.
 */
struct scratch {
	struct packet packet;
	/* An ICMP error. Its own copy: the packet becomes one of the quoted flow. */
	struct icmp_error error;
	/* The target of the frontend that the packet dials: see set_target(). */
	__u64 target;
	/* The client's backend, and the port index. */
	struct endpoint backend;
	__u32 port_index;
	/* The number of the namespace whose share the flow counts for. */
	__u32 share;
	__u32 device;
	/* The enum device_flag of the ingress device. */
	__u32 flags;
	/* The ingress device leads to a pod of this node. */
	__u32 from_pod;
	/* The backend shall see the client's own port, if that port is free. */
	__u32 keeps_port;
	/* The service has policy Local, so the backend is on this node. */
	__u32 is_local;
	/* 0, or the FLOW_AFFINITY_ flag of the list in which the client has affinity. */
	__u32 affinity_flag;
	/* 0, or FLOW_REPLY_BY_FRONTEND. */
	__u32 reply_flag;
	/* If the backend is on another node, the packet may go there encapsulated: see dsr_encap.h. */
	__u32 may_encap;
	/* 0, or FLOW_DECAP: another node has sent the packet, and has selected this backend. */
	__u32 decap_flag;
	/*
	 * The packet belongs to a connection that another node may have opened. It goes to a third node, or to the
	 * stack.
	 */
	__u32 is_adopted;
	struct endpoint named_backend;
	/* The tuple between the client and its backend. */
	struct tuple translated;
	/* On the fast path: the tuple behind the egress program. */
	struct tuple outgoing;
	/* The number of the packet's flow. NO_FLOW: see has_no_flow(). */
	__u32 number;
	/* On the fast path: enum direction, and the flow's serial. */
	__u32 direction;
	__u32 serial;
	/*
	 * The number, plus 1, of a flow whose next packet goes through the neighbour table instead of straight to its
	 * pod. 0: no flow.
	 */
	__u32 probe_neighbour;
	/* The egress program would change nothing in the packet. */
	__u32 skips_egress;
	/* The ifindex of the egress device. */
	__u32 egress_device;
	/* Of an encapsulated packet: the next hop's address and family, and the MTU. */
	__u32 next[4];
	__u32 next_family;
	__u32 mtu;
	/* The flow to evict, or to end with this packet. */
	__u32 victim;
	__u32 victim_serial;
	/* The eviction score of that flow. */
	__u32 score;
	/* The flow that would be evicted next, and its score. */
	__u32 second;
	__u32 runner_up_serial;
	__u32 runner_up_score;
	/* The backend that is looked for in a list, and the range that is left to search: see flow_state.h. */
	struct endpoint wanted_backend;
	__u32 search_first;
	__u32 remaining;
	/* See hide_value(). */
	__u32 hidden;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch_map SEC(".maps");

INLINE struct scratch *get_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch_map, &zero);
}

/*
 * Returns the same number, of which the verifier knows nothing then: otherwise it would follow everything behind once
 * for each value.
 */
INLINE __u32 hide_value(struct scratch *scratch, __u32 value)
{
	*(volatile __u32 *)&scratch->hidden = value;
	return READ_ONCE(scratch->hidden);
}

/* No record has this number. */
#define NO_FLOW (~0U)

/*
 * Whether a packet without a flow goes encapsulated to another node and opens no flow: a reset, or an ICMP error about
 * a reply, of a connection that another node has opened.
 */
INLINE bool has_no_flow(const struct scratch *scratch)
{
	return scratch->number == NO_FLOW;
}

#endif
