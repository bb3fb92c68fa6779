/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Writes into a packet what was decided: addresses, ports, and what makes up for them in its sums.
 *
 * A valid sum before is a valid one after, and a wrong one stays wrong.
 */
#ifndef HOLDFAST_REWRITE_H
#define HOLDFAST_REWRITE_H

#include "crc.h"
#include "packet.h"
#include "sums.h"

/* The mark by which a firewall knows packets that are sent on for a service, as it knew kube-proxy's; 0: none. */
const volatile __u32 forward_mark = 0;

/* By how much a change of the addresses, and one of the ports, changes a sum. */
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
	const struct udphdr *udp = header(skb, packet->transport, sizeof(*udp));

	return udp && !udp->check;
}

/*
 * A sum of SCTP covers all fragments of a packet, and only the last fragment says how long the packet is: so where the
 * ports change, the first fragment cannot be written. Hosts cut their data to size themselves, and hardly ever need
 * that.
 */
INLINE bool write_crc(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u64 ports)
{
	const struct tuple *from = &packet->tuple;
	__u32 differs = (__u32)(from->destination.port ^ to->destination.port) << 16 |
			(from->source.port ^ to->source.port);

	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sources and low bits come first");
	if (!differs)
		return true;
	note_change(skb, ports);
	return packet->part == WHOLE && !make_up(skb, packet->ip, packet->transport, differs);
}

/* Where TCP or UDP has its sum. */
INLINE __u32 place_of_sum(const struct packet *packet)
{
	return packet->transport + (packet->tuple.transport == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
									     offsetof(struct udphdr, check));
}

/*
 * Makes up for a change in two steps, because only the addresses are in the pseudo header, and a sum that the network
 * card is still to finish covers nothing but the pseudo header.
 */
INLINE bool write_sum(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to,
		      const struct change *change)
{
	__u32 at = place_of_sum(packet);
	__u64 zero = 0;

	if (packet->tuple.transport != IPPROTO_TCP) {
		if (UNLIKELY(packet->tuple.transport == IPPROTO_SCTP))
			return write_crc(skb, packet, to, change->ports);
		if (UNLIKELY(is_without_sum(skb, packet))) {
			note_change(skb, change->ports);
			return true;
		}
		zero = BPF_F_MARK_MANGLED_0;
	}
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
	return write_ports(skb, packet->transport, to) && write_sum(skb, packet, to, &change);
}

#endif
