/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * NAT: writes translated addresses and ports into a packet, and corrects its checksums.
 *
 * Owns: the arithmetic of checksums and of the SCTP CRC. Reads and writes: packets.
 *
 * A correct checksum stays correct, and a wrong one stays wrong.
 */
#ifndef HOLDFAST_NAT_H
#define HOLDFAST_NAT_H

#include <stddef.h>
#include "packet.h"

/* --- Checksums: sums of 16-bit words in one's complement, as IP, TCP and UDP have them, and their differences. --- */

/* Adds to a sum the difference between two words. */
INLINE __u64 csum_diff(__u64 sum, __u32 from, __u32 to)
{
	return sum + (__u32)~from + to;
}

INLINE __u32 csum_fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

INLINE __u16 csum_fold16(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/*
 * Corrects the checksum that a card may have made of the whole packet. It has to have each change that no checksum
 * inside the packet cancels. If the card has made none, the helper does nothing, and calls that a failure.
 */
INLINE void update_skb_csum(struct __sk_buff *skb, __u64 sum)
{
	bpf_csum_update(skb, csum_fold32(sum));
}

/*
 * Whether the card still has to finish the checksum at that offset. The kernel does not tell programs, but
 * bpf_l4_csum_replace() shows it: the helper leaves such a checksum unchanged, and changes any other one. This undoes
 * the change at once, so the card's checksum of the packet is not affected. Negative: there are no such bytes.
 */
INLINE int is_csum_pending(struct __sk_buff *skb, __u32 offset)
{
	__u16 before, after;

	if (bpf_skb_load_bytes(skb, offset, &before, sizeof(before)) || bpf_l4_csum_replace(skb, offset, 0, 1, 0) ||
	    bpf_skb_load_bytes(skb, offset, &after, sizeof(after)))
		return -1;
	if (before == after)
		return 1;
	return bpf_skb_store_bytes(skb, offset, &before, sizeof(before), 0) ? -1 : 0;
}

/*
 * --- The SCTP checksum: a CRC32c of the whole SCTP packet, without the addresses. The CRC is linear: its change
 * depends only on the changed bits and on how many bytes follow them. ---
 */

/* The polynomial in the bit order of the checksum: the highest bit is the power 0. */
#define CRC32C 0x82f63b78

/* The factor of a difference if 1, 2, 4, 8 and so on bytes lie from its beginning to the packet's end. */
#define CRC_SHIFTS 16
static const __u32 crc_shift[CRC_SHIFTS] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955, 0xb8fdb1e7,
	0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564, 0xbf455269, 0xe2ea32dc,
};

/* The product of two polynomials. Without branches, as is_reversed(). */
GLOBAL int crc_multiply(__u32 a, __u32 b)
{
	__u32 product = 0;

	for (int power = 0; power < 32; power++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = b >> 1 ^ (CRC32C & -(b & 1));
	}
	return product;
}

/*
 * Corrects the CRC after a change of the ports, which are the first four bytes. `differs`: the changed bits. The
 * kernel's SCTP leaves 0 for a card that makes the CRC, but a correct CRC may also be 0. Returns 0 on success.
 */
GLOBAL int update_sctp_crc(struct __sk_buff *skb, __u32 at, __u32 transport, __u32 differs)
{
	__u32 offset = transport + offsetof(struct sctp_header, sum), before, after, length;
	__u8 ip[IP_LENGTH_END];

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)) || bpf_skb_load_bytes(skb, offset, &before, sizeof(before)))
		return -1;
	if (!before && is_csum_pending(skb, offset))
		return 0;
	length = ip_packet_length(ip) - (transport - at);
	if (length < sizeof(struct sctp_header) || length >> CRC_SHIFTS)
		return -1;
	for (int bit = 0; bit < CRC_SHIFTS; bit++) {
		if (length >> bit & 1)
			differs = crc_multiply(differs, crc_shift[bit]);
	}
	after = before ^ differs;
	update_skb_csum(skb, csum_diff(0, before, after));
	return bpf_skb_store_bytes(skb, offset, &after, sizeof(after), 0);
}

/* The mark for forwarded packets of services, so that a firewall knows them as it knew kube-proxy's. 0: none. */
const volatile __u32 forward_mark = 0;

/* The changes of a checksum by new addresses and by new ports. */
struct csum_change {
	__u64 addresses;
	__u64 ports;
};

INLINE struct csum_change diff_tuples(const struct tuple *from, const struct tuple *to, bool v4)
{
	struct csum_change change = {};

	for (int at = v4 ? 3 : 0; at < 4; at++) {
		change.addresses = csum_diff(change.addresses, from->source.address[at], to->source.address[at]);
		change.addresses =
			csum_diff(change.addresses, from->destination.address[at], to->destination.address[at]);
	}
	change.ports = csum_diff(change.ports, from->source.port, to->source.port);
	change.ports = csum_diff(change.ports, from->destination.port, to->destination.port);
	return change;
}

INLINE bool write_addresses4(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u64 sum)
{
	struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));

	if (!ip)
		return false;
	ip->saddr = to->source.address[3];
	ip->daddr = to->destination.address[3];
	ip->check = ~csum_fold16((__u16)~ip->check + sum);
	return true;
}

/* An IPv6 header has no checksum. */
INLINE bool write_addresses6(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u64 sum)
{
	struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));

	if (!ip)
		return false;
	copy_address(ip->saddr.in6_u.u6_addr32, to->source.address);
	copy_address(ip->daddr.in6_u.u6_addr32, to->destination.address);
	update_skb_csum(skb, sum);
	return true;
}

INLINE bool write_ports(struct __sk_buff *skb, __u32 at, const struct tuple *to)
{
	__u16 *ports = get_header(skb, at, 4);

	if (!ports)
		return false;
	ports[0] = to->source.port;
	ports[1] = to->destination.port;
	return true;
}

/* A UDP datagram may have no checksum. It is 0, and stays 0. */
INLINE bool has_no_csum(struct __sk_buff *skb, const struct packet *packet)
{
	const struct udphdr *udp = get_header(skb, packet->transport, sizeof(*udp));

	return udp && !udp->check;
}

/*
 * An SCTP checksum covers all fragments of a packet, and only the last one tells the packet's length. So the first
 * fragment cannot be written if its ports change. Hosts split their data themselves, and hardly ever send such
 * fragments.
 */
INLINE bool write_sctp_crc(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u64 ports)
{
	const struct tuple *from = &packet->tuple;
	__u32 differs = (__u32)(from->destination.port ^ to->destination.port) << 16 |
			(from->source.port ^ to->source.port);

	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sources and low bits come first");
	if (!differs)
		return true;
	update_skb_csum(skb, ports);
	return packet->part == WHOLE && !update_sctp_crc(skb, packet->ip, packet->transport, differs);
}

/* The offset of the TCP or UDP checksum. */
INLINE __u32 csum_offset(const struct packet *packet)
{
	return packet->transport + (packet->tuple.transport == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
									     offsetof(struct udphdr, check));
}

/*
 * Corrects the checksum in two steps: only the addresses are in the pseudo header, and a checksum that the card still
 * has to finish covers only the pseudo header.
 */
INLINE bool write_csum(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to,
		       const struct csum_change *change)
{
	__u32 at = csum_offset(packet);
	__u64 zero = 0;

	if (packet->tuple.transport != IPPROTO_TCP) {
		if (UNLIKELY(packet->tuple.transport == IPPROTO_SCTP))
			return write_sctp_crc(skb, packet, to, change->ports);
		if (UNLIKELY(has_no_csum(skb, packet))) {
			update_skb_csum(skb, change->ports);
			return true;
		}
		zero = BPF_F_MARK_MANGLED_0;
	}
	return !bpf_l4_csum_replace(skb, at, 0, csum_fold32(change->addresses), zero | BPF_F_PSEUDO_HDR) &&
	       !bpf_l4_csum_replace(skb, at, 0, csum_fold32(change->ports), zero);
}

INLINE void set_forward_mark(struct __sk_buff *skb)
{
	if (forward_mark)
		skb->mark |= forward_mark;
}

/* Gives the packet the source and the destination of `to`. `false`: the packet is damaged, and must be dropped. */
INLINE bool nat_packet(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, bool v4)
{
	struct csum_change change = diff_tuples(&packet->tuple, to, v4);

	if (v4 ? !write_addresses4(skb, packet, to, change.addresses) :
		 !write_addresses6(skb, packet, to, change.addresses))
		return false;
	if (packet->part == LATER_FRAGMENT)
		return true;
	return write_ports(skb, packet->transport, to) && write_csum(skb, packet, to, &change);
}

INLINE int nat_or_drop(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, bool v4)
{
	if (LIKELY(nat_packet(skb, packet, to, v4)))
		return TC_ACT_UNSPEC;
	count_packet(COUNT_UNWRITABLE);
	return TC_ACT_SHOT;
}

#endif
