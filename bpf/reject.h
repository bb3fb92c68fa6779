/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rejects: the RST or the ICMP error to a client that is not served, from the address that it dialled.
 *
 * Owns: the rejects, their rate limit, and the hints for XDP. Reads: the packet, the clock. Writes: the packet,
 * `packet_pace`, `packet_counts`, `xdp_drop_hints`.
 *
 * The rate limit protects a host whose address is forged as the source.
 */
#ifndef HOLDFAST_REJECT_H
#define HOLDFAST_REJECT_H

#include <linux/if_packet.h>
#include "conntrack.h"
#include "nat.h"
#include "packet.h"

/*
 * The most rejects of one CPU in a second, and the most reports that a packet is too big. Each kind has its own count,
 * so that the refused clients of one service do not suppress the reports of another. The kernel limits its own errors
 * to the same number.
 */
#define REJECTS_PER_SECOND 1000

/* The TTL of a reject. */
#define REJECT_TTL 64

INLINE struct pace *get_pace(__u32 second)
{
	__u32 zero = 0;
	struct pace *pace = bpf_map_lookup_elem(&packet_pace, &zero);

	if (pace && pace->second != second) {
		pace->second = second;
		pace->rejects = pace->too_bigs = 0;
	}
	return pace;
}

INLINE bool may_reject(__u32 second)
{
	struct pace *pace = get_pace(second);

	return pace && pace->rejects < REJECTS_PER_SECOND && ++pace->rejects;
}

INLINE bool may_report_too_big(__u32 second)
{
	struct pace *pace = get_pace(second);

	return pace && pace->too_bigs < REJECTS_PER_SECOND && ++pace->too_bigs;
}

/* Whether the rate limit allows no further reject in this second. It changes nothing. */
INLINE bool is_reject_limit_reached(__u32 second)
{
	__u32 zero = 0;
	const struct pace *pace = bpf_map_lookup_elem(&packet_pace, &zero);

	return pace && pace->second == second && pace->rejects >= REJECTS_PER_SECOND;
}

INLINE __u64 csum_add(const void *from, __u32 size, __u64 sum)
{
	const __u16 *words = from;

	for (__u32 at = 0; at < size / 2; at++)
		sum += words[at];
	return sum;
}

/* Sends the packet back by its ingress device. */
INLINE int redirect_to_sender(struct __sk_buff *skb)
{
	struct ethhdr *link;
	__u8 address[ETH_ALEN];

	if (link_header) {
		link = skb_data(skb);
		if ((void *)(link + 1) > skb_end(skb))
			return TC_ACT_SHOT;
		__builtin_memcpy(address, link->h_dest, ETH_ALEN);
		__builtin_memcpy(link->h_dest, link->h_source, ETH_ALEN);
		__builtin_memcpy(link->h_source, address, ETH_ALEN);
	}
	count_packet(COUNT_REJECTS);
	return bpf_redirect(skb->ifindex, 0);
}

/* --- TCP. --- */

/*
 * Turns the SYN into the RST that a host sends for a closed port. The segment keeps its length and options, so only the
 * fields written here change its checksum, which the card may still have to finish.
 */
INLINE bool write_rst(struct __sk_buff *skb, const struct packet *packet)
{
	struct tcphdr *tcp = get_header(skb, packet->transport, sizeof(*tcp));
	__u32 at = packet->transport + offsetof(struct tcphdr, check);
	__u64 sum = 0;
	__u16 *rest;
	__u32 number;
	__u16 flags;

	if (!tcp)
		return false;
	number = bpf_htonl(bpf_ntohl(tcp->seq) + 1);
	rest = (__u16 *)tcp + 6;
	flags = (*rest & bpf_htons(0xf000)) | bpf_htons(TCP_RST | TCP_ACK);
	sum = csum_diff(sum, tcp->seq, 0);
	sum = csum_diff(sum, tcp->ack_seq, number);
	sum += (__u64)(__u16) ~*rest + flags;
	tcp->source = packet->tuple.destination.port;
	tcp->dest = packet->tuple.source.port;
	tcp->seq = 0;
	tcp->ack_seq = number;
	*rest = flags;
	return !bpf_l4_csum_replace(skb, at, 0, csum_fold32(sum), 0);
}

INLINE bool reverse_ip4(struct __sk_buff *skb, const struct packet *packet)
{
	struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	__u16 *ttl_word;
	__u16 before;

	if (!ip)
		return false;
	ttl_word = (__u16 *)&ip->ttl;
	before = *ttl_word;
	ip->ttl = REJECT_TTL;
	ip->saddr = packet->tuple.destination.address[3];
	ip->daddr = packet->tuple.source.address[3];
	ip->check = ~csum_fold16((__u16)~ip->check + (__u64)(__u16)~before + *ttl_word);
	return true;
}

INLINE bool reverse_ip6(struct __sk_buff *skb, const struct packet *packet)
{
	struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	__u16 *ttl_word;
	__u16 before, after;

	if (!ip)
		return false;
	ttl_word = (__u16 *)&ip->nexthdr;
	before = *ttl_word;
	ip->hop_limit = REJECT_TTL;
	after = *ttl_word;
	copy_address(ip->saddr.in6_u.u6_addr32, packet->tuple.destination.address);
	copy_address(ip->daddr.in6_u.u6_addr32, packet->tuple.source.address);
	update_skb_csum(skb, (__u64)(__u16)~before + after);
	return true;
}

INLINE int reject_tcp(struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	if (v4 ? !reverse_ip4(skb, packet) : !reverse_ip6(skb, packet))
		return TC_ACT_SHOT;
	return write_rst(skb, packet) ? redirect_to_sender(skb) : TC_ACT_SHOT;
}

/* --- UDP and SCTP. --- */

/* Longer packets are not quoted whole: the error might not fit into the smallest IPv6 MTU (1,280 bytes). */
#define QUOTED_MAX 1200
/*
 * The bytes behind the IP header that are quoted of a longer packet. The TCP checksum ends there, so no packet is cut
 * before a checksum that the card still has to finish.
 */
#define QUOTED_MIN 20
/* The quoted bytes of an INIT. Each INIT has at least so many, and its sender recognises it by them. */
#define INIT_SIZE 32

struct icmp_reply4 {
	struct iphdr ip;
	struct icmp_header icmp;
};

struct icmp_reply6 {
	struct ipv6hdr ip;
	struct icmp_header icmp;
};

/* The sum of addresses, length and protocol. */
INLINE __u64 pseudo_header_csum(const struct tuple *tuple, __u16 length, __u8 protocol, bool v4)
{
	__u64 sum = bpf_htons(length) + bpf_htons(protocol);

	for (int at = v4 ? 3 : 0; at < 4; at++)
		sum += (__u64)tuple->source.address[at] + tuple->destination.address[at];
	return sum;
}

/* The quoted bytes behind the IP header, and their sum. Length 0: the packet cannot be quoted. */
struct quote {
	__u32 length;
	__u16 sum;
};

/*
 * The sum of so many bytes: at least one, and at most INIT_SIZE. Older verifiers trust only a mask for that. An INIT
 * whose checksum is still pending comes from this node by a virtual device, and its client does not check sums. 0: the
 * bytes are not there.
 */
GLOBAL int csum_first_bytes(struct __sk_buff *skb, __u32 at, __u32 size)
{
	__u16 first[INIT_SIZE / sizeof(__u16)] = {};

	_Static_assert(!(INIT_SIZE & (INIT_SIZE - 1)) && QUOTED_MIN <= INIT_SIZE, "the mask keeps all sizes");
	size = ((size - 1) & (INIT_SIZE - 1)) + 1;
	if (bpf_skb_load_bytes(skb, at, first, size))
		return 0;
	return csum_fold16(csum_add(first, sizeof(first), 0));
}

/*
 * The sum that the quoted bytes behind the IP header will have. `csum_at`: the offset of the TCP or UDP checksum. If
 * the card still has to finish that, it finishes it for the quote. Then the quote adds up to the inverse of what stands
 * there now, and no bits mean the same as all bits. 0: the bytes are not there.
 */
GLOBAL int csum_quoted_bytes(struct __sk_buff *skb, __u32 at, __u32 csum_at)
{
	__u16 quoted[QUOTED_MIN / sizeof(__u16)], sum;
	int pending = is_csum_pending(skb, csum_at);

	if (pending < 0 || bpf_skb_load_bytes(skb, at, quoted, sizeof(quoted)) ||
	    bpf_skb_load_bytes(skb, csum_at, &sum, sizeof(sum)))
		return 0;
	if (!pending)
		return csum_fold16(csum_add(quoted, sizeof(quoted), 0));
	return sum == 0xffff ? 0xffff : (__u16)~sum;
}

/* `length`: the packet's, behind its IP header. */
INLINE void quote_init(struct quote *quote, struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
	quote->sum = csum_first_bytes(skb, packet->transport, INIT_SIZE);
	quote->length = length >= INIT_SIZE && quote->sum ? INIT_SIZE : 0;
}

/* Quotes QUOTED_MIN bytes, or all bytes of a shorter datagram without a checksum. */
INLINE void quote_beginning(struct quote *quote, struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
	length = length < QUOTED_MIN ? length : QUOTED_MIN;
	if (packet->tuple.transport == IPPROTO_UDP && has_no_csum(skb, packet))
		quote->sum = csum_first_bytes(skb, packet->transport, length);
	else
		quote->sum = csum_quoted_bytes(skb, packet->transport, csum_offset(packet));
	quote->length = quote->sum ? length : 0;
}

/*
 * Quotes a short datagram whole. It and its pseudo header add up to nothing, so the pseudo header alone gives the sum,
 * even if the card still has to finish the datagram's checksum. Of a longer datagram it quotes the beginning, by whose
 * ports the sender recognises it. So it does without a checksum, which IPv6 does not allow. The UDP length counts,
 * because the checksum does not cover the options behind it (RFC 9868).
 */
INLINE void quote_datagram(struct quote *quote, struct __sk_buff *skb, const struct packet *packet, __u32 length,
			   bool v4)
{
	const struct udphdr *udp = get_header(skb, packet->transport, sizeof(*udp));
	__u32 own = udp ? bpf_ntohs(udp->len) : 0;
	bool has_sum = !has_no_csum(skb, packet);

	if (own < sizeof(*udp) || own > length || (!has_sum && !v4))
		return;
	length = own;
	if (!has_sum || packet->transport - packet->ip + length > QUOTED_MAX)
		return quote_beginning(quote, skb, packet, length);
	quote->sum = ~csum_fold16(pseudo_header_csum(&packet->tuple, length, IPPROTO_UDP, v4));
	quote->length = length;
}

INLINE void quote_packet(struct quote *quote, struct __sk_buff *skb, const struct packet *packet, __u32 length, bool v4)
{
	if (packet->tuple.transport == IPPROTO_SCTP)
		quote_init(quote, skb, packet, length);
	else
		quote_datagram(quote, skb, packet, length, v4);
}

/* Cuts off what is not quoted, and makes room for the error's headers. `length`: the quoted packet's. */
INLINE bool resize_for_quote(struct __sk_buff *skb, const struct packet *packet, __u32 length, __u32 before)
{
	if (length > QUOTED_MAX || skb->len < packet->ip + length)
		return false;
	if (skb->len > packet->ip + length && bpf_skb_change_tail(skb, packet->ip + length, 0))
		return false;
	return !bpf_skb_adjust_room(skb, before, BPF_ADJ_ROOM_MAC, 0);
}

INLINE void fill_icmp_ip4(struct iphdr *ip, const struct tuple *tuple, __u16 length)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tot_len = bpf_htons(length);
	ip->ttl = REJECT_TTL;
	ip->protocol = IPPROTO_ICMP;
	ip->saddr = tuple->destination.address[3];
	ip->daddr = tuple->source.address[3];
	ip->check = ~csum_fold16(csum_add(ip, sizeof(*ip), 0));
}

INLINE int reject_icmp4(struct __sk_buff *skb, const struct packet *packet)
{
	struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	__u32 length = ip ? bpf_ntohs(ip->tot_len) : 0;
	__u32 of_ip = packet->transport - packet->ip;
	struct icmp_reply4 reply;
	struct quote quoted = {};

	if (length < of_ip)
		return TC_ACT_SHOT;
	quote_packet(&quoted, skb, packet, length - of_ip, true);
	length = of_ip + quoted.length;
	if (!quoted.length || !resize_for_quote(skb, packet, length, sizeof(reply)))
		return TC_ACT_SHOT;
	fill_icmp_ip4(&reply.ip, &packet->tuple, length + sizeof(reply));
	__builtin_memset(&reply.icmp, 0, sizeof(reply.icmp));
	reply.icmp.type = ICMP_UNREACHABLE;
	reply.icmp.code = ICMP_PORT_UNREACHABLE;
	/* The quoted IP header has a checksum of its own, so it adds nothing. */
	reply.icmp.checksum = ~csum_fold16(csum_add(&reply.icmp, sizeof(reply.icmp), quoted.sum));
	if (bpf_skb_store_bytes(skb, packet->ip, &reply, sizeof(reply), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	return redirect_to_sender(skb);
}

INLINE void fill_icmp_ip6(struct ipv6hdr *ip, const struct tuple *tuple, __u16 length)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(length);
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = REJECT_TTL;
	copy_address(ip->saddr.in6_u.u6_addr32, tuple->destination.address);
	copy_address(ip->daddr.in6_u.u6_addr32, tuple->source.address);
}

INLINE int reject_icmp6(struct __sk_buff *skb, const struct packet *packet)
{
	struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));
	struct icmp_reply6 reply;
	struct quote quoted = {};
	__u32 payload;
	__u64 sum;

	/* A packet with extension headers gets no reject: the sum of the quote would need them. */
	if (!ip || packet->transport != packet->ip + sizeof(*ip))
		return TC_ACT_SHOT;
	quote_packet(&quoted, skb, packet, bpf_ntohs(ip->payload_len), false);
	ip = get_header(skb, packet->ip, sizeof(*ip));
	if (!ip)
		return TC_ACT_SHOT;
	sum = csum_add(ip, sizeof(*ip), quoted.sum);
	if (!quoted.length || !resize_for_quote(skb, packet, sizeof(*ip) + quoted.length, sizeof(reply)))
		return TC_ACT_SHOT;
	payload = sizeof(*ip) + sizeof(reply.icmp) + quoted.length;
	fill_icmp_ip6(&reply.ip, &packet->tuple, payload);
	__builtin_memset(&reply.icmp, 0, sizeof(reply.icmp));
	reply.icmp.type = ICMP6_UNREACHABLE;
	reply.icmp.code = ICMP6_PORT_UNREACHABLE;
	sum += pseudo_header_csum(&packet->tuple, payload, IPPROTO_ICMPV6, false);
	reply.icmp.checksum = ~csum_fold16(csum_add(&reply.icmp, sizeof(reply.icmp), sum));
	if (bpf_skb_store_bytes(skb, packet->ip, &reply, sizeof(reply), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	return redirect_to_sender(skb);
}

/* --- Packets that are too big. --- */

/* The ICMPv6 type for a packet that is too big. */
enum { ICMP6_TOO_BIG = 2 };

INLINE int send_too_big4(struct __sk_buff *skb, const struct packet *packet, __u32 mtu)
{
	__u32 length = packet->transport - packet->ip + QUOTED_MIN;
	struct icmp_reply4 reply;
	struct quote quoted;

	quote_beginning(&quoted, skb, packet, QUOTED_MIN);
	if (!quoted.length || !resize_for_quote(skb, packet, length, sizeof(reply)))
		return TC_ACT_SHOT;
	fill_icmp_ip4(&reply.ip, &packet->tuple, length + sizeof(reply));
	__builtin_memset(&reply.icmp, 0, sizeof(reply.icmp));
	reply.icmp.type = ICMP_UNREACHABLE;
	reply.icmp.code = ICMP_FRAG_NEEDED;
	reply.icmp.rest = bpf_htonl(mtu & 0xffff);
	/* The quoted IP header has a checksum of its own, so it adds nothing. */
	reply.icmp.checksum = ~csum_fold16(csum_add(&reply.icmp, sizeof(reply.icmp), quoted.sum));
	if (bpf_skb_store_bytes(skb, packet->ip, &reply, sizeof(reply), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	return redirect_to_sender(skb);
}

/*
 * The sum of the extension headers, such as a fragment header. A packet with more of them than csum_first_bytes() takes
 * gets no report.
 */
INLINE bool csum_extensions(struct __sk_buff *skb, const struct packet *packet, __u64 *sum)
{
	__u32 at = packet->ip + sizeof(struct ipv6hdr), length = packet->transport - at, extensions;

	if (LIKELY(!length))
		return true;
	if (length > INIT_SIZE)
		return false;
	extensions = csum_first_bytes(skb, at, length);
	*sum += extensions;
	return extensions;
}

INLINE int send_too_big6(struct __sk_buff *skb, const struct packet *packet, __u32 mtu)
{
	__u32 length = packet->transport - packet->ip + QUOTED_MIN;
	__u32 payload = length + sizeof(struct icmp_header);
	struct icmp_reply6 reply;
	struct ipv6hdr *ip;
	struct quote quoted;
	__u64 sum;

	quote_beginning(&quoted, skb, packet, QUOTED_MIN);
	sum = quoted.sum;
	if (!csum_extensions(skb, packet, &sum))
		return TC_ACT_SHOT;
	ip = get_header(skb, packet->ip, sizeof(*ip));
	if (!ip)
		return TC_ACT_SHOT;
	sum = csum_add(ip, sizeof(*ip), sum);
	if (!quoted.length || !resize_for_quote(skb, packet, length, sizeof(reply)))
		return TC_ACT_SHOT;
	fill_icmp_ip6(&reply.ip, &packet->tuple, payload);
	__builtin_memset(&reply.icmp, 0, sizeof(reply.icmp));
	reply.icmp.type = ICMP6_TOO_BIG;
	reply.icmp.rest = bpf_htonl(mtu & 0xffff);
	sum += pseudo_header_csum(&packet->tuple, payload, IPPROTO_ICMPV6, false);
	reply.icmp.checksum = ~csum_fold16(csum_add(&reply.icmp, sizeof(reply.icmp), sum));
	if (bpf_skb_store_bytes(skb, packet->ip, &reply, sizeof(reply), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	return redirect_to_sender(skb);
}

/*
 * Whether a reject would go to one host. There is none for a broadcast or multicast packet, nor if the source is not a
 * unicast address.
 */
INLINE bool is_unicast_sender(const struct __sk_buff *skb, const __u32 *source, bool v4)
{
	__u32 first = bpf_ntohl(source[v4 ? 3 : 0]) >> 24;

	if (skb->pkt_type == PACKET_BROADCAST || skb->pkt_type == PACKET_MULTICAST)
		return false;
	if (v4)
		return first && first != 127 && first - 224 >= 16 && source[3] != ~0U;
	return first != 0xff && (source[0] | source[1] | source[2] | (source[3] & ~bpf_htonl(1)));
}

/* Counts a packet that is dropped without telling its sender. */
INLINE int count_unanswerable(int verdict)
{
	if (verdict == TC_ACT_SHOT)
		count_packet(COUNT_UNANSWERABLE);
	return verdict;
}

INLINE int reject_packet(struct __sk_buff *skb, bool v4)
{
	struct packet packet = {};

	if (!parse(skb, &packet, v4) || packet.part != WHOLE || !parse_transport(skb, &packet) ||
	    !is_unicast_sender(skb, packet.tuple.source.address, v4) || !may_reject(bpf_ktime_get_ns() / 1000000000))
		return TC_ACT_SHOT;
	if (packet.tuple.transport == IPPROTO_TCP)
		return reject_tcp(skb, &packet, v4);
	return v4 ? reject_icmp4(skb, &packet) : reject_icmp6(skb, &packet);
}

/* Rejects a packet. A fragment gets no reject: other fragments may still be under way. */
INLINE int reject(struct __sk_buff *skb, bool v4)
{
	return count_unanswerable(reject_packet(skb, v4));
}

INLINE int send_too_big(struct __sk_buff *skb, __u32 mtu, bool v4)
{
	struct packet packet = {};

	if (!parse(skb, &packet, v4) || !is_unicast_sender(skb, packet.tuple.source.address, v4) ||
	    !may_report_too_big(bpf_ktime_get_ns() / 1000000000))
		return TC_ACT_SHOT;
	return v4 ? send_too_big4(skb, &packet, mtu) : send_too_big6(skb, &packet, mtu);
}

/*
 * Reports the MTU to the sender of a packet. A fragment gets a report, too: it cannot be fragmented here, but its
 * sender can send smaller ones.
 */
INLINE int report_too_big(struct __sk_buff *skb, __u32 mtu, bool v4)
{
	return count_unanswerable(send_too_big(skb, mtu, v4));
}

GLOBAL int report_too_big4(struct __sk_buff *skb, __u32 mtu)
{
	return report_too_big(skb, mtu, true);
}

GLOBAL int report_too_big6(struct __sk_buff *skb, __u32 mtu)
{
	return report_too_big(skb, mtu, false);
}

/*
 * --- Hints for XDP. ---
 *
 * XDP drops a client's frames only if the ingress program has just refused one: on the same device, for the same MAC
 * address, on the same CPU, in the same second. So XDP drops only where the ingress program is in place and sees the
 * same packets. The ingress program gets the first such client of each second.
 */

/* How many devices a CPU remembers. If two devices share a slot, more clients reach the ingress program. */
#define XDP_DROP_DEVICES 16

struct xdp_drop_hint {
	__u32 second;
	__u32 device;
	/* The MAC address of the device. */
	__u8 mac[ETH_ALEN];
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XDP_DROP_DEVICES);
	__type(key, __u32);
	__type(value, struct xdp_drop_hint);
} xdp_drop_hints SEC(".maps");

INLINE struct xdp_drop_hint *get_xdp_drop_hint(__u32 device)
{
	__u32 at = device & (XDP_DROP_DEVICES - 1);

	return bpf_map_lookup_elem(&xdp_drop_hints, &at);
}

/* Notes a refused client for XDP. */
INLINE void save_xdp_drop_hint(const struct __sk_buff *skb, __u32 device_flags)
{
	const struct ethhdr *link = get_header(skb, 0, sizeof(*link));
	struct xdp_drop_hint *hint;

	if (LIKELY(!(device_flags & DEVICE_XDP)) || link_header != ETH_HLEN || !link || skb->pkt_type != PACKET_HOST ||
	    skb->vlan_present)
		return;
	hint = get_xdp_drop_hint(skb->ifindex);
	if (!hint)
		return;
	hint->second = seconds();
	hint->device = skb->ifindex;
	__builtin_memcpy(hint->mac, link->h_dest, ETH_ALEN);
}

#endif
