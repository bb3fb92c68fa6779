// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What needs no packet at the driver: frames of flows with other nodes' backends leave before the kernel makes packets
 * of them, and those of clients that are turned away end there.
 *
 * The program only repeats what the program behind it (packet_in) did with a packet of the same flow, in the same
 * direction, by the same device, on the same CPU, in the same second. It writes nothing but the frame. Whatever that
 * program would note of a packet, or do otherwise with it, it gets: the frame goes on as it is. So all rules are there,
 * and here is only what makes a packet like the one before. For a client without a flow the same rules are asked, of
 * select_backend.h, once that program has turned one away.
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
const volatile bool has_frags = false;

/* Reads the pointers to the frame by hand, as skb_data() does. */
INLINE void *frame_start(const struct xdp_md *ctx)
{
	void *data;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(data) : "r"(ctx), "i"(offsetof(struct xdp_md, data)));
	return data;
}

INLINE void *frame_end(const struct xdp_md *ctx)
{
	void *end;

	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(end) : "r"(ctx), "i"(offsetof(struct xdp_md, data_end)));
	return end;
}

/* A part of the frame, or NULL. Of a frame in several buffers only the first one is there. */
INLINE void *frame_bytes(const struct xdp_md *ctx, __u32 at, __u32 size)
{
	void *found = frame_start(ctx) + at;

	return found + size <= frame_end(ctx) ? found : NULL;
}

/* Where the header of the transport begins. */
INLINE __u32 transport_offset(bool v4)
{
	return ETH_HLEN + (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

/* What a frame says. */
struct frame {
	struct tuple tuple;
	struct ip_info info;
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
	const struct iphdr *ip = frame_bytes(ctx, ETH_HLEN, sizeof(*ip));
	__u32 length;

	if (!ip || *(const __u8 *)ip != 0x45 || !is_transport(ip->protocol) ||
	    ip->frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET))
		return false;
	frame->hops = ip->ttl;
	length = bpf_ntohs(ip->tot_len);
	set_addresses4(&frame->tuple, ip->saddr, ip->daddr);
	frame->tuple.transport = ip->protocol;
	frame->info.class = ip->tos;
	frame->info.length = length;
	frame->pseudo = (__u64)ip->saddr + ip->daddr + bpf_htons(ip->protocol) + bpf_htons(length - sizeof(*ip));
	return true;
}

/* As above. */
INLINE bool read_header6(const struct xdp_md *ctx, struct frame *frame)
{
	const struct ipv6hdr *ip = frame_bytes(ctx, ETH_HLEN, sizeof(*ip));
	const __u32 *from, *to;

	if (!ip || ip->version != 6 || !is_transport(ip->nexthdr))
		return false;
	frame->hops = ip->hop_limit;
	from = ip->saddr.in6_u.u6_addr32;
	to = ip->daddr.in6_u.u6_addr32;
	copy_address(frame->tuple.source.address, from);
	copy_address(frame->tuple.destination.address, to);
	frame->tuple.transport = ip->nexthdr;
	frame->info.class = *(const __u32 *)ip & bpf_htonl(0x0fffffff);
	frame->info.length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
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
INLINE bool has_exact_length(const struct xdp_md *ctx, const struct frame *frame, bool v4)
{
	__u32 least = transport_offset(v4) +
		      (frame->tuple.transport == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr));
	__u32 first = frame_end(ctx) - frame_start(ctx);
	__u32 length = has_frags ? bpf_xdp_get_buff_len((struct xdp_md *)ctx) : first;
	__u32 claimed = ETH_HLEN + frame->info.length;

	return length == first && claimed >= least && (length == claimed || (length > claimed && length <= ETH_ZLEN));
}

/*
 * Whether the sum of the transport is made. What this host sends to itself has a sum that a network card would finish,
 * and until then it is that of the pseudo header. By chance a whole sum may look so.
 */
INLINE bool is_csum_complete(__u16 sum, const struct frame *frame, bool v4)
{
	if (frame->tuple.transport == IPPROTO_UDP && !sum)
		return v4;
	return sum != csum_fold16(frame->pseudo);
}

/*
 * Whether a packet of SCTP is an INIT and nothing else, as one is that begins an association. What other chunks say is
 * for the program of packets to read.
 */
INLINE bool is_init(const struct xdp_md *ctx, const struct frame *frame, bool v4)
{
	__u32 before = transport_offset(v4) + sizeof(struct sctp_header);
	const struct sctp_chunk *chunk = frame_bytes(ctx, before, sizeof(*chunk));
	__u32 length = chunk ? bpf_ntohs(chunk->length) : 0;

	return length >= sizeof(*chunk) && chunk->type == CHUNK_INIT &&
	       ETH_HLEN + frame->info.length == before + ((length + 3) & ~3U);
}

/* Reads a header of TCP. `false`: the frame ends before that. */
INLINE bool read_tcp(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	struct tcphdr *tcp = frame_bytes(ctx, transport_offset(v4), sizeof(*tcp));

	if (!tcp)
		return false;
	frame->flags = ((__u8 *)tcp)[13];
	frame->check = &tcp->check;
	return true;
}

/* Reads the ports, and what else the transport says. `false`: the frame ends before that. */
INLINE bool read_transport(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	struct udphdr *udp = frame_bytes(ctx, transport_offset(v4), sizeof(*udp));

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
INLINE bool can_forward_frame(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	asm volatile("" : "+r"(frame->check));
	return frame->hops > 1 && !(frame->flags & (TCP_SYN | TCP_FIN | TCP_RST)) && has_exact_length(ctx, frame, v4) &&
	       frame->check && is_csum_complete(*frame->check, frame, v4);
}

INLINE void write_frame_link(struct ethhdr *link, const struct flow_path *path)
{
	__builtin_memcpy(link->h_dest, path->dst_mac, ETH_ALEN);
	__builtin_memcpy(link->h_source, path->src_mac, ETH_ALEN);
}

/* Counts the packet down one hop, which the header's sum covers by IPv4. */
INLINE void write_frame_ip(void *header, const struct tuple *to, __u64 sum, bool v4)
{
	if (v4) {
		struct iphdr *ip = header;

		ip->saddr = to->source.address[3];
		ip->daddr = to->destination.address[3];
		ip->ttl--;
		ip->check = ~csum_fold16((__u16)~ip->check + sum + (__u16)~bpf_htons(0x100));
	} else {
		struct ipv6hdr *ip = header;

		copy_address(ip->saddr.in6_u.u6_addr32, to->source.address);
		copy_address(ip->daddr.in6_u.u6_addr32, to->destination.address);
		ip->hop_limit--;
	}
}

/* A datagram may have no sum, which is 0 and stays so; one that has a sum has never 0. */
INLINE void write_frame_csum(__u16 *sum, __u8 transport, const struct csum_change *change)
{
	__u16 made;

	if (transport == IPPROTO_UDP && !*sum)
		return;
	made = ~csum_fold16((__u16) ~*sum + change->addresses + change->ports);
	*sum = transport == IPPROTO_UDP && !made ? 0xffff : made;
}

/*
 * Gives a frame that was read the source and the destination of `to`, and sends it one hop further. `false`: as it was.
 */
INLINE bool write_frame(const struct xdp_md *ctx, const struct frame *frame, const struct tuple *to,
			const struct flow_path *path, bool v4)
{
	struct csum_change change = diff_tuples(&frame->tuple, to, v4);
	void *link = frame_bytes(ctx, 0, transport_offset(v4));
	__u16 *ports = frame_bytes(ctx, transport_offset(v4), 2 * sizeof(*ports));

	if (!link || !ports)
		return false;
	write_frame_link(link, path);
	write_frame_ip(link + ETH_HLEN, to, change.addresses, v4);
	ports[0] = to->source.port;
	ports[1] = to->destination.port;
	write_frame_csum(frame->check, frame->tuple.transport, &change);
	return true;
}

/*
 * Clients that are turned away at the driver already, as the program behind it would turn them away: those outside of
 * the ranges of sources, and those at frontends without backends that would get no answer. It counts and reports what
 * that program would, so nothing is hidden but the packet.
 *
 * A packet of which there is any flow, or that is not judged here to the end, goes on to that program.
 */

/* What the first look at a frame says beside the verdicts of XDP: the frame may be of a client that is turned away. */
#define CHECK_CLIENT 100

/* Whether the frame is for that hardware address. */
INLINE bool is_for_mac(const struct xdp_md *ctx, const __u8 *address)
{
	const __u16 *to = frame_bytes(ctx, 0, ETH_ALEN), *own = (const __u16 *)address;

	return to && !((to[0] ^ own[0]) | (to[1] ^ own[1]) | (to[2] ^ own[2]));
}

/* Whether a client like this one was turned away just now, so that it is worth to judge this one. */
INLINE bool has_drop_hint(const struct xdp_md *ctx)
{
	__u32 device = ctx->ingress_ifindex;
	const struct xdp_drop_hint *noted = get_xdp_drop_hint(device);

	return noted && noted->second == seconds() && noted->device == device && is_for_mac(ctx, noted->mac);
}

/*
 * Notes what the next step has to know of a frame of no flow. CHECK_CLIENT: it may be a client that is turned
 * away.
 */
INLINE int save_new_frame(const struct xdp_md *ctx, const struct frame *frame)
{
	struct scratch *scratch;

	if (LIKELY(!has_drop_hint(ctx)))
		return XDP_PASS;
	scratch = get_scratch();
	if (!scratch)
		return XDP_PASS;
	scratch->packet.tuple = frame->tuple;
	scratch->packet.flags = frame->flags;
	scratch->device = ctx->ingress_ifindex;
	return CHECK_CLIENT;
}

/* Whether a client without a backend gets no answer. Only then it is turned away here. */
INLINE bool refuse_in_xdp(const struct scratch *scratch, const struct lb_request *request, __u64 word)
{
	if (empty_list_verdict(word) == VERDICT_REFUSED && !is_reject_limit_reached(seconds()))
		return false;
	if (refuse_client(scratch, request, word) == STEP_REJECT)
		count_packet(COUNT_UNANSWERABLE);
	return true;
}

INLINE bool is_denied_in_xdp(struct xdp_md *ctx, struct scratch *scratch, bool v4)
{
	struct lb_request request = {};
	__u64 word;

	switch (admit_client(ctx, scratch, &request, v4)) {
	case ADMIT_DENIED:
		drop_client(scratch, &request, REASON_SOURCE, COUNT_SOURCE);
		return true;
	case ADMIT_LOOP:
		count_packet(COUNT_LOOP);
		return true;
	case ADMIT_OK:
		return !are_flows_frozen() && has_no_backend(scratch, &request, &word) &&
		       refuse_in_xdp(scratch, &request, word);
	default:
		return false;
	}
}

/* Ends a frame of no flow, if its client is turned away without an answer. */
INLINE int xdp_drop(struct xdp_md *ctx, bool v4)
{
	struct scratch *scratch = get_scratch();

	if (!scratch || !is_denied_in_xdp(ctx, scratch, v4))
		return XDP_PASS;
	count_packet(COUNT_XDP_DROPS);
	return XDP_DROP;
}

/*
 * Whether nothing is to be noted of a further packet of the flow that opens and ends nothing: client and backend have
 * agreed, neither is said to be gone, this second is noted already, and the backend owes no answer.
 */
INLINE bool needs_no_tracking(const struct flow *flow, enum direction direction, __u32 now)
{
	if (flow->seen != now || flow->state != FLOW_OPEN || has_both_fins(flow))
		return false;
	if ((flow->client_flags | flow->backend_flags) & (FLOW_RST_SEEN | FLOW_UNREACHABLE_SEEN))
		return false;
	return direction == TO_BACKEND || (!flow->unacked && !needs_client_save(flow));
}

/* Whether frames may pass between two devices: a driver sends another one's frame only if it has all it needs. */
INLINE bool may_redirect_between(__u32 here, __u32 there)
{
	return here & there & DEVICE_FAST_PATH && here & there & DEVICE_XDP;
}

/* How a packet of a flow with another node leaves: as the other side's packet would come, turned round. */
INLINE void egress_tuple(struct tuple *left, const struct flow *flow, enum direction direction)
{
	struct tuple other;

	if (direction == TO_BACKEND)
		snat_reply_tuple(&other, flow);
	else
		original_tuple(&other, flow);
	reverse_tuple(left, &other);
}

/*
 * Sends the frame on, also where it leaves by the device by which it came: a veth that is told so by XDP_TX does not
 * wake its other end where that has GRO and no program.
 */
INLINE int redirect_frame(struct xdp_md *ctx, const struct frame *frame, const struct tuple *left,
			  const struct flow_path *path, bool v4)
{
	__u32 here = get_device_flags(ctx->ingress_ifindex), device = path->device;
	__u32 there = device == ctx->ingress_ifindex ? here : get_device_flags(device);

	if (!may_redirect_between(here, there) || !write_frame(ctx, frame, left, path, v4))
		return XDP_PASS;
	count_packet(COUNT_XDP_REDIRECTS);
	return bpf_redirect(device, 0);
}

/* Lets a frame follow its flow. The record may become another flow's meanwhile: then its serial is another one. */
INLINE int follow_frame(struct xdp_md *ctx, const struct frame *frame, __u32 number, const struct flow *flow, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial), now = seconds();
	const struct flow_path *path;
	enum direction direction;
	struct tuple left;

	direction = translate_ingress(flow, &frame->tuple, &left, v4);
	if (direction == NO_DIRECTION || !flow->nat_port || !(flow->client_flags & FLOW_FAST_PATH) ||
	    !needs_no_tracking(flow, direction, now))
		return XDP_PASS;
	path = get_flow_path(number, direction);
	if (!path || !is_path_for(path, number, serial, now, ctx->ingress_ifindex, &frame->info) ||
	    !is_for_mac(ctx, path->ingress_mac))
		return XDP_PASS;
	egress_tuple(&left, flow, direction);
	if (READ_ONCE(flow->serial) != serial)
		return XDP_PASS;
	return redirect_frame(ctx, frame, &left, path, v4);
}

/* CHECK_CLIENT: the frame is of no flow, and may be of a client that is turned away. */
INLINE int xdp_lookup(struct xdp_md *ctx, bool v4)
{
	struct frame frame = {};
	const struct flow *flow;
	__u32 *entry, number;

	if (!read_frame(ctx, &frame, v4) ||
	    !may_be_ours(frame.tuple.destination.address, frame.tuple.destination.port, frame.tuple.source.port, v4))
		return XDP_PASS;
	entry = find_entry(&frame.tuple, ENTRY_WIRE, v4);
	if (!entry)
		return save_new_frame(ctx, &frame);
	number = *entry;
	flow = get_flow(number);
	return flow && can_forward_frame(ctx, &frame, v4) ? follow_frame(ctx, &frame, number, flow, v4) : XDP_PASS;
}

/* The steps, for each family. */
#define STEPS(family, v4)                                 \
	GLOBAL int xdp_lookup##family(struct xdp_md *ctx) \
	{                                                 \
		return xdp_lookup(ctx, v4);               \
	}                                                 \
	GLOBAL int xdp_drop##family(struct xdp_md *ctx)   \
	{                                                 \
		return xdp_drop(ctx, v4);                 \
	}

STEPS(4, true)
STEPS(6, false)

INLINE int handle_frame(struct xdp_md *ctx, bool v4)
{
	int next = v4 ? xdp_lookup4(ctx) : xdp_lookup6(ctx);

	if (next == CHECK_CLIENT)
		return v4 ? xdp_drop4(ctx) : xdp_drop6(ctx);
	return next;
}

SEC("xdp")
int packet_xdp(struct xdp_md *ctx)
{
	const struct ethhdr *link = frame_bytes(ctx, 0, sizeof(*link));

	if (!link)
		return XDP_PASS;
	if (link->h_proto == bpf_htons(ETH_P_IP))
		return handle_frame(ctx, true);
	return link->h_proto == bpf_htons(ETH_P_IPV6) ? handle_frame(ctx, false) : XDP_PASS;
}
