/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Between a frame and the rules, before the kernel has made a packet of it: what stands in its headers becomes plain
 * values, and what was decided is written there.
 *
 * Only frames that look as most do are read. All that is written is looked at before anything is written, so no frame
 * is half changed.
 */
#ifndef HOLDFAST_FRAME_H
#define HOLDFAST_FRAME_H

#include "packet.h"
#include "rewrite.h"
#include "sums.h"
#include "ways.h"

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

#endif
