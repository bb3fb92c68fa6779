/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Between a packet and the rules: what stands in its headers becomes plain values. How those are written is told in
 * nat.h; no other header knows where in a packet something is.
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
 * What a packet says of the connection that it is of: TCP by a byte of flags, SCTP by chunks. Both are told in the
 * flags of TCP, so that one rule says what becomes of a flow.
 */

/* EXPECTS_REPLY is set for SCTP alone, and means another flag in TCP: the other side has to answer. */
enum { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, EXPECTS_REPLY = 8, TCP_ACK = 16 };

/* How many bytes of a header of IP say how long the packet is, in either family. */
#define IP_LENGTH_END 6

/* The length of a packet by its header of IP; 0: it is longer than that can say. */
INLINE __u32 ip_packet_length(const __u8 *ip)
{
	__u32 length;

	if (ip[0] >> 4 == 4)
		return ip[2] << 8 | ip[3];
	length = ip[4] << 8 | ip[5];
	return length ? length + sizeof(struct ipv6hdr) : 0;
}

/*
 * Whether a segment of TCP has something that the other side has to acknowledge. A segment that is too long for the
 * header of IP to say counts as one that has.
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
	/* With this header. */
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
	/* All others belong to an association that is there, and say nothing of it. */
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

/*
 * How many chunks are looked at. A chunk that says something stands before all data, and seldom behind more than two
 * others.
 */
#define CHUNKS_MAX 4

/*
 * What a packet of SCTP says by its first chunks, in the flags of TCP. `ip`: where the header of IP begins, which says
 * where the packet ends. What a frame has behind that is no chunk.
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

/* How many bytes the header before that of IP has: 14, or 0 at a device without such a header. */
const volatile __u32 link_header = ETH_HLEN;

/*
 * What is left to do with a packet: the step that comes next. A packet that is done with has no next step, and its
 * verdict of TC stands there instead: see finish() and get_verdict(). A step stands alone, because a program has room
 * for 512 bytes of stack, and the verifier for a million instructions.
 */
enum step {
	/* It is done with, and goes on as it is, also to programs of others. */
	STEP_PASS = TC_ACT_UNSPEC,
	/* It is done with, and ends here. */
	STEP_DROP = TC_ACT_SHOT,
	/* It is of no flow: it may be a client that arrives. */
	STEP_SELECT_BACKEND = 100,
	/* It has a backend, and no flow yet. */
	STEP_OPEN_FLOW = 101,
	/* Its flow is there, because another CPU was faster with a packet of the same client. */
	STEP_INGRESS_LOOKUP = 102,
	/* Nothing serves there, and the client is to hear that. */
	STEP_REJECT = 103,
	/* It may be an error about a packet of a flow. */
	STEP_ICMP_ERROR = 104,
	/* It goes on as it is, and the flow that it went past is to end. */
	PASS_AND_END_FLOW = 105,
	/* It ends here, with its flow: see accepts_for_other_backend(), and forward_first(). */
	DROP_AND_END_FLOW = 106,
	/* It has a record, and no ports yet. */
	STEP_COMMIT_FLOW = 107,
	/* It is the first of a flow, and goes to the backend. */
	STEP_FORWARD_FIRST = 108,
	/* It is of a flow that takes the shortcut. */
	STEP_FAST_PATH = 109,
	/* It goes to another node as it came. */
	STEP_ENCAP = 110,
	/* It came by another node, and is of a connection that this node does not know: the client is to hear that. */
	STEP_RESET_UNKNOWN_SEGMENT = 111,
	/* It is none of ours, and is as it was. */
	STEP_NOT_OURS = 112,
	/* It is of a connection that is not known here, and that another node may have let in. */
	STEP_ADOPT_FLOW = 113,
};

/* Ends the steps of a packet: with a verdict of TC, or with what bpf_redirect() returns. */
INLINE enum step finish(int verdict)
{
	return verdict;
}

INLINE bool is_finished(enum step step)
{
	return step < STEP_SELECT_BACKEND;
}

/* The verdict of TC that a finished packet has. */
INLINE int get_verdict(enum step step)
{
	return step;
}

/* The verdict of TC. A packet that has no verdict after its last step is dropped. */
INLINE int to_verdict(enum step step)
{
	return step >= STEP_SELECT_BACKEND ? TC_ACT_SHOT : get_verdict(step);
}

/* How many extension headers are followed. IPv6 allows more, and no host sends them. */
#define EXTENSIONS_MAX 6
/* Any header that is looked at begins before this. */
#define HEADERS_END 512

#define MORE_FRAGMENTS 0x2000
#define FRAGMENT_OFFSET 0x1fff
#define MORE_FRAGMENTS6 1
#define FRAGMENT_OFFSET6 0xfff8

/* What the headers of ICMP have in common in both families. The kernel's own headers of it are not for programs. */
struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__u32 rest;
};

/* The errors, and what of them says that a port is closed. */
enum {
	ICMP_UNREACHABLE = 3,
	ICMP_PORT_UNREACHABLE = 3,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMP6_UNREACHABLE = 1,
	ICMP6_PORT_UNREACHABLE = 4,
	/* All below are errors. */
	ICMP6_MESSAGES = 128,
};

/* Between which places a packet goes, and over which transport. */
struct tuple {
	struct endpoint source;
	struct endpoint destination;
	__u8 transport;
};

/* Which part of a datagram a packet is. */
enum frag_part { WHOLE, FIRST_FRAGMENT, LATER_FRAGMENT };

struct packet {
	struct tuple tuple;
	/* Where the headers of IP and of the transport begin. */
	__u32 ip;
	__u32 transport;
	/* enum frag_part, and of which datagram. */
	__u32 part;
	__u32 id;
	/* What it says of its connection, in the flags of TCP; see packet.h. */
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
 * Reads the pointers to the packet by hand: the compiler takes them for numbers of 32 bits, and the verifier takes them
 * for pointers.
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

/* A header of that size, or NULL. The bound on where it begins is for the verifier. */
INLINE void *get_header(const struct __sk_buff *skb, __u32 at, __u32 size)
{
	void *found = skb_data(skb) + (at & (HEADERS_END - 1));

	return found + size <= skb_end(skb) ? found : NULL;
}

/*
 * Makes the packet readable up to there, where the kernel has that part elsewhere. `false`: it is not so long, or was
 * not made readable.
 */
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

/* `false`: not a packet of IPv4 that makes sense. */
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
	/* Of the fragment header: nothing. */
	__u8 length;
	/* Of the fragment header. */
	__u16 offset;
	__u32 id;
};

/* A bit for the number of each extension header that others follow. */
#define BIT_OF(protocol) (1ULL << (protocol))
#define EXTENSION_BITS                                                                                       \
	(BIT_OF(IPPROTO_HOPOPTS) | BIT_OF(IPPROTO_ROUTING) | BIT_OF(IPPROTO_FRAGMENT) | BIT_OF(IPPROTO_AH) | \
	 BIT_OF(IPPROTO_DSTOPTS))

/* By one look at a bit: for each comparison with a number the verifier would look at what follows once more. */
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
 * What walk_extensions() returns: the transport, where it begins, and where the header of fragments stands; 0: there is
 * none.
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
 * Walks over the headers between that of IP and that of the transport. A later fragment has no header of the transport,
 * nor the extension headers between that and the header of fragments: it says which of them would come first. It reads
 * by copy, and stands alone: most packets have nothing there, and those that have are not in a hurry. -1: the headers
 * cannot be followed.
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

/* As parse4(). */
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

/* The ports, which all transports have at the same place, and what the packet says of its connection. */
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

/* Reads the headers of IP. `false`: the packet is none of ours, whatever it is. */
INLINE bool parse(struct __sk_buff *skb, struct packet *packet, bool v4)
{
	__u32 least = link_header + (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));

	packet->ip = link_header;
	return make_readable(skb, least) && (v4 ? parse4(skb, packet) : parse6(skb, packet));
}

INLINE bool is_transport(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* True of TCP and SCTP: client and backend agree first, and say when they are done. */
INLINE bool is_connection_oriented(__u8 transport)
{
	return transport != IPPROTO_UDP;
}

INLINE bool is_icmp(const struct packet *packet, bool v4)
{
	return packet->tuple.transport == (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/* What the steps of a client's first packet tell each other. */

/*
 * What is known of a client that arrives. It stands in a map, and each step reads it back from there: so the verifier
 * keeps no values of it, and looks at what follows once, not once for each way that leads there.
 */
struct scratch {
	struct packet packet;
	/* The backend that the client got, and for which port. */
	struct endpoint backend;
	__u32 port_index;
	/* The number of a namespace: the flow is a part of that namespace's share of the table. */
	__u32 share;
	__u32 device;
	/* What is known of the device by which it came, as enum device_flag. */
	__u32 flags;
	/* A client that came by a device of a pod is inside of this node. */
	__u32 from_pod;
	/* The backend is to see the port that the client sends from, where it can. */
	__u32 keeps_port;
	/* The service asks for its clients' addresses (policy Local), so the backend is one of this node's. */
	__u32 is_local;
	/* 0, or by which list that backend is to be remembered: see enum flow_flag. */
	__u32 affinity_flag;
	/* 0, or FLOW_REPLY_BY_FRONTEND: answers go as the frontend's address is routed. */
	__u32 reply_flag;
	/* Where the backend is on another node, the packet may go there as it came: see dsr_encap.h. */
	__u32 may_encap;
	/* 0, or FLOW_DECAP: another node has sent the packet, and has chosen this backend. */
	__u32 decap_flag;
	/* The packet is of a connection that another node has let in: it goes to a third node, or to the stack. */
	__u32 adopts;
	struct endpoint named_backend;
	/* How a packet looks between the client and this backend, or the one to which a packet goes as it came. */
	struct tuple translated;
	/* The number of the flow that is made, or of which a packet takes the shortcut. NO_FLOW: see has_no_flow(). */
	__u32 number;
	/* Of a packet that takes the shortcut: enum direction, and the serial of its flow. */
	__u32 direction;
	__u32 serial;
	/* The number, counted from 1, of a flow whose next packet does not go straight to its pod. 0: no such flow. */
	__u32 probe_neighbour;
	/* The second program has nothing to look at in the packet. */
	__u32 skips_egress;
	/* The device by which it leaves. */
	__u32 egress_device;
	/*
	 * Of a packet that goes to another node: the next host's address, of which family, and how long packets may be.
	 */
	__u32 next[4];
	__u32 next_family;
	__u32 mtu;
	/*
	 * The number of the flow that gives way to the new one, that the packet goes past, or that ends with the
	 * packet.
	 */
	__u32 victim;
	__u32 victim_serial;
	/* How readily that one is given up. */
	__u32 score;
	/* The same of the one that would be given up next. */
	__u32 second;
	__u32 runner_up_serial;
	__u32 runner_up_score;
	/* A backend that is sought in a list, and the part of the list that is left to search: see flow_state.h. */
	struct endpoint searched;
	__u32 first;
	__u32 left;
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

/* No record has this number. */
#define NO_FLOW (~0U)

/*
 * Whether a packet of no flow goes to another node as it came, and opens none: a reset, or an error about an answer, of
 * a connection that another node has let in.
 */
INLINE bool has_no_flow(const struct scratch *scratch)
{
	return scratch->number == NO_FLOW;
}

#endif
