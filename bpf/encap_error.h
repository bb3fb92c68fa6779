/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about encapsulated packets: from a router between the nodes that cannot forward one.
 *
 * Owns: the translation of such an error. Reads: the error, `flow_table`, `entries4/6`, `devices`. Writes: the error,
 * `encap_mtus`, the scratch map.
 *
 * The error is for this node, whose address the outer header has. It says what the client has to know: that its packets
 * are too long for the path, or that the backend's node is out of reach. A router quotes at least eight bytes behind
 * the outer header. If it quotes the client's ports, too, the client gets the error at once, as if a router before this
 * node had sent it. Otherwise the client's next packet that is too long is told the MTU: see dsr_encap.h.
 */
#ifndef HOLDFAST_ENCAP_ERROR_H
#define HOLDFAST_ENCAP_ERROR_H

#include "dsr_encap.h"
#include "icmp_error.h"
#include "ingress.h"
#include "unknown_segment.h"

/* What an error quotes first. */
struct quoted_encap4 {
	struct icmp_header icmp;
	struct iphdr ip;
};

struct quoted_encap6 {
	struct icmp_header icmp;
	struct ipv6hdr ip;
};

/* The codes for a host that is out of reach. */
enum { ICMP_HOST_UNREACHABLE = 1, ICMP_PROTOCOL_UNREACHABLE = 2, ICMP6_HOST_UNREACHABLE = 3 };

/* `false`: the quoted header is not one that this node has written for a backend. */
INLINE bool is_own_encap(const struct endpoint *from, const struct endpoint *to, bool v4)
{
	return is_dsr_node(from->address, v4) && is_own_address(from->address, v4) && !is_dsr_node(to->address, v4);
}

/*
 * Reads the error in the scratch map. The backend goes to `named_backend`. Errors have no IP options, and no pod sends
 * them.
 */
INLINE bool read_encap_error4(struct __sk_buff *skb, struct scratch *scratch, struct quoted_encap4 *quoted)
{
	const struct packet *packet = &scratch->packet;
	struct endpoint from;

	if (!link_header || packet->part != WHOLE || packet->transport != packet->ip + sizeof(struct iphdr) ||
	    !may_come_from_node(skb) || bpf_skb_load_bytes(skb, packet->transport, quoted, sizeof(*quoted)) ||
	    !is_icmp_error(quoted->icmp.type, true) || *(__u8 *)&quoted->ip != 0x45 ||
	    quoted->ip.protocol != ENCAP_IPV4)
		return false;
	endpoint4(&from, quoted->ip.saddr, 0);
	endpoint4(&scratch->named_backend, quoted->ip.daddr, 0);
	return is_own_encap(&from, &scratch->named_backend, true);
}

INLINE bool read_encap_error6(struct __sk_buff *skb, struct scratch *scratch, struct quoted_encap6 *quoted)
{
	const struct packet *packet = &scratch->packet;
	struct endpoint from;

	if (!link_header || packet->part != WHOLE || packet->transport != packet->ip + sizeof(struct ipv6hdr) ||
	    !may_come_from_node(skb) || bpf_skb_load_bytes(skb, packet->transport, quoted, sizeof(*quoted)) ||
	    !is_icmp_error(quoted->icmp.type, false) || quoted->ip.version != 6 || quoted->ip.nexthdr != ENCAP_IPV6)
		return false;
	set_endpoint(&from, quoted->ip.saddr.in6_u.u6_addr32, 0);
	set_endpoint(&scratch->named_backend, quoted->ip.daddr.in6_u.u6_addr32, 0);
	return is_own_encap(&from, &scratch->named_backend, false);
}

/* --- The client that the error is for. --- */

/*
 * Saves the quoted packet's flow, and in `translated` its tuple as the client sent it. `false`: the quote does not have
 * the ports, or the packet belongs to no such flow.
 */
INLINE bool find_quoted_client(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	struct packet inner = {};
	const struct flow *flow;

	inner.ip = scratch->packet.transport + sizeof(struct icmp_header) + encap_header_size(v4);
	if (!parse_quoted_packet(skb, &inner, v4))
		return false;
	scratch->number = find_ingress_flow(&inner.tuple, v4);
	flow = get_flow(scratch->number);
	if (!flow || !is_encapsulated(flow) || !same_address(flow->backend, scratch->named_backend.address) ||
	    translate_ingress(flow, &inner.tuple, &scratch->translated, v4) != TO_BACKEND)
		return false;
	scratch->translated = inner.tuple;
	return true;
}

/*
 * Finds what the ICMP error in the scratch map is about, and remembers a reported MTU. STEP_ICMP_ERROR: no encapsulated
 * packet. STEP_PASS: it names no client. STEP_CHECK_FRONTEND: it is for the client of the saved flow.
 */
GLOBAL int find_encap_error4(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct quoted_encap4 quoted;

	if (!has_dsr_from || !scratch || !read_encap_error4(skb, scratch, &quoted))
		return STEP_ICMP_ERROR;
	if (quoted.icmp.type == ICMP_UNREACHABLE && quoted.icmp.code == ICMP_FRAG_NEEDED)
		scratch->mtu = save_encap_mtu(scratch->named_backend.address, bpf_ntohl(quoted.icmp.rest) & 0xffff,
					      true);
	return find_quoted_client(skb, scratch, true) ? STEP_CHECK_FRONTEND : STEP_PASS;
}

GLOBAL int find_encap_error6(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct quoted_encap6 quoted;

	if (!has_dsr_from || !scratch || !read_encap_error6(skb, scratch, &quoted))
		return STEP_ICMP_ERROR;
	if (quoted.icmp.type == ICMP6_TOO_BIG)
		scratch->mtu = save_encap_mtu(scratch->named_backend.address, bpf_ntohl(quoted.icmp.rest), false);
	return find_quoted_client(skb, scratch, false) ? STEP_CHECK_FRONTEND : STEP_PASS;
}

/* --- The error that the client gets, from the address that it dialled. --- */

/*
 * Sets the ICMP header. A backend's host that takes no encapsulated packets, or a loop between the nodes, means the
 * same to a client as a host out of reach.
 */
INLINE void set_client_error4(struct icmp_header *to, const struct icmp_header *from, __u32 mtu)
{
	bool is_kept = from->type == ICMP_UNREACHABLE && from->code != ICMP_PROTOCOL_UNREACHABLE &&
		       from->code != ICMP_PORT_UNREACHABLE;

	to->type = ICMP_UNREACHABLE;
	to->code = is_kept ? from->code : ICMP_HOST_UNREACHABLE;
	if (is_kept && from->code == ICMP_FRAG_NEEDED)
		to->rest = bpf_htonl(mtu - sizeof(struct iphdr));
}

INLINE void set_client_error6(struct icmp_header *to, const struct icmp_header *from, __u32 mtu)
{
	if (from->type == ICMP6_TOO_BIG) {
		to->type = ICMP6_TOO_BIG;
		to->rest = bpf_htonl(mtu - sizeof(struct ipv6hdr));
		return;
	}
	to->type = ICMP6_UNREACHABLE;
	to->code = from->type == ICMP6_UNREACHABLE ? from->code : ICMP6_HOST_UNREACHABLE;
}

/*
 * Sends the error. The new headers take the place of the old ones, and of what the router quotes before the client's
 * packet.
 */
GLOBAL int send_encap_error4(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct icmp_reply4 reply = {};
	struct quoted_encap4 quoted;
	__u64 sum;

	if (!has_dsr_from || !scratch || cut_trailer(skb, scratch->packet.ip) ||
	    bpf_skb_load_bytes(skb, scratch->packet.transport, &quoted, sizeof(quoted)))
		return TC_ACT_SHOT;
	set_client_error4(&reply.icmp, &quoted.icmp, scratch->mtu);
	sum = (__u16)~quoted.icmp.checksum;
	quoted.icmp.checksum = 0;
	sum += (__u16)~csum_fold16(csum_add(&quoted, sizeof(quoted), 0));
	reply.icmp.checksum = ~csum_fold16(csum_add(&reply.icmp, sizeof(reply.icmp), sum));
	fill_icmp_ip4(&reply.ip, &scratch->translated, skb->len - scratch->packet.ip - sizeof(quoted.ip));
	if (bpf_skb_adjust_room(skb, -(__s32)sizeof(quoted.ip), BPF_ADJ_ROOM_NET, 0) ||
	    bpf_skb_store_bytes(skb, link_header, &reply, sizeof(reply), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	count_packet(COUNT_ERRORS);
	return redirect_to_client(skb, &scratch->translated, true);
}

/* As above, for IPv6, where the checksum has the addresses, too. */
GLOBAL int send_encap_error6(struct __sk_buff *skb)
{
	struct scratch *scratch = get_scratch();
	struct icmp_reply6 reply = {};
	struct quoted_encap6 quoted;
	__u32 length;
	__u64 sum;

	if (!has_dsr_from || !scratch || cut_trailer(skb, scratch->packet.ip) ||
	    bpf_skb_load_bytes(skb, scratch->packet.transport, &quoted, sizeof(quoted)))
		return TC_ACT_SHOT;
	set_client_error6(&reply.icmp, &quoted.icmp, scratch->mtu);
	length = skb->len - scratch->packet.transport;
	sum = (__u16)~quoted.icmp.checksum;
	quoted.icmp.checksum = 0;
	sum += (__u16)~csum_fold16(csum_add(&quoted, sizeof(quoted), 0));
	sum += (__u16)~csum_fold16(pseudo_header_csum(&scratch->packet.tuple, length, IPPROTO_ICMPV6, false));
	length -= sizeof(quoted.ip);
	sum += pseudo_header_csum(&scratch->translated, length, IPPROTO_ICMPV6, false);
	reply.icmp.checksum = ~csum_fold16(csum_add(&reply.icmp, sizeof(reply.icmp), sum));
	fill_icmp_ip6(&reply.ip, &scratch->translated, length);
	if (bpf_skb_adjust_room(skb, -(__s32)sizeof(quoted.ip), BPF_ADJ_ROOM_NET, 0) ||
	    bpf_skb_store_bytes(skb, link_header, &reply, sizeof(reply), BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	count_packet(COUNT_ERRORS);
	return redirect_to_client(skb, &scratch->translated, false);
}

/* Whether the client of the saved flow hears of the error: its next SYN may get another backend. */
INLINE bool is_for_client(bool v4)
{
	const struct scratch *scratch = get_scratch();
	const struct flow *flow = scratch ? get_flow(scratch->number) : NULL;

	return flow && (LIKELY(!awaits_reply_to_syn(flow, TO_CLIENT)) ||
			!(v4 ? is_frontend_moved4(scratch->number) : is_frontend_moved6(scratch->number)));
}

/* Handles an ICMP error. STEP_ICMP_ERROR: it is about no encapsulated packet. */
INLINE enum step handle_encap_error(struct __sk_buff *skb, bool v4)
{
	enum step next = v4 ? find_encap_error4(skb) : find_encap_error6(skb);

	if (next != STEP_CHECK_FRONTEND)
		return next;
	if (!is_for_client(v4))
		return STEP_DROP;
	return finish(v4 ? send_encap_error4(skb) : send_encap_error6(skb));
}

#endif
