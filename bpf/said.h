/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet says of the connection that it is of: TCP by a byte of flags, SCTP by chunks. Both are told in the
 * flags of TCP, so that one rule says what becomes of a flow.
 */
#ifndef HOLDFAST_SAID_H
#define HOLDFAST_SAID_H

#include <linux/bpf.h>
#include <linux/ipv6.h>
#include "dial.h"

/* ASKS is set for SCTP alone, and means another flag in TCP: the other side has to answer. */
enum { TCP_FIN = 1, TCP_SYN = 2, TCP_RST = 4, ASKS = 8, TCP_ACK = 16 };

/* How many bytes of a header of IP say how long the packet is, in either family. */
#define LENGTH_END 6

/* The length of a packet by its header of IP; 0: it is longer than that can say. */
INLINE __u32 length_of_packet(const __u8 *ip)
{
	__u32 length;

	if (ip[0] >> 4 == 4)
		return ip[2] << 8 | ip[3];
	length = ip[4] << 8 | ip[5];
	return length ? length + sizeof(struct ipv6hdr) : 0;
}

/*
 * Whether a segment of TCP has something that the other side has to acknowledge. A segment that is too long for the
 * header of IP to say counts as one that has.
 */
ALONE int has_data(struct __sk_buff *skb, __u32 at, __u32 transport)
{
	__u8 ip[LENGTH_END], tcp[2];
	__u32 length, headers;

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)) || bpf_skb_load_bytes(skb, transport + 12, tcp, sizeof(tcp)))
		return 0;
	if (tcp[1] & TCP_FIN)
		return 1;
	headers = transport - at + (tcp[0] >> 4) * 4;
	length = length_of_packet(ip);
	return !length || length > headers;
}

/* --- SCTP. --- */

/* The header of SCTP: ports, tag, sum. */
struct sctp {
	__u16 source;
	__u16 destination;
	__u32 tag;
	__u32 sum;
};

struct chunk {
	__u8 type;
	__u8 flags;
	/* With this header. */
	__u16 length;
};

enum {
	CHUNK_DATA = 0,
	CHUNK_INIT = 1,
	CHUNK_INIT_ACK = 2,
	CHUNK_HEARTBEAT = 4,
	CHUNK_ABORT = 6,
	CHUNK_SHUTDOWN = 7,
	CHUNK_SHUTDOWN_ACK = 8,
	CHUNK_COOKIE_ECHO = 10,
	CHUNK_SHUTDOWN_COMPLETE = 14,
	/* All others belong to an association that is there, and say nothing of it. */
	CHUNKS_KNOWN = 15,
};

static const __u8 says[CHUNKS_KNOWN] = {
	[CHUNK_DATA] = TCP_ACK | ASKS,
	[CHUNK_INIT] = TCP_SYN,
	[CHUNK_INIT_ACK] = TCP_SYN | TCP_ACK,
	[CHUNK_HEARTBEAT] = TCP_ACK | ASKS,
	[CHUNK_ABORT] = TCP_RST,
	[CHUNK_SHUTDOWN] = TCP_FIN | TCP_ACK | ASKS,
	[CHUNK_SHUTDOWN_ACK] = TCP_FIN | TCP_ACK | ASKS,
	[CHUNK_COOKIE_ECHO] = TCP_ACK | ASKS,
	[CHUNK_SHUTDOWN_COMPLETE] = TCP_FIN | TCP_ACK,
};

/*
 * How many chunks are looked at. A chunk that says something stands before all data, and seldom behind more than two
 * others.
 */
#define CHUNKS_MOST 4

/*
 * What a packet of SCTP says by its first chunks, in the flags of TCP. `ip`: where the header of IP begins, which says
 * where the packet ends. What a frame has behind that is no chunk.
 */
ALONE int said_by_chunks(struct __sk_buff *skb, __u32 ip, __u32 at)
{
	__u8 lengths[LENGTH_END];
	__u32 said = 0, length, end;

	if (bpf_skb_load_bytes(skb, ip, lengths, sizeof(lengths)))
		return 0;
	length = length_of_packet(lengths);
	end = length ? ip + length : skb->len;
	for (int seen = 0; seen < CHUNKS_MOST; seen++) {
		struct chunk chunk;

		if (at + sizeof(chunk) > end || bpf_skb_load_bytes(skb, at, &chunk, sizeof(chunk)))
			break;
		length = bpf_ntohs(chunk.length);
		if (length < sizeof(chunk))
			break;
		said |= chunk.type < CHUNKS_KNOWN && says[chunk.type] ? says[chunk.type] : TCP_ACK;
		if (chunk.type == CHUNK_DATA)
			break;
		at += (length + 3) & ~3U;
	}
	return said;
}

#endif
