/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Between a packet and the rules: what stands in its headers becomes plain values, and what was decided is written into
 * them. No other header knows where in a packet something is.
 *
 * A valid checksum before is a valid one after, and a wrong one stays wrong.
 */
#ifndef HOLDFAST_PACKET_H
#define HOLDFAST_PACKET_H

#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include "dial.h"
#include "flow_maps.h"

/* How long the header before that of IP is: 14, and 0 at a device that knows none. */
const volatile __u32 link_header = ETH_HLEN;

/* By which a firewall knows what is sent on for a service, as it knew kube-proxy's; 0: by nothing. */
const volatile __u32 forward_mark = 0;

/*
 * A function that the verifier looks at once for all callers, so it is told nothing but the packet and numbers, and
 * reads the rest anew. What most packets do not need stands in such functions. Its stack is beside that of its callers:
 * all of them together have 512 bytes, of which older kernels give each one a multiple of 32.
 */
#define ALONE __noinline

/* The packet goes on as it is, also to programs of others. */
#define NEXT (-1)
/* It ends here. */
#define SHOT 2

/*
 * What is to be done next with a packet, beside what becomes of it. A step stands alone, because a program has room for
 * 512 bytes, and the verifier for a million ways.
 */
enum step {
	/* It is of no flow: it may be a client that arrives. */
	ARRIVES = 100,
	/* It has a backend, and no flow yet. */
	CHOSEN = 101,
	/* Its flow is there, because another CPU was faster with a packet of the same client. */
	FOLLOWS = 102,
	/* Nothing serves there, and the client is to hear that. */
	REFUSED = 103,
	/* It may be an error about a packet of a flow. */
	IS_ERROR = 104,
	/* It goes on as it is, and the flow that it went past is to end. */
	IS_PAST = 105,
	/* It ends here, with its flow: see agrees_for_another(). */
	IS_FOREIGN = 106,
	/* It has a record, and no ports yet. */
	BEGUN = 107,
};

/* IPv6 allows more, and no host sends them. */
#define EXTENSIONS 6
/* Any header that is looked at begins before this. */
#define HEADERS_END 512

#define MORE_FRAGMENTS 0x2000
#define FRAGMENT_OFFSET 0x1fff
#define MORE_FRAGMENTS6 1
#define FRAGMENT_OFFSET6 0xfff8

/* What the two families have in common: their own headers are not for programs. */
struct icmp {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__u32 rest;
};

/* The errors, and what of them says that a port is closed. */
enum {
	ICMP_UNREACHABLE = 3,
	ICMP_NO_PORT = 3,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMP6_UNREACHABLE = 1,
	ICMP6_NO_PORT = 4,
	/* All below are errors. */
	ICMP6_MESSAGES = 128,
};

/* Between which places a packet goes, and over which transport. */
struct tuple {
	struct place source;
	struct place destination;
	__u8 transport;
};

/* What a packet is a part of. */
enum part { WHOLE, FIRST_FRAGMENT, LATER_FRAGMENT };

struct packet {
	struct tuple tuple;
	/* Where the headers of IP and of the transport begin. */
	__u32 ip;
	__u32 transport;
	/* enum part, and of which datagram. */
	__u32 part;
	__u32 id;
	/* Of TCP: the byte of its flags. */
	__u8 flags;
};

enum { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, TCP_ACK = 16 };

INLINE void count_packet(enum packet_count which)
{
	__u32 at = which;
	__u64 *count = bpf_map_lookup_elem(&packet_counts, &at);

	if (count)
		*count += 1;
}

/* Read by hand: the compiler takes them for numbers of 32 bits, and the verifier takes them for pointers. */
INLINE void *data_of(const struct __sk_buff *skb)
{
	void *data;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(data) : "r"(skb), "i"(offsetof(struct __sk_buff, data)));
	return data;
}

INLINE void *end_of(const struct __sk_buff *skb)
{
	void *end;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(end) : "r"(skb), "i"(offsetof(struct __sk_buff, data_end)));
	return end;
}

/* A header of that size, or NULL. The bound on where it begins is for the verifier. */
INLINE void *header(const struct __sk_buff *skb, __u32 at, __u32 size)
{
	void *found = data_of(skb) + (at & (HEADERS_END - 1));

	return found + size <= end_of(skb) ? found : NULL;
}

/* Of what follows the header of IP: whether the kernel has it where programs can read it. */
INLINE bool make_readable(struct __sk_buff *skb, __u32 up_to)
{
	if (LIKELY(data_of(skb) + up_to <= end_of(skb)))
		return true;
	return skb->len >= up_to && !bpf_skb_pull_data(skb, up_to);
}

INLINE void addresses4(struct tuple *tuple, __u32 source, __u32 destination)
{
	place4(&tuple->source, source, 0);
	place4(&tuple->destination, destination, 0);
}

/* `false`: not a packet of IPv4 that makes sense. */
INLINE bool parse4(struct __sk_buff *skb, struct packet *packet)
{
	struct iphdr *ip = header(skb, packet->ip, sizeof(*ip));
	__u32 fragment, length;

	if (!ip || ip->version != 4)
		return false;
	length = ip->ihl * 4;
	if (length < sizeof(*ip))
		return false;
	addresses4(&packet->tuple, ip->saddr, ip->daddr);
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

struct extension {
	__u8 next;
	/* Of the fragment header: nothing. */
	__u8 length;
	/* Of the fragment header. */
	__u16 offset;
	__u32 id;
};

INLINE bool is_extension(__u8 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING || protocol == IPPROTO_DSTOPTS ||
	       protocol == IPPROTO_FRAGMENT || protocol == IPPROTO_AH;
}

INLINE __u32 length_of_extension(__u8 protocol, const struct extension *extension)
{
	if (protocol == IPPROTO_FRAGMENT)
		return 8;
	if (protocol == IPPROTO_AH)
		return (extension->length + 2) * 4;
	return (extension->length + 1) * 8;
}

/* What walk() returns: the transport, where it begins, and where the header of fragments stands; 0: there is none. */
enum walked {
	WALKED_AT = 8,
	WALKED_FRAGMENT_AT = 17,
	WALKED_END = HEADERS_END - 64,
};

/*
 * Over the headers between that of IP and that of the transport. A later fragment has none of the latter. By copy, and
 * alone: most packets have nothing there, and those that have are not in a hurry.
 */
ALONE int walk(struct __sk_buff *skb, __u32 at, __u32 protocol)
{
	__u32 fragment = 0;

	for (int seen = 0; seen < EXTENSIONS; seen++) {
		struct extension extension;
		bool is_later;

		if (!is_extension(protocol))
			break;
		if (at > WALKED_END || bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
			return -1;
		is_later = protocol == IPPROTO_FRAGMENT && bpf_ntohs(extension.offset) & FRAGMENT_OFFSET6;
		if (protocol == IPPROTO_FRAGMENT)
			fragment = at;
		at += length_of_extension(protocol, &extension);
		protocol = extension.next;
		if (is_later)
			break;
	}
	if (at > WALKED_END || is_extension(protocol))
		return -1;
	return protocol | at << WALKED_AT | fragment << WALKED_FRAGMENT_AT;
}

INLINE bool note_fragment6(struct __sk_buff *skb, struct packet *packet, __u32 at)
{
	struct extension extension;
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
	int walked = walk(skb, packet->transport, packet->tuple.transport);
	__u32 fragment = walked >> WALKED_FRAGMENT_AT & (HEADERS_END - 1);

	if (walked < 0)
		return false;
	packet->tuple.transport = walked;
	packet->transport = walked >> WALKED_AT & (HEADERS_END - 1);
	return !fragment || note_fragment6(skb, packet, fragment);
}

/* As parse4(). */
INLINE bool parse6(struct __sk_buff *skb, struct packet *packet)
{
	struct ipv6hdr *ip = header(skb, packet->ip, sizeof(*ip));

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

/* The ports, which TCP and UDP have at the same place, and the flags of TCP. */
INLINE bool parse_transport(struct __sk_buff *skb, struct packet *packet)
{
	bool is_tcp = packet->tuple.transport == IPPROTO_TCP;
	__u32 size = is_tcp ? sizeof(struct tcphdr) : sizeof(struct udphdr);
	const __u16 *ports;

	if (!make_readable(skb, packet->transport + size))
		return false;
	if (is_tcp) {
		struct tcphdr *tcp = header(skb, packet->transport, sizeof(*tcp));

		if (!tcp)
			return false;
		packet->flags = ((__u8 *)tcp)[13];
		ports = (__u16 *)tcp;
	} else {
		ports = header(skb, packet->transport, sizeof(struct udphdr));
		if (!ports)
			return false;
	}
	packet->tuple.source.port = ports[0];
	packet->tuple.destination.port = ports[1];
	return true;
}

/*
 * Whether a segment of TCP has something that the other side has to acknowledge. Of one that is too long for the header
 * of IP to say, nothing stands there.
 */
ALONE int has_data(struct __sk_buff *skb, __u32 at, __u32 transport)
{
	__u8 ip[6], tcp[2];
	__u32 length, headers;

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)) || bpf_skb_load_bytes(skb, transport + 12, tcp, sizeof(tcp)))
		return 0;
	if (tcp[1] & TCP_FIN)
		return 1;
	headers = transport - at + (tcp[0] >> 4) * 4;
	length = ip[0] >> 4 == 4 ? ip[2] << 8 | ip[3] : (ip[4] << 8 | ip[5]);
	if (ip[0] >> 4 != 4 && length)
		length += sizeof(struct ipv6hdr);
	return !length || length > headers;
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
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

INLINE bool is_icmp(const struct packet *packet, bool v4)
{
	return packet->tuple.transport == (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/* --- Fragments. --- */

INLINE void fragment_key_of(struct fragment_key *key, const struct packet *packet, enum leg leg)
{
	copy_address(key->source, packet->tuple.source.address);
	copy_address(key->destination, packet->tuple.destination.address);
	key->id = packet->id;
	key->transport = packet->tuple.transport;
	key->leg = leg;
	key->pad = 0;
}

INLINE void remember_fragment(const struct packet *packet, enum leg leg)
{
	struct fragment_key key;
	struct fragment_value value = {
		.source_port = packet->tuple.source.port,
		.destination_port = packet->tuple.destination.port,
	};

	fragment_key_of(&key, packet, leg);
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

INLINE bool recall_fragment(struct packet *packet, enum leg leg)
{
	struct fragment_key key;
	struct fragment_value *value;

	fragment_key_of(&key, packet, leg);
	value = bpf_map_lookup_elem(&fragments, &key);
	if (!value)
		return false;
	packet->tuple.source.port = value->source_port;
	packet->tuple.destination.port = value->destination_port;
	return true;
}

/* The ports of all parts of a datagram stand in its first one. */
INLINE bool know_ports(struct __sk_buff *skb, struct packet *packet, enum leg leg)
{
	if (UNLIKELY(packet->part == LATER_FRAGMENT)) {
		if (recall_fragment(packet, leg))
			return true;
		count_packet(COUNT_FRAGMENTS);
		return false;
	}
	return parse_transport(skb, packet);
}

/* --- Writing. --- */

/* One's complement: what is added to a sum when `from` becomes `to`. */
INLINE __u64 delta(__u64 sum, __u32 from, __u32 to)
{
	return sum + (__u32)~from + to;
}

INLINE __u32 fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

INLINE __u16 fold16(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* By how much the addresses change, and the ports. */
struct change {
	__u64 addresses;
	__u64 ports;
};

INLINE struct change change_of(const struct tuple *from, const struct tuple *to, bool v4)
{
	struct change change = {};

	for (int at = v4 ? 3 : 0; at < 4; at++) {
		change.addresses = delta(change.addresses, from->source.address[at], to->source.address[at]);
		change.addresses = delta(change.addresses, from->destination.address[at], to->destination.address[at]);
	}
	change.ports = delta(change.ports, from->source.port, to->source.port);
	change.ports = delta(change.ports, from->destination.port, to->destination.port);
	return change;
}

/*
 * A network card may have made the sum of the whole packet. What is changed there, and made up for by no sum inside,
 * has to be in that sum too. Where there is none, there is nothing to be done, which the helper calls a failure.
 */
INLINE void note_change(struct __sk_buff *skb, __u64 sum)
{
	bpf_csum_update(skb, fold32(sum));
}

INLINE bool write_addresses4(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u64 sum)
{
	struct iphdr *ip = header(skb, packet->ip, sizeof(*ip));

	if (!ip)
		return false;
	ip->saddr = to->source.address[3];
	ip->daddr = to->destination.address[3];
	ip->check = ~fold16((__u16)~ip->check + sum);
	return true;
}

/* The header of IPv6 has no sum of its own. */
INLINE bool write_addresses6(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u64 sum)
{
	struct ipv6hdr *ip = header(skb, packet->ip, sizeof(*ip));

	if (!ip)
		return false;
	copy_address(ip->saddr.in6_u.u6_addr32, to->source.address);
	copy_address(ip->daddr.in6_u.u6_addr32, to->destination.address);
	note_change(skb, sum);
	return true;
}

INLINE bool write_ports(struct __sk_buff *skb, __u32 at, const struct tuple *to)
{
	__u16 *ports = header(skb, at, 4);

	if (!ports)
		return false;
	ports[0] = to->source.port;
	ports[1] = to->destination.port;
	return true;
}

/* A datagram may have no sum, which is 0 and stays so. */
INLINE bool is_without_sum(struct __sk_buff *skb, const struct packet *packet)
{
	const struct udphdr *udp;

	if (packet->tuple.transport != IPPROTO_UDP)
		return false;
	udp = header(skb, packet->transport, sizeof(*udp));
	return udp && !udp->check;
}

/* Where the transport has its sum. */
INLINE __u32 place_of_sum(const struct packet *packet)
{
	return packet->transport + (packet->tuple.transport == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
									     offsetof(struct udphdr, check));
}

/*
 * In two steps, because only the addresses are in the pseudo header, which is all that there is to a sum that the
 * network card will finish.
 */
INLINE bool write_sum(struct __sk_buff *skb, const struct packet *packet, const struct change *change)
{
	__u32 at = place_of_sum(packet);
	__u64 zero;

	if (UNLIKELY(is_without_sum(skb, packet))) {
		note_change(skb, change->ports);
		return true;
	}
	zero = packet->tuple.transport == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	return !bpf_l4_csum_replace(skb, at, 0, fold32(change->addresses), zero | BPF_F_PSEUDO_HDR) &&
	       !bpf_l4_csum_replace(skb, at, 0, fold32(change->ports), zero);
}

INLINE void mark_for_firewall(struct __sk_buff *skb)
{
	if (forward_mark)
		skb->mark |= forward_mark;
}

/* Gives the packet the source and the destination of `to`. `false`: it is spoiled, and must not go on. */
INLINE bool rewrite(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, bool v4)
{
	struct change change = change_of(&packet->tuple, to, v4);

	if (v4 ? !write_addresses4(skb, packet, to, change.addresses) :
		 !write_addresses6(skb, packet, to, change.addresses))
		return false;
	if (packet->part == LATER_FRAGMENT)
		return true;
	return write_ports(skb, packet->transport, to) && write_sum(skb, packet, &change);
}

#endif
