// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The XDP program: it redirects frames of flows with remote backends, and drops frames of refused clients, before the
 * kernel makes packets of them.
 *
 * Owns: the parser and the writer of frames. Reads: frames, `flow_table`, `flow_paths`, `xdp_drop_hints`, frontends and
 * lists. Writes: frames, the scratch map, counts, refusals.
 *
 * The program only repeats what packet_in did with a packet of the same flow, direction, device, CPU and second. It
 * changes nothing but the frame. It passes each frame for which packet_in would note something, or do anything else. So
 * packet_in has all rules, and this program only recognises repetitions. For a client without a flow it asks the same
 * rules, of select_backend.h, after packet_in has refused one.
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
 * --- Frames: the headers as plain values, and the translated frame. ---
 *
 * Only common frames are read. Everything is checked before anything is written, so no frame is half changed.
 */

/* Whether frames may have fragments, whose total length the kernel tells (Linux 5.18). */
const volatile bool has_frags = false;

/* Reads the pointer by inline assembly, as skb_data(). */
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

/* A part of the frame, or NULL. Only the first fragment of a frame is readable. */
INLINE void *frame_bytes(const struct xdp_md *ctx, __u32 at, __u32 size)
{
	void *start = frame_start(ctx) + at;

	return start + size <= frame_end(ctx) ? start : NULL;
}

/* The offset of the transport header. */
INLINE __u32 transport_offset(bool v4)
{
	return ETH_HLEN + (v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

/* What the headers of a frame contain. */
struct frame {
	struct tuple tuple;
	struct ip_info info;
	/* The sum of the pseudo header. */
	__u64 pseudo;
	/* The TTL or hop limit. */
	__u8 hops;
	/* The connection flags, as TCP flags. */
	__u8 flags;
	/* The checksum of TCP or UDP. NULL for SCTP, whose CRC takes too long to correct. */
	__u16 *check;
};

/* `false`: the ingress program has to handle the packet. */
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

/* As above, for IPv6. */
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
 * Whether the frame is as long as its packet, or padded to the minimum, and has the transport header. The ingress
 * program gets frames with fragments: some drivers that redirect frames lose those without notice.
 */
INLINE bool has_exact_length(const struct xdp_md *ctx, const struct frame *frame, bool v4)
{
	__u32 min_length = transport_offset(v4) +
			   (frame->tuple.transport == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr));
	__u32 readable = frame_end(ctx) - frame_start(ctx);
	__u32 length = has_frags ? bpf_xdp_get_buff_len((struct xdp_md *)ctx) : readable;
	__u32 claimed = ETH_HLEN + frame->info.length;

	return length == readable && claimed >= min_length &&
	       (length == claimed || (length > claimed && length <= ETH_ZLEN));
}

/*
 * Whether the checksum is complete. A packet of this host has only the sum of its pseudo header until a card finishes
 * it. By chance a complete checksum may look like that.
 */
INLINE bool is_csum_complete(__u16 sum, const struct frame *frame, bool v4)
{
	if (frame->tuple.transport == IPPROTO_UDP && !sum)
		return v4;
	return sum != csum_fold16(frame->pseudo);
}

/*
 * Whether an SCTP packet is a single INIT, as it is when it opens an association. The ingress program reads all other
 * chunks.
 */
INLINE bool is_init(const struct xdp_md *ctx, const struct frame *frame, bool v4)
{
	__u32 before = transport_offset(v4) + sizeof(struct sctp_header);
	const struct sctp_chunk *chunk = frame_bytes(ctx, before, sizeof(*chunk));
	__u32 length = chunk ? bpf_ntohs(chunk->length) : 0;

	return length >= sizeof(*chunk) && chunk->type == CHUNK_INIT &&
	       ETH_HLEN + frame->info.length == before + ((length + 3) & ~3U);
}

/* Reads the TCP header. `false`: the frame is too short. */
INLINE bool read_tcp(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	struct tcphdr *tcp = frame_bytes(ctx, transport_offset(v4), sizeof(*tcp));

	if (!tcp)
		return false;
	frame->flags = ((__u8 *)tcp)[13];
	frame->check = &tcp->check;
	return true;
}

/* Reads the ports and the connection flags. `false`: the frame is too short. */
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

/* Reads a frame. `false`: the ingress program has to handle it. */
INLINE bool read_frame(const struct xdp_md *ctx, struct frame *frame, bool v4)
{
	return (v4 ? read_header4(ctx, frame) : read_header6(ctx, frame)) && read_transport(ctx, frame, v4);
}

/*
 * Whether nothing prevents a redirect of the frame. The check for the checksum is explicit, because the verifier does
 * not conclude it from the transport.
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

/* Decrements the TTL, and corrects the IPv4 checksum. */
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

/* A UDP checksum of 0 means none, and stays 0. A computed one is never 0. */
INLINE void write_frame_csum(__u16 *sum, __u8 transport, const struct csum_change *change)
{
	__u16 made;

	if (transport == IPPROTO_UDP && !*sum)
		return;
	made = ~csum_fold16((__u16) ~*sum + change->addresses + change->ports);
	*sum = transport == IPPROTO_UDP && !made ? 0xffff : made;
}

/* Gives a frame the source and the destination of `to`, and decrements its TTL. `false`: the frame is unchanged. */
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
 * --- Frames of refused clients. ---
 *
 * XDP drops a frame if the ingress program would drop it: the client is outside of the source ranges, or its frontend
 * has no backend and the client would get no reject. XDP counts and reports the same as that program. The ingress
 * program gets each packet with a flow, and each one that XDP cannot judge to the end.
 */

/* What xdp_lookup() returns beside the verdicts of XDP: the client may be one that is refused. */
#define CHECK_CLIENT 100

/* Whether the frame is for that MAC address. */
INLINE bool is_for_mac(const struct xdp_md *ctx, const __u8 *address)
{
	const __u16 *to = frame_bytes(ctx, 0, ETH_ALEN), *own = (const __u16 *)address;

	return to && !((to[0] ^ own[0]) | (to[1] ^ own[1]) | (to[2] ^ own[2]));
}

/* Whether the ingress program has just refused such a client, so that a check is worth its cost. */
INLINE bool has_drop_hint(const struct xdp_md *ctx)
{
	__u32 device = ctx->ingress_ifindex;
	const struct xdp_drop_hint *hint = get_xdp_drop_hint(device);

	return hint && hint->second == seconds() && hint->device == device && is_for_mac(ctx, hint->mac);
}

/* Saves a frame without a flow for the next step. CHECK_CLIENT: the client may be one that is refused. */
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

/* Whether a client without a backend gets no reject. Only such a client is dropped here. */
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

/* Drops a frame without a flow whose client is refused without a reject. */
INLINE int xdp_drop(struct xdp_md *ctx, bool v4)
{
	struct scratch *scratch = get_scratch();

	if (!scratch || !is_denied_in_xdp(ctx, scratch, v4))
		return XDP_PASS;
	count_packet(COUNT_XDP_DROPS);
	return XDP_DROP;
}

/*
 * Whether a further packet of the flow changes nothing: the connection is established, neither side has reset it, this
 * second is noted, and no reply is due.
 */
INLINE bool needs_no_tracking(const struct flow *flow, enum direction direction, __u32 now)
{
	if (flow->seen != now || flow->state != FLOW_OPEN || has_both_fins(flow))
		return false;
	if ((flow->client_flags | flow->backend_flags) & (FLOW_RST_SEEN | FLOW_UNREACHABLE_SEEN))
		return false;
	return direction == TO_BACKEND || (!flow->unacked && !needs_client_save(flow));
}

/*
 * Whether frames may be redirected between two devices. A driver sends another device's frame only if it has all it
 * needs.
 */
INLINE bool may_redirect_between(__u32 ingress_flags, __u32 egress_flags)
{
	return ingress_flags & egress_flags & DEVICE_FAST_PATH && ingress_flags & egress_flags & DEVICE_XDP;
}

/* The tuple of a leaving packet of a flow with a remote backend: the reverse of what the other side would send. */
INLINE void egress_tuple(struct tuple *outgoing, const struct flow *flow, enum direction direction)
{
	struct tuple other;

	if (direction == TO_BACKEND)
		snat_reply_tuple(&other, flow);
	else
		original_tuple(&other, flow);
	reverse_tuple(outgoing, &other);
}

/*
 * Redirects the frame, also to its ingress device: after XDP_TX, a veth does not wake a peer that has GRO and no
 * program.
 */
INLINE int redirect_frame(struct xdp_md *ctx, const struct frame *frame, const struct tuple *outgoing,
			  const struct flow_path *path, bool v4)
{
	__u32 ingress_flags = get_device_flags(ctx->ingress_ifindex), device = path->device;
	__u32 egress_flags = device == ctx->ingress_ifindex ? ingress_flags : get_device_flags(device);

	if (!may_redirect_between(ingress_flags, egress_flags) || !write_frame(ctx, frame, outgoing, path, v4))
		return XDP_PASS;
	count_packet(COUNT_XDP_REDIRECTS);
	return bpf_redirect(device, 0);
}

/* Makes a frame follow its flow. If another flow takes the record meanwhile, the serial differs. */
INLINE int follow_frame(struct xdp_md *ctx, const struct frame *frame, __u32 number, const struct flow *flow, bool v4)
{
	__u32 serial = READ_ONCE(flow->serial), now = seconds();
	const struct flow_path *path;
	enum direction direction;
	struct tuple outgoing;

	direction = translate_ingress(flow, &frame->tuple, &outgoing, v4);
	if (direction == NO_DIRECTION || !flow->nat_port || !(flow->client_flags & FLOW_FAST_PATH) ||
	    !needs_no_tracking(flow, direction, now))
		return XDP_PASS;
	path = get_flow_path(number, direction);
	if (!path || !is_path_for(path, number, serial, now, ctx->ingress_ifindex, &frame->info) ||
	    !is_for_mac(ctx, path->ingress_mac))
		return XDP_PASS;
	egress_tuple(&outgoing, flow, direction);
	if (READ_ONCE(flow->serial) != serial)
		return XDP_PASS;
	return redirect_frame(ctx, frame, &outgoing, path, v4);
}

/* CHECK_CLIENT: the frame has no flow, and may be of a client that is refused. */
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

/* The steps as global functions, for each family. */
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
