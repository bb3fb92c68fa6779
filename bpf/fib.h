/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Routes: FIB look-ups with their caches, and what is known of devices.
 *
 * Owns: `fib_cache`, `flow_paths`, the marks on packets that are already translated, and the note whether there is a
 * bridge. Reads: the kernel's FIB, `devices`. Writes: those caches, and a packet's tc_index.
 */
#ifndef HOLDFAST_FIB_H
#define HOLDFAST_FIB_H

#include <linux/if_packet.h>
#include "common.h"
#include "conntrack.h"
#include "packet.h"

#define FAMILY4 2
#define FAMILY6 10

/* The kernel does not tell the egress device, because the route adds a header. No device has this number. */
#define EGRESS_UNKNOWN (~0U)

/* The egress device of a route. 0: the packet stays on this node, or has no route. */
INLINE __u32 egress_from_fib(long status, const struct bpf_fib_lookup *route)
{
	if (status == BPF_FIB_LKUP_RET_SUCCESS || status == BPF_FIB_LKUP_RET_NO_NEIGH ||
	    status == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return route->ifindex;
	return status == BPF_FIB_LKUP_RET_UNSUPP_LWT ? EGRESS_UNKNOWN : 0;
}

/* The ifindex of the loopback device, in each network namespace. */
#define LOOPBACK_IFINDEX 1

/*
 * Looks a route up. A device that accepts router advertisements has IPv6 forwarding off, and the kernel then tells
 * programs no route. The stack forwards its packets all the same if forwarding is on for all devices. So this repeats
 * the look-up for the loopback device, which has the setting of all devices.
 */
INLINE long lookup_fib(struct __sk_buff *skb, struct bpf_fib_lookup *route)
{
	long status = bpf_fib_lookup(skb, route, sizeof(*route), 0);

	if (LIKELY(status != BPF_FIB_LKUP_RET_FWD_DISABLED) || route->family != FAMILY6)
		return status;
	route->ifindex = LOOPBACK_IFINDEX;
	return bpf_fib_lookup(skb, route, sizeof(*route), 0);
}

/* Looks the route of a packet up that arrived by the same device as this one. */
INLINE long query_fib(struct __sk_buff *skb, struct bpf_fib_lookup *route, const __u32 *from, const __u32 *to,
		      __u16 from_port, __u16 to_port, __u8 transport, bool v4)
{
	route->family = v4 ? FAMILY4 : FAMILY6;
	route->l4_protocol = transport;
	route->sport = from_port;
	route->dport = to_port;
	route->ifindex = skb->ifindex;
	if (v4) {
		route->ipv4_src = from[3];
		route->ipv4_dst = to[3];
	} else {
		copy_address(route->ipv6_src, from);
		copy_address(route->ipv6_dst, to);
	}
	return lookup_fib(skb, route);
}

/* The device by which such a packet would leave: see egress_from_fib(). */
INLINE __u32 lookup_egress(struct __sk_buff *skb, const __u32 *from, const __u32 *to, __u16 from_port, __u16 to_port,
			   __u8 transport, bool v4)
{
	struct bpf_fib_lookup route = {};

	return egress_from_fib(query_fib(skb, &route, from, to, from_port, to_port, transport, v4), &route);
}

/* --- Devices, and the route of a reply. --- */

/* The enum device_flag of a device, by its ifindex. */
INLINE __u32 get_device_flags(__u32 number)
{
	struct device *device = bpf_map_lookup_elem(&devices, &number);

	return device ? device->flags : 0;
}

/* Whether IPsec policies apply to packets of the ingress device. */
INLINE bool uses_ipsec(const struct __sk_buff *skb)
{
	return get_device_flags(skb->ifindex) & DEVICE_IPSEC;
}

/*
 * The mark of a packet that another program has finished. The egress program would look it up by what it is now, and
 * take it for a reply of another flow, where the backend is a frontend, too. A pod that sets this mark itself has its
 * packets leave unchanged.
 */
#define MARK_TRANSLATED 0x6c66

/*
 * Whether an ingress device, or one to backends, is a bridge: only then each translated packet is checked for its
 * bridge port. It is set when a flow begins, and in each second in which a client sends. The daemon sets it when it
 * loads programs, for flows whose replies alone arrive by a bridge.
 */
__u32 has_bridge_port;

INLINE void note_bridge(__u32 flags)
{
	if (UNLIKELY(flags & DEVICE_BRIDGE))
		*(volatile __u32 *)&has_bridge_port = 1;
}

GLOBAL int note_ingress_bridge(struct __sk_buff *skb)
{
	note_bridge(get_device_flags(skb->ifindex));
	return 0;
}

/*
 * Marks a translated packet that arrived by a bridge port. Netfilter may have seen the packet at the port before its
 * translation, so the program hands it in once more, and skips it then. Otherwise the program could take it for one to
 * a backend that is a frontend, too.
 */
GLOBAL int mark_translated_at_bridge(struct __sk_buff *skb)
{
	if (get_device_flags(skb->ifindex) & DEVICE_BRIDGE)
		skb->tc_index = MARK_TRANSLATED;
	return 0;
}

INLINE void mark_translated(struct __sk_buff *skb)
{
	if (UNLIKELY(READ_ONCE(has_bridge_port)))
		mark_translated_at_bridge(skb);
}

/* The devices that have the egress program. */
#define DEVICE_HAS_EGRESS (DEVICE_OUTER | DEVICE_POD | DEVICE_BACKENDS)

/*
 * Redirects a reply to the egress device that policy routing has for the frontend's address. The kernel routed the
 * reply by the backend's address, because the program sets the frontend's address only now. A network that accepts an
 * address from one device alone would drop the reply at another. A reply that is too long for that route leaves as it
 * is, because no host would fragment it. So does one without a link header, because the kernel cannot redirect it.
 */
INLINE int redirect_by_frontend(struct __sk_buff *skb, __u32 number, bool v4)
{
	struct flow *flow = get_flow(number);
	const __u8 *ip = get_header(skb, link_header, IP_LENGTH_END);
	struct bpf_fib_lookup route = {};
	__u32 device;
	long status;

	if (!flow || !ip || !link_header)
		return TC_ACT_UNSPEC;
	/* The kernel segments GSO packets, so they fit. */
	route.tot_len = skb->gso_size ? 0 : ip_packet_length(ip);
	status = query_fib(skb, &route, flow->frontend, flow->client, flow->frontend_port, flow->client_port,
			   flow->transport, v4);
	device = status == BPF_FIB_LKUP_RET_FRAG_NEEDED ? 0 : egress_from_fib(status, &route);
	if (!device || device == EGRESS_UNKNOWN || device == skb->ifindex)
		return TC_ACT_UNSPEC;
	if (get_device_flags(device) & DEVICE_HAS_EGRESS)
		skb->tc_index = MARK_TRANSLATED;
	return bpf_redirect_neigh(device, NULL, 0, 0);
}

GLOBAL int redirect_by_frontend4(struct __sk_buff *skb, __u32 number)
{
	return redirect_by_frontend(skb, number, true);
}

GLOBAL int redirect_by_frontend6(struct __sk_buff *skb, __u32 number)
{
	return redirect_by_frontend(skb, number, false);
}

/* Routes a translated reply. */
INLINE int route_reply(struct __sk_buff *skb, const struct flow *flow, __u32 number, bool v4)
{
	if (LIKELY(!(flow->client_flags & FLOW_REPLY_BY_FRONTEND)))
		return TC_ACT_UNSPEC;
	return v4 ? redirect_by_frontend4(skb, number) : redirect_by_frontend6(skb, number);
}

/*
 * --- The FIB cache. ---
 *
 * Each CPU keeps what the kernel answered in this second. The key holds every byte of the query that the kernel reads,
 * so only an equal query gets the cached result. Where the FIB ignores ports, the key has none, and all connections
 * between two hosts share an entry.
 */

/* Entries of each CPU: a power of two. Of two queries with one index, the later one has the entry. */
#define FIB_CACHE_ENTRIES 1024
#define FIB_CACHE_BITS 10

/* The key is the first part of the kernel's parameters, except the packet's length. The kernel only writes the rest. */
#define FIB_KEY_WORDS 6
_Static_assert(FIB_KEY_WORDS * 8 == __builtin_offsetof(struct bpf_fib_lookup, ipv6_dst) + 16, "it ends with where to");

union fib_query {
	struct bpf_fib_lookup params;
	__u64 words[sizeof(struct bpf_fib_lookup) / 8];
};

struct fib_cache_entry {
	__u64 key[FIB_KEY_WORDS];
	/* The parameters as the kernel wrote them. */
	union fib_query result;
	/* What the kernel returned: the whole path, or only the device, if the neighbour is not resolved. */
	__u32 status;
	/* The second of the query. 0: no result. */
	__u32 second;
	__u32 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FIB_CACHE_ENTRIES);
	__type(key, __u32);
	__type(value, struct fib_cache_entry);
} fib_cache SEC(".maps");

/* A length that fits every route: the kernel tells the MTU only if the query has a length. */
#define ANY_LENGTH 1

/* The traffic class in the first word of an IPv6 header. */
#define TRAFFIC_CLASS6 bpf_htonl(0x0ff00000)

/* The TOS, or the traffic class and flow label, because routes may depend on them. */
INLINE __u32 traffic_class(const struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	if (v4) {
		const struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));

		return ip ? ip->tos : 0;
	} else {
		const struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));

		return ip ? *(const __u32 *)ip & bpf_htonl(0x0fffffff) : 0;
	}
}

/*
 * Sets the query for a packet that arrives by a device. `flags`: the device's. They say whether the FIB ignores ports
 * and flow labels.
 */
INLINE void set_fib_query(union fib_query *query, const struct tuple *tuple, __u32 class, __u32 ingress_device,
			  __u32 flags, bool v4)
{
	struct bpf_fib_lookup *params = &query->params;
	bool is_plain = flags & (v4 ? DEVICE_SIMPLE_FIB4 : DEVICE_SIMPLE_FIB6);

	params->family = v4 ? FAMILY4 : FAMILY6;
	params->l4_protocol = tuple->transport;
	params->sport = is_plain ? 0 : tuple->source.port;
	params->dport = is_plain ? 0 : tuple->destination.port;
	params->ifindex = ingress_device;
	if (v4) {
		params->tos = class;
		params->ipv4_src = tuple->source.address[3];
		params->ipv4_dst = tuple->destination.address[3];
	} else {
		params->flowinfo = is_plain ? class & TRAFFIC_CLASS6 : class;
		copy_address(params->ipv6_src, tuple->source.address);
		copy_address(params->ipv6_dst, tuple->destination.address);
	}
}

INLINE struct fib_cache_entry *get_fib_cache_entry(const union fib_query *query)
{
	__u64 mixed = 0;
	__u32 at;

	for (int word = 0; word < FIB_KEY_WORDS; word++)
		mixed = (mixed ^ query->words[word]) * 0x9e3779b97f4a7c15;
	at = mixed >> (64 - FIB_CACHE_BITS);
	return bpf_map_lookup_elem(&fib_cache, &at);
}

/* Without branches, as address_diff(), and for the same reason. */
INLINE bool is_same_fib_key(const struct fib_cache_entry *entry, const union fib_query *query)
{
	__u64 differs = 0;

	for (int word = 0; word < FIB_KEY_WORDS; word++)
		differs |= entry->key[word] ^ query->words[word];
	return !differs;
}

/*
 * Whether a result holds for a packet of that length. 0: only the device is asked for. Kernels that tell no MTU return
 * the length of the query.
 */
INLINE bool is_valid_for_length(const struct fib_cache_entry *entry, __u32 length)
{
	return !length || (entry->status == BPF_FIB_LKUP_RET_SUCCESS && length <= entry->result.params.mtu_result);
}

/*
 * Looks a route up by the cache, and returns the kernel's result. `length`: as above. A missing route is not cached,
 * because a new one has to be found at once.
 */
INLINE long lookup_fib_cached(struct __sk_buff *skb, union fib_query *query, __u32 length)
{
	struct fib_cache_entry *entry = get_fib_cache_entry(query);
	__u32 now = seconds();
	bool is_same;
	long status;

	if (!entry)
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	is_same = entry->second == now && is_same_fib_key(entry, query);
	if (is_same && is_valid_for_length(entry, length)) {
		*query = entry->result;
		return entry->status;
	}
	if (!is_same) {
		entry->second = 0;
		for (int word = 0; word < FIB_KEY_WORDS; word++)
			entry->key[word] = query->words[word];
	}
	query->params.tot_len = length ? length : ANY_LENGTH;
	status = lookup_fib(skb, &query->params);
	if (status == BPF_FIB_LKUP_RET_SUCCESS || status == BPF_FIB_LKUP_RET_NO_NEIGH) {
		entry->result = *query;
		entry->status = status;
		entry->second = now;
	}
	return status;
}

/* As lookup_egress(), by the cache. */
INLINE __u32 lookup_egress_cached(struct __sk_buff *skb, const struct tuple *tuple, __u32 class, __u32 ingress_device,
				  __u32 flags, bool v4)
{
	union fib_query query = {};
	long status;

	set_fib_query(&query, tuple, class, ingress_device, flags, v4);
	status = lookup_fib_cached(skb, &query, 0);
	return egress_from_fib(status, &query.params);
}

/*
 * --- The path of each flow. ---
 *
 * A path is looked up once in a second for each flow and direction, as the stack would do it. A look-up costs as much
 * as the rest of a packet. Each CPU keeps its own results for the current second, for packets with the same query.
 * Whether a device may be used is no part of a result.
 */

/* Paths of each CPU: two for each flow, until another flow with the same index has packets. */
#define FLOW_PATHS 4096

/* What the kernel told about a flow's path. */
struct flow_path {
	/* The number and the serial of the flow. Serial 0: no path. */
	__u32 number;
	__u32 serial;
	/* The second of the look-up. */
	__u32 second;
	/* The egress device and the next hop. The next hop of an IPv4 packet may be an IPv6 address. */
	__u32 device;
	__u32 next[4];
	__u32 next_family;
	/* The TOS, or the traffic class and flow label. */
	__u32 class;
	/* The longest packet of this path. */
	__u32 mtu;
	/* The ingress device of such packets. */
	__u32 ingress_device;
	/* The MAC addresses of the next hop and of the egress device. */
	__u8 dst_mac[ETH_ALEN];
	__u8 src_mac[ETH_ALEN];
	/* The destination MAC address of such packets at ingress. */
	__u8 ingress_mac[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FLOW_PATHS);
	__type(key, __u32);
	__type(value, struct flow_path);
} flow_paths SEC(".maps");

/* The path of a flow in that direction. */
INLINE struct flow_path *get_flow_path(__u32 number, __u32 direction)
{
	__u32 at = (number << 1 | (direction == TO_CLIENT)) & (FLOW_PATHS - 1);

	return bpf_map_lookup_elem(&flow_paths, &at);
}

/* No path carries a packet of this length. */
#define TOO_LONG (~0U)

/*
 * The length of a packet on the wire, without its link header. `length`: what the IP header says. The kernel segments a
 * GSO packet, and each segment has headers of its own. A frame is longer than its packet only if it was padded to the
 * minimum. TOO_LONG: the length is another one, and the stack has to check it.
 */
INLINE __u32 wire_length(const struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
	__u32 headers = packet->transport - packet->ip;
	const __u8 *tcp;

	if (!skb->gso_size)
		return skb->len == packet->ip + length || (skb->len > packet->ip + length && skb->len <= ETH_ZLEN) ?
			       length :
			       TOO_LONG;
	if (packet->tuple.transport != IPPROTO_TCP)
		return skb->gso_size + headers + sizeof(struct udphdr);
	tcp = get_header(skb, packet->transport, sizeof(struct tcphdr));
	return tcp ? skb->gso_size + headers + (tcp[12] >> 4) * 4 : TOO_LONG;
}

/* What the IP header tells about a packet's path. */
struct ip_info {
	__u32 length;
	/* The TOS, or the traffic class and flow label. */
	__u32 class;
};

/* `false`: the stack would do more than forward this packet. */
INLINE bool read_ip_info4(const struct __sk_buff *skb, const struct packet *packet, struct ip_info *info)
{
	const struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));

	if (!ip || ip->ihl != 5 || ip->ttl <= 1)
		return false;
	info->class = ip->tos;
	info->length = wire_length(skb, packet, bpf_ntohs(ip->tot_len));
	return true;
}

/* As above, for IPv6. */
INLINE bool read_ip_info6(const struct __sk_buff *skb, const struct packet *packet, struct ip_info *info)
{
	const struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));

	if (!ip || !is_transport(ip->nexthdr) || ip->hop_limit <= 1)
		return false;
	info->class = *(const __u32 *)ip & bpf_htonl(0x0fffffff);
	info->length = wire_length(skb, packet, bpf_ntohs(ip->payload_len) + sizeof(*ip));
	return true;
}

/*
 * Looks the next hop up, as the stack would between the two programs. The stack gets a packet that is too long or has
 * no route, and tells the sender. It also gets one whose neighbour is not resolved.
 */
INLINE bool lookup_flow_path(struct __sk_buff *skb, struct flow_path *path, const struct tuple *translated,
			     const struct ip_info *info, __u32 flags, bool v4)
{
	union fib_query query = {};
	const struct bpf_fib_lookup *fib = &query.params;

	set_fib_query(&query, translated, info->class, skb->ifindex, flags, v4);
	if (lookup_fib_cached(skb, &query, info->length) != BPF_FIB_LKUP_RET_SUCCESS)
		return false;
	path->device = fib->ifindex;
	path->mtu = fib->mtu_result;
	path->class = info->class;
	copy_address(path->next, fib->ipv6_dst);
	path->next_family = fib->family;
	__builtin_memcpy(path->dst_mac, fib->dmac, ETH_ALEN);
	__builtin_memcpy(path->src_mac, fib->smac, ETH_ALEN);
	return true;
}

/*
 * Whether the reply would leave by the ingress device of this packet. If not, the sender's address may belong
 * elsewhere, and the stack checks that (rp_filter).
 */
INLINE bool is_reply_path(struct __sk_buff *skb, const struct tuple *translated, __u32 device, bool v4)
{
	struct tuple reply;

	reverse_tuple(&reply, translated);
	return lookup_egress_cached(skb, &reply, 0, device, get_device_flags(device), v4) == skb->ifindex;
}

/* Saves how such packets arrive: XDP recognises them by that (xdp.bpf.c). */
INLINE void save_ingress(struct __sk_buff *skb, struct flow_path *path)
{
	const struct ethhdr *link = link_header == ETH_HLEN ? get_header(skb, 0, sizeof(*link)) : NULL;

	path->ingress_device = skb->ifindex;
	if (link)
		__builtin_memcpy(path->ingress_mac, link->h_dest, ETH_ALEN);
}

/*
 * Whether the path holds for this packet: same flow, same second, same ingress device. The kernel has to check a packet
 * that is too long.
 */
INLINE bool is_path_for(const struct flow_path *path, __u32 number, __u32 serial, __u32 now, __u32 ingress_device,
			const struct ip_info *info)
{
	return path->number == number && path->serial == serial && path->second == now &&
	       path->ingress_device == ingress_device && path->class == info->class && info->length <= path->mtu;
}

/* `false`: the stack would do more than forward this packet. */
INLINE bool read_ip_info(const struct __sk_buff *skb, const struct packet *packet, struct ip_info *info, bool v4)
{
	return (v4 ? read_ip_info4(skb, packet, info) : read_ip_info6(skb, packet, info)) && info->length <= 0xffff;
}

/*
 * Looks the path of the packet in the scratch map up anew, once in a second. `flags`: the ingress device's. A global
 * function: the verifier follows it once, and not for each way in which a packet gets here.
 */
INLINE bool refresh_flow_path(struct __sk_buff *skb, __u32 flags, bool v4)
{
	const struct scratch *scratch = get_scratch();
	struct flow_path *path = scratch ? get_flow_path(scratch->number, scratch->direction) : NULL;
	struct ip_info info;

	if (!path || !read_ip_info(skb, &scratch->packet, &info, v4))
		return false;
	path->serial = 0;
	if (!lookup_flow_path(skb, path, &scratch->translated, &info, flags, v4) ||
	    !is_reply_path(skb, &scratch->translated, path->device, v4))
		return false;
	save_ingress(skb, path);
	path->second = seconds();
	path->number = scratch->number;
	path->serial = scratch->serial;
	return true;
}

GLOBAL int refresh_flow_path4(struct __sk_buff *skb, __u32 flags)
{
	return refresh_flow_path(skb, flags, true);
}

GLOBAL int refresh_flow_path6(struct __sk_buff *skb, __u32 flags)
{
	return refresh_flow_path(skb, flags, false);
}

/* Resolves the path of a packet. `flags`: the ingress device's. `false`: the packet goes through the stack. */
INLINE bool resolve_flow_path(struct __sk_buff *skb, const struct scratch *scratch, const struct flow_path *path,
			      __u32 flags, bool v4)
{
	const struct packet *packet = &scratch->packet;
	struct ip_info info;

	if (packet->part != WHOLE || skb->pkt_type != PACKET_HOST || skb->vlan_present || skb->mark)
		return false;
	if (!read_ip_info(skb, packet, &info, v4))
		return false;
	if (LIKELY(is_path_for(path, scratch->number, scratch->serial, seconds(), skb->ifindex, &info)))
		return true;
	return v4 ? refresh_flow_path4(skb, flags) : refresh_flow_path6(skb, flags);
}

#endif
