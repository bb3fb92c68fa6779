// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What needs no packet at the driver: frames of flows with other nodes' backends leave before the kernel makes packets
 * of them, and those of clients that are turned away end there.
 *
 * The program only repeats what the program behind it (packet_in) did with a packet of the same flow, in the same
 * direction, by the same device, on the same CPU, in the same second. It writes nothing but the frame. Whatever that
 * program would note of a packet, or do otherwise with it, it gets: the frame goes on as it is. So all rules are there,
 * and here is only what makes a packet like the one before. For a client without a flow the same rules are asked, of
 * arrival.h, once that program has turned one away.
 */
#include <linux/bpf.h>
#include "conntrack.h"
#include "fast_path.h"
#include "fib.h"
#include "flow_state.h"
#include "nat.h"
#include "open_flow.h"
#include "packet.h"
#include "prefilter.h"
#include "reject.h"
#include "select_backend.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Between a frame and the rules, before the kernel has made a packet of it: what stands in its headers becomes plain
 * values, and what was decided is written there.
 *
 * Only frames that look as most do are read. All that is written is looked at before anything is written, so no frame
 * is half changed.
 */

/* Whether frames may come in several buffers, of which this kernel tells the length in all (Linux 5.18). */
const volatile bool in_buffers = false;

/* Reads the pointers to the frame by hand, as data_of() does. */
INLINE void *begin_of_frame(const struct xdp_md *ctx)
{
	void *data;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(data) : "r"(ctx), "i"(offsetof(struct xdp_md, data)));
	return data;
}

INLINE void *end_of_frame(const struct xdp_md *ctx)
{
	void *end;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(end) : "r"(ctx), "i"(offsetof(struct xdp_md, data_end)));
	return end;
}

/* A part of the frame, or NULL. Of a frame in several buffers only the first one is there. */
INLINE void *piece(const struct xdp_md *ctx, __u32 at, __u32 size)
{
	void *found = begin_of_frame(ctx) + at;

	return found + size <= end_of_frame(ctx) ? found : NULL;
}

/* Where the header of the transport begins. */
INLINE __u32 transport_at(bool v4)
{
	return ETH_HLEN + (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

/* What a frame says. */
struct frame {
	struct tuple tuple;
	struct passage passage;
	/* The sum of the addresses, the length and the transport, which the transport's own sum covers too. */
	__u64 pseudo;
	/* How many hops are left. */
	__u8 hops;
	/* What it says of its connection, in the flags of TCP. */
	__u8 flags;
	/* The sum of TCP or UDP. That of SCTP takes more than a few words to make up for: NULL. */
	__u16 *check;
};

/* `false`: another program has to look at this packet. */
INLINE bool read_header4(const struct xdp_md *ctx, struct frame *frame)
{
	const struct iphdr *ip = piece(ctx, ETH_HLEN, sizeof(*ip));
	__u32 length;

	if (!ip || *(const __u8 *)ip != 0x45 || !is_transport(ip->protocol) ||
	    ip->frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET))
		return false;
	frame->hops = ip->ttl;
	length = bpf_ntohs(ip->tot_len);
	addresses4(&frame->tuple, ip->saddr, ip->daddr);
	frame->tuple.transport = ip->protocol;
	frame->passage.class = ip->tos;
	frame->passage.length = length;
	frame->pseudo = (__u64)ip->saddr + ip->daddr + bpf_htons(ip->protocol) + bpf_htons(length - sizeof(*ip));
	return true;
}

/* As above. */
INLINE bool read_header6(const struct xdp_md *ctx, struct frame *frame)
{
	const struct ipv6hdr *ip = piece(ctx, ETH_HLEN, sizeof(*ip));
	const __u32 *from, *to;

	if (!ip || ip->version != 6 || !is_transport(ip->nexthdr))
		return false;
	frame->hops = ip->hop_limit;
	from = ip->saddr.in6_u.u6_addr32;
	to = ip->daddr.in6_u.u6_addr32;
	copy_address(frame->tuple.source.address, from);
	copy_address(frame->tuple.destination.address, to);
	frame->tuple.transport = ip->nexthdr;
	frame->passage.class = *(const __u32 *)ip & bpf_htonl(0x0fffffff);
	frame->passage.length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	frame->pseudo = (__u64)bpf_htons(ip->nexthdr) + ip->payload_len;
	for (int at = 0; at < 4; at++)
		frame->pseudo += (__u64)from[at] + to[at];
	return true;
}

/*
 * Whether the frame is as long as its packet, or was filled up to the least that Ethernet has, and the packet has the
 * header of its transport. What is in several buffers is for the program behind the driver: not each driver that sends
 * frames sends such, and one that does not loses them without a word.
 */
INLINE bool is_as_long(const struct xdp_md *ctx, const struct frame *frame, bool v4)
{
	__u32 least = transport_at(v4) +
		      (frame->tuple.transport == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr));
	__u32 first = end_of_frame(ctx) - begin_of_frame(ctx);
	__u32 length = in_buffers ? bpf_xdp_get_buff_len((struct xdp_md *)ctx) : first;
	__u32 said = ETH_HLEN + frame->passage.length;

	return length == first && said >= least && (length == said || (length > said && length <= ETH_ZLEN));
}

/*
 * Whether the sum of the transport is made. What this host sends to itself has a sum that a network card would finish,
 * and until then it is that of the pseudo header. By chance a whole sum may look so.
 */
INLINE bool is_summed(__u16 sum, const struct frame *frame, bool v4)
{
	if (frame->tuple.transport == IPPROTO_UDP && !sum)
		return v4;
	return sum != fold16(frame->pseudo);
}

/*
 * Whether a packet of SCTP is an INIT and nothing else, as one is that begins an association. What other chunks say is
 * for the program of packets to read.
 */
INLINE bool is_init(const struct xdp_md *ctx, const struct frame *frame, bool v4)
{
	__u32 before = transport_at(v4) + sizeof(struct sctp);
	const struct chunk *chunk = piece(ctx, before, sizeof(*chunk));
	__u32 length = chunk ? bpf_ntohs(chunk->length) : 0;

	return length >= sizeof(*chunk) && chunk->type == CHUNK_INIT &&
	       ETH_HLEN + frame->passage.length == before + ((length + 3) & ~3U);
}

/* Reads a header of TCP. `false`: the frame ends before that. */
INLINE bool read_tcp(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	struct tcphdr *tcp = piece(ctx, transport_at(v4), sizeof(*tcp));

	if (!tcp)
		return false;
	frame->flags = ((__u8 *)tcp)[13];
	frame->check = &tcp->check;
	return true;
}

/* Reads the ports, and what else the transport says. `false`: the frame ends before that. */
INLINE bool read_transport(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	struct udphdr *udp = piece(ctx, transport_at(v4), sizeof(*udp));

	if (!udp)
		return false;
	frame->tuple.source.port = udp->source;
	frame->tuple.destination.port = udp->dest;
	if (frame->tuple.transport == IPPROTO_TCP)
		return read_tcp(ctx, frame, v4);
	if (frame->tuple.transport == IPPROTO_SCTP)
		frame->flags = is_init(ctx, frame, v4) ? TCP_SYN : TCP_ACK;
	else
		frame->check = &udp->check;
	return true;
}

/* Reads a frame. `false`: another program has to look at it. */
INLINE bool read_frame(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	return (v4 ? read_header4(ctx, frame) : read_header6(ctx, frame)) && read_transport(ctx, frame, v4);
}

/*
 * Whether nothing in a frame that was read keeps it from being sent on right away. That there is a sum is looked at
 * where the verifier can see it, and not concluded from the transport.
 */
INLINE bool is_to_be_sent(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	asm volatile("" : "+r"(frame->check));
	return frame->hops > 1 && !(frame->flags & (TCP_SYN | TCP_FIN | TCP_RST)) && is_as_long(ctx, frame, v4) &&
	       frame->check && is_summed(*frame->check, frame, v4);
}

INLINE void write_link_of_frame(struct ethhdr *link, const struct known_way *way)
{
	__builtin_memcpy(link->h_dest, way->to, ETH_ALEN);
	__builtin_memcpy(link->h_source, way->from, ETH_ALEN);
}

/* Counts the packet down one hop, which the header's sum covers by IPv4. */
INLINE void write_ip_of_frame(void *header, const struct tuple *to, __u64 sum, bool v4)
{
	if (v4) {
		struct iphdr *ip = header;

		ip->saddr = to->source.address[3];
		ip->daddr = to->destination.address[3];
		ip->ttl--;
		ip->check = ~fold16((__u16)~ip->check + sum + (__u16)~bpf_htons(0x100));
	} else {
		struct ipv6hdr *ip = header;

		copy_address(ip->saddr.in6_u.u6_addr32, to->source.address);
		copy_address(ip->daddr.in6_u.u6_addr32, to->destination.address);
		ip->hop_limit--;
	}
}

/* A datagram may have no sum, which is 0 and stays so; one that has a sum has never 0. */
INLINE void write_sum_of_frame(__u16 *sum, __u8 transport, const struct change *change)
{
	__u16 made;

	if (transport == IPPROTO_UDP && !*sum)
		return;
	made = ~fold16((__u16)~*sum + change->addresses + change->ports);
	*sum = transport == IPPROTO_UDP && !made ? 0xffff : made;
}

/*
 * Gives a frame that was read the source and the destination of `to`, and sends it one hop further. `false`: as it was.
 */
INLINE bool write_frame(const struct xdp_md *ctx, const struct frame *frame, const struct tuple *to,
			const struct known_way *way, bool v4)
{
	struct change change = change_of(&frame->tuple, to, v4);
	void *link = piece(ctx, 0, transport_at(v4));
	__u16 *ports = piece(ctx, transport_at(v4), 2 * sizeof(*ports));

	if (!link || !ports)
		return false;
	write_link_of_frame(link, way);
	write_ip_of_frame(link + ETH_HLEN, to, change.addresses, v4);
	ports[0] = to->source.port;
	ports[1] = to->destination.port;
	write_sum_of_frame(frame->check, frame->tuple.transport, &change);
	return true;
}

/*
 * Clients that are turned away at the driver already, as the program behind it would turn them away: those outside of
 * the ranges of sources, and those at frontends without backends that would get no answer. It counts and reports what
 * that program would, so nothing is hidden but the packet.
 *
 * A packet of which there is any flow, or that is not judged here to the end, goes on to that program.
 */

/* Whether the frame is for that hardware address. */
INLINE bool is_for_hardware(const struct xdp_md *ctx, const __u8 *address)
{
	const __u16 *to = piece(ctx, 0, ETH_ALEN), *own = (const __u16 *)address;

	return to && !((to[0] ^ own[0]) | (to[1] ^ own[1]) | (to[2] ^ own[2]));
}

/* Whether a client like this one was turned away just now, so that it is worth to judge this one. */
INLINE bool was_turned_away(const struct xdp_md *ctx)
{
	__u32 device = ctx->ingress_ifindex;
	const struct turned_away *noted = turned_away_at(device);

	return noted && noted->second == seconds() && noted->device == device && is_for_hardware(ctx, noted->own);
}

/* Notes what the next step has to know of a frame of no flow. ARRIVES: it may be a client that is turned away. */
INLINE int note_early(const struct xdp_md *ctx, const struct frame *frame)
{
	struct arrival *arrival;

	if (LIKELY(!was_turned_away(ctx)))
		return XDP_PASS;
	arrival = the_arrival();
	if (!arrival)
		return XDP_PASS;
	arrival->packet.tuple = frame->tuple;
	arrival->packet.flags = frame->flags;
	arrival->device = ctx->ingress_ifindex;
	return ARRIVES;
}

/* Whether a client without a backend gets no answer. Only then it is turned away here. */
INLINE bool refuse_early(const struct arrival *arrival, const struct dial *dial, __u64 word)
{
	if (verdict_of(word) == VERDICT_REFUSED && !has_answered_most(seconds()))
		return false;
	if (refuse(arrival, dial, word) == REFUSED)
		count_packet(COUNT_UNANSWERABLE);
	return true;
}

INLINE bool is_turned_away(struct xdp_md *ctx, struct arrival *arrival, bool v4)
{
	struct dial dial = {};
	__u64 word;

	switch (admit(ctx, arrival, &dial, v4)) {
	case IS_BARRED:
		drop(arrival, &dial, REASON_SOURCE, COUNT_SOURCE);
		return true;
	case IS_LOOP:
		count_packet(COUNT_LOOP);
		return true;
	case IS_ADMITTED:
		return !stand_still() && finds_nothing(arrival, &dial, &word) && refuse_early(arrival, &dial, word);
	default:
		return false;
	}
}

/* Ends a frame of no flow, if its client is turned away without an answer. */
INLINE int turn_away_early(struct xdp_md *ctx, bool v4)
{
	struct arrival *arrival = the_arrival();

	if (!arrival || !is_turned_away(ctx, arrival, v4))
		return XDP_PASS;
	count_packet(COUNT_TURNED_AWAY_BY_XDP);
	return XDP_DROP;
}

/*
 * Whether nothing is to be noted of a further packet of the flow that opens and ends nothing: client and backend have
 * agreed, neither is said to be gone, this second is noted already, and the backend owes no answer.
 */
INLINE bool is_settled(const struct flow *flow, enum direction direction, __u32 now)
{
	if (flow->seen != now || flow->state != FLOW_OPEN || is_closed(flow))
		return false;
	if ((flow->of_client | flow->of_backend) & (HEARD_RST | HEARD_REFUSAL))
		return false;
	return direction == TO_BACKEND || (!flow->waits && !is_to_come_back(flow));
}

/* Whether frames may pass between two devices: a driver sends another one's frame only if it has all it needs. */
INLINE bool may_pass_between(__u32 here, __u32 there)
{
	return here & there & DEVICE_SHORTCUT && here & there & DEVICE_FRAMES;
}

/* How a packet of a flow with another node leaves: as the other side's packet would come, turned round. */
INLINE void leaves_as(struct tuple *left, const struct flow *flow, enum direction direction)
{
	struct tuple other;

	if (direction == TO_BACKEND)
		from_remote(&other, flow);
	else
		from_client(&other, flow);
	turned(left, &other);
}

/*
 * Sends the frame on, also where it leaves by the device by which it came: a veth that is told so by XDP_TX does not
 * wake its other end where that has GRO and no program.
 */
INLINE int send_frame(struct xdp_md *ctx, const struct frame *frame, const struct tuple *left,
		      const struct known_way *way, bool v4)
{
	__u32 here = flags_of(ctx->ingress_ifindex), device = way->device;
	__u32 there = device == ctx->ingress_ifindex ? here : flags_of(device);

	if (!may_pass_between(here, there) || !write_frame(ctx, frame, left, way, v4))
		return XDP_PASS;
	count_packet(COUNT_BY_XDP);
	return bpf_redirect(device, 0);
}

/* Lets a frame follow its flow. The record may become another flow's meanwhile: then its serial is another one. */
INLINE int follow_frame(struct xdp_md *ctx, const struct frame *frame, __u32 number, const struct flow *flow, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial), now = seconds();
	const struct known_way *way;
	enum direction direction;
	struct tuple left;

	direction = turn_in(flow, &frame->tuple, &left, v4);
	if (direction == NOWHERE || !flow->nat_port || !(flow->of_client & TAKES_SHORTCUT) ||
	    !is_settled(flow, direction, now))
		return XDP_PASS;
	way = known_way(number, direction);
	if (!way || !is_way_of(way, number, serial, now, ctx->ingress_ifindex, &frame->passage) ||
	    !is_for_hardware(ctx, way->own))
		return XDP_PASS;
	leaves_as(&left, flow, direction);
	if (READ_ONCE(flow->serial) != serial)
		return XDP_PASS;
	return send_frame(ctx, frame, &left, way, v4);
}

/* ARRIVES: the frame is of no flow, and may be of a client that is turned away. */
INLINE int take_frame(struct xdp_md *ctx, bool v4)
{
	struct frame frame = {};
	const struct flow *flow;
	__u32 *entry, number;

	if (!read_frame(ctx, &frame, v4) ||
	    !may_be_ours(frame.tuple.destination.address, frame.tuple.destination.port, frame.tuple.source.port, v4))
		return XDP_PASS;
	entry = find_entry(&frame.tuple, LEG_IN, v4);
	if (!entry)
		return note_early(ctx, &frame);
	number = *entry;
	flow = flow_at(number);
	return flow && is_to_be_sent(ctx, &frame, v4) ? follow_frame(ctx, &frame, number, flow, v4) : XDP_PASS;
}

/* The steps, for each family. */
#define STEPS(family, v4)                               \
	ALONE int take##family(struct xdp_md *ctx)      \
	{                                               \
		return take_frame(ctx, v4);             \
	}                                               \
	ALONE int turn_away##family(struct xdp_md *ctx) \
	{                                               \
		return turn_away_early(ctx, v4);        \
	}

STEPS(4, true)
STEPS(6, false)

INLINE int meet(struct xdp_md *ctx, bool v4)
{
	int next = v4 ? take4(ctx) : take6(ctx);

	if (next == ARRIVES)
		return v4 ? turn_away4(ctx) : turn_away6(ctx);
	return next;
}

SEC("xdp")
int packet_xdp(struct xdp_md *ctx)
{
	const struct ethhdr *link = piece(ctx, 0, sizeof(*link));

	if (!link)
		return XDP_PASS;
	if (link->h_proto == bpf_htons(ETH_P_IP))
		return meet(ctx, true);
	return link->h_proto == bpf_htons(ETH_P_IPV6) ? meet(ctx, false) : XDP_PASS;
}
