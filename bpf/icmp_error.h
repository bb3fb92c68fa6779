/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Errors about packets of flows: a router that cannot pass one on, a backend with that port closed. What an error
 * quotes is the packet as it was where it went wrong; it becomes the packet as its sender knows it, so that the path's
 * MTU is found and a client hears that it was refused.
 */
#ifndef HOLDFAST_ICMP_ERROR_H
#define HOLDFAST_ICMP_ERROR_H

#include "conntrack.h"
#include "dsr_decap.h"
#include "dsr_encap.h"
#include "fast_path.h"
#include "nat.h"
#include "packet.h"

INLINE bool is_error(__u8 type, bool v4)
{
	if (v4)
		return type == ICMP_UNREACHABLE || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETER;
	return type && type < ICMP6_MESSAGES;
}

INLINE bool is_refusal(const struct icmp *icmp, bool v4)
{
	return v4 ? icmp->type == ICMP_UNREACHABLE && icmp->code == ICMP_NO_PORT :
		    icmp->type == ICMP6_UNREACHABLE && icmp->code == ICMP6_NO_PORT;
}

/* The packet that an error quotes. Eight bytes behind its header of IP are there: the ports, and of UDP the sum. */
struct quoted {
	struct packet packet;
	/* The place of the error's own sum. */
	__u32 sum;
	/* Whether the error says that the port is closed. */
	bool is_refusal;
};

INLINE bool parse_quoted(struct __sk_buff *skb, const struct packet *packet, struct quoted *quoted, bool v4)
{
	__u32 least = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	struct icmp *icmp;
	__u16 *ports;

	if (!make_readable(skb, packet->transport + sizeof(*icmp)))
		return false;
	icmp = header(skb, packet->transport, sizeof(*icmp));
	if (!icmp || !is_error(icmp->type, v4))
		return false;
	quoted->is_refusal = is_refusal(icmp, v4);
	quoted->sum = packet->transport + offsetof(struct icmp, checksum);
	quoted->packet.ip = packet->transport + sizeof(*icmp);
	if (!make_readable(skb, quoted->packet.ip + least))
		return false;
	if (v4 ? !parse4(skb, &quoted->packet) : !parse6(skb, &quoted->packet))
		return false;
	if (!is_transport(quoted->packet.tuple.transport) || quoted->packet.part == LATER_FRAGMENT ||
	    !make_readable(skb, quoted->packet.transport + 8))
		return false;
	ports = header(skb, quoted->packet.transport, 8);
	if (!ports)
		return false;
	quoted->packet.tuple.source.port = ports[0];
	quoted->packet.tuple.destination.port = ports[1];
	return true;
}

/*
 * Notes that a backend itself says that its port is closed. Nothing is decided by that, for any host may write it in
 * the backend's name: it is there for an operator who looks for a fault.
 */
INLINE void hear_refusal(struct flow *flow, const struct packet *packet, const struct quoted *quoted)
{
	if (quoted->is_refusal && flow->transport == IPPROTO_UDP && !(flow->of_backend & HEARD_REFUSAL) &&
	    same_address(packet->tuple.source.address, flow->backend) &&
	    quoted->packet.tuple.destination.port == flow->backend_port)
		flow->of_backend |= HEARD_REFUSAL;
}

INLINE bool write_quoted(struct __sk_buff *skb, const struct quoted *quoted, const struct tuple *to, bool v4)
{
	const struct packet *packet = &quoted->packet;
	struct change change = change_of(&packet->tuple, to, v4);

	if (v4) {
		/* The quoted header has a sum of its own, so the error's sum does not change. */
		if (!write_addresses4(skb, packet, to, change.addresses))
			return false;
	} else {
		__u32 both[8];

		copy_address(both, to->source.address);
		copy_address(both + 4, to->destination.address);
		if (bpf_skb_store_bytes(skb, packet->ip + offsetof(struct ipv6hdr, saddr), both, sizeof(both), 0) ||
		    bpf_l4_csum_replace(skb, quoted->sum, 0, fold32(change.addresses), 0))
			return false;
	}
	return write_ports(skb, packet->transport, to) &&
	       !bpf_l4_csum_replace(skb, quoted->sum, 0, fold32(change.ports), 0);
}

/* Writes the source and the destination of the error itself. */
INLINE bool write_outer(struct __sk_buff *skb, const struct packet *packet, const struct tuple *to, __u32 at_sum,
			bool v4)
{
	struct change change = change_of(&packet->tuple, to, v4);

	if (v4)
		return write_addresses4(skb, packet, to, change.addresses);
	return write_addresses6(skb, packet, to, change.addresses) &&
	       !bpf_l4_csum_replace(skb, at_sum, 0, fold32(change.addresses), BPF_F_PSEUDO_HDR);
}

/*
 * Notes an ICMP error that belongs to no flow of this node, as if the client whose answer it quotes had sent it.
 * MAY_JOIN: another node may know the connection.
 */
INLINE int note_foreign_error(const struct __sk_buff *skb, const struct packet *packet, const struct tuple *sent)
{
	struct arrival *arrival = the_arrival();

	if (!knows_nodes || !arrival)
		return NEXT;
	arrival->packet = *packet;
	arrival->packet.tuple = *sent;
	arrival->device = skb->ifindex;
	return MAY_JOIN;
}

/*
 * An error that comes, about a packet that left: the sender of that packet gets it, be it a backend here or a client.
 * What it quotes is shown as the stack has seen it.
 */
INLINE int error_in(struct __sk_buff *skb, bool is_taken_out, bool v4)
{
	const int untouched = is_taken_out ? SHOT : NEXT;
	struct quoted quoted = {};
	struct packet packet = {};
	struct tuple sent, shown, to;
	enum direction direction;
	struct flow *flow;
	__u32 led, serial;

	if (!parse(skb, &packet, v4) || packet.part != WHOLE || !parse_quoted(skb, &packet, &quoted, v4))
		return untouched;
	turned(&sent, &quoted.packet.tuple);
	led = UNLIKELY(is_taken_out) ? flow_of_taken(&sent, v4) : flow_of_arrived(&sent, v4);
	flow = flow_at(led);
	serial = flow ? READ_ONCE(flow->serial) : 0;
	direction = flow ? turn_in(flow, &sent, &shown, v4) : NOWHERE;
	if (direction == NOWHERE)
		return is_taken_out ? untouched : note_foreign_error(skb, &packet, &sent);
	if (UNLIKELY(is_wrapped(flow)))
		return !has_lost_its_way(skb, flow) &&
				       note_passage(&packet, led, serial, direction, false) == MAY_PASS ?
			       WRAPS :
			       SHOT;
	hear_refusal(flow, &packet, &quoted);
	turned(&to, &shown);
	if (!write_quoted(skb, &quoted, &to, v4))
		return SHOT;
	/* The error went to the address that the packet had come from; now it goes to that packet's sender. */
	to = packet.tuple;
	copy_address(to.destination.address, shown.destination.address);
	count_packet(COUNT_ERRORS);
	if (!write_outer(skb, &packet, &to, quoted.sum, v4))
		return SHOT;
	note_written_in(skb);
	return NEXT;
}

/* An error that leaves, about a packet that came: it shows that packet as its sender knows it. */
INLINE int error_out(struct __sk_buff *skb, bool v4)
{
	struct quoted quoted = {};
	struct packet packet = {};
	struct tuple seen, shown, to;
	enum direction direction;
	struct flow *flow;
	__u32 *number, led;

	if (!parse(skb, &packet, v4) || packet.part != WHOLE || !parse_quoted(skb, &packet, &quoted, v4))
		return NEXT;
	turned(&seen, &quoted.packet.tuple);
	number = find_entry(&seen, LEG_THROUGH, v4);
	led = number ? *number : 0;
	flow = number ? flow_at(led) : NULL;
	direction = flow ? turn_out(flow, &seen, &shown, v4) : NOWHERE;
	if (direction == NOWHERE)
		return NEXT;
	hear_refusal(flow, &packet, &quoted);
	turned(&to, &shown);
	if (!write_quoted(skb, &quoted, &to, v4))
		return SHOT;
	to = packet.tuple;
	/*
	 * The error gets the source that every packet to that sender has: the address that was dialled, or this node's.
	 * Else a router that sent the error, and that it passes again, would drop it as a packet from itself.
	 */
	copy_address(to.source.address, shown.source.address);
	copy_address(to.destination.address, shown.destination.address);
	count_packet(COUNT_ERRORS);
	if (!write_outer(skb, &packet, &to, quoted.sum, v4))
		return SHOT;
	return direction == TO_CLIENT ? way_of_answer(skb, flow, led, v4) : NEXT;
}

#endif
