//! Converts core's values to and from the bytes that the programs read.
//!
//! Invariant: `bpf/include/abi.h` is the only definition. Renaming, retyping or adding a field there breaks the
//! compilation until this module follows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::atomic::AtomicU64;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::limits::{BACKENDS_PER_LIST_MAX, QUOTA_IDS_MAX};
use holdfast_core::list::{Scope, Slot, SlotState};
use holdfast_core::op::{
    FrontendType, FrontendValue, MemberKey, Membership, PortFacts, PortIndex, QuotaId, Word, WordFlags,
};

use crate::mapped_array::MappedArray;
pub(crate) use crate::skeleton::types;

/// A generated struct without padding: its bytes are its value.
///
/// # Safety
/// Only `abi!` implements it, which checks for hidden padding.
#[allow(unsafe_code)]
pub(crate) unsafe trait Abi: Copy + Default + 'static {}

macro_rules! abi {
    ($name:ident { $($field:ident: $kind:ty),+ $(,)? }) => {
        const _: () = assert!(size_of::<types::$name>() == 0 $(+ size_of::<$kind>())+, "hidden padding");
        const _: fn(&types::$name) = |it| { $(let _: &$kind = &it.$field;)+ };
        // SAFETY: the assertion proves that fields cover every byte. All are integers or arrays of them, so any bytes
        // are valid.
        #[allow(unsafe_code)]
        unsafe impl Abi for types::$name {}
    };
}

pub(crate) mod flow;
pub(crate) mod packets;
pub(crate) mod refused_connects;
pub(crate) mod sources;

abi!(frontend4_key { address: u32, port: u16, transport: u8, any: u8 });
abi!(frontend4_value { address: u32, port: u16, transport: u8, any: u8, target: u64 });
abi!(frontend6_key { address: [u32; 4], port: u16, transport: u8, any: u8 });
abi!(frontend6_value { address: [u32; 4], port: u16, transport: u8, any: u8, reserved: u32, target: u64 });
abi!(slot4 { address: u32, port: u16, state: u16 });
abi!(slot6 { address: [u32; 4], port: u16, state: u16, pad: u32 });
abi!(port_facts { affinity_timeout: u32, ignored_bits: u32 });
abi!(port {
    cluster: u64,
    local: u64,
    facts: types::port_facts,
    refused: u64,
    dropped: u64,
    reserved: [u64; 3],
    connects: [u64; 8],
});
abi!(member_key { port_index: u32, scope: u32, address: [u32; 4], port: u16, pad: [u16; 3] });
abi!(control {
    exempt_cgroup: u64,
    host_netns: u64,
    refusals_lost: u64,
    exempt_mark: u32,
    restrictions: u32
});
abi!(udp_pair { dialled: [u32; 4], backend: [u32; 4], dialled_port: u16, backend_port: u16, check: u32 });
abi!(udp_connection { cookie: u64, netns: u64, pair: types::udp_pair });
abi!(sock_rev_nat { cookie: u64, address: [u32; 4], port: u16, pad: u16, check: u32 });
abi!(refusal {
    at_ns: u64,
    cgroup: u64,
    netns: u64,
    process: u32,
    thread: u32,
    comm: [u8; 16],
    address: [u32; 4],
    source: [u32; 4],
    port: u16,
    source_port: u16,
    transport: u8,
    verdict: u8,
    stage: u8,
    reason: u8,
    port_and_share: u32,
    device: u32,
});
abi!(affinity_key { client: [u32; 4], port_index: u32, scope: u8, kind: u8, pad: u16 });

/// The bytes that the kernel compares and stores.
#[allow(unsafe_code)]
pub(crate) fn as_bytes<T: Abi>(value: &T) -> &[u8] {
    // SAFETY: `Abi` promises that all bytes are initialized fields.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// Reads a value from these bytes; `None` if there are too few.
#[allow(unsafe_code)]
pub(crate) fn from_bytes<T: Abi>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length is checked, and `Abi` promises that any bytes are a value.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

pub(crate) fn to_words<T: Abi>(value: &T) -> impl Iterator<Item = u64> {
    as_bytes(value).as_chunks().0.iter().map(|chunk| u64::from_ne_bytes(*chunk))
}

pub(crate) fn from_words<T: Abi>(words: impl Iterator<Item = u64>) -> Option<T> {
    let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    from_bytes(&bytes)
}

pub(crate) fn transport_from_number(number: u8) -> Option<Transport> {
    Transport::ALL.into_iter().find(|it| it.protocol_number() == number)
}

pub(crate) fn address4(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

fn from_address4(address: u32) -> Ipv4Addr {
    Ipv4Addr::from(address.to_ne_bytes())
}

pub(crate) fn address6(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    let (parts, _) = octets.as_chunks();
    std::array::from_fn(|at| parts.get(at).map_or(0, |part| u32::from_ne_bytes(*part)))
}

fn from_address6(address: [u32; 4]) -> Ipv6Addr {
    let [a, b, c, d] = address.map(u32::to_ne_bytes);
    let octets = [a, b, c, d].concat();
    octets.try_into().map_or(Ipv6Addr::UNSPECIFIED, |octets: [u8; 16]| Ipv6Addr::from(octets))
}

/// An address in one form for both families.
pub(crate) fn to_mapped(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => address6(address.to_ipv6_mapped()),
        IpAddr::V6(address) => address6(address),
    }
}

pub(crate) fn from_mapped(address: [u32; 4]) -> IpAddr {
    from_address6(address).to_canonical()
}

/// The number of the address's block, as the programs count blocks.
pub(crate) fn address_block(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => u32::from(address) >> 16,
        IpAddr::V6(address) => {
            let [first, second, ..] = address6(address);
            types::size::BLOCKS.0 + ((first ^ second).wrapping_mul(BLOCK_MULTIPLIER) >> 16)
        }
    }
}

/// Odd, with bits that look random: the upper half of a product depends on all bits of the other factor.
const BLOCK_MULTIPLIER: u32 = 0x9e37_79b1;

/// A frontend as a key of the kernel's map, for either family.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrontendBytes {
    V4(types::frontend4_key),
    V6(types::frontend6_key),
}

impl FrontendBytes {
    pub(crate) fn new(key: &FrontendKey) -> Self {
        let port = key.port.get().to_be();
        let transport = key.transport.protocol_number();
        let any = u8::from(key.address.is_unspecified());
        match key.address {
            IpAddr::V4(address) => {
                Self::V4(types::frontend4_key { address: address4(address), port, transport, any })
            }
            IpAddr::V6(address) => {
                Self::V6(types::frontend6_key { address: address6(address), port, transport, any })
            }
        }
    }

    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Self::V4(key) => as_bytes(key),
            Self::V6(key) => as_bytes(key),
        }
    }

    /// The value of the map's element. It repeats the key.
    pub(crate) fn value_bytes(&self, value: FrontendValue) -> Vec<u8> {
        let kind = u64::from(kind_number(value.kind)) << KIND_SHIFT;
        let target = u64::from(value.port.0) | kind | u64::from(value.quota.0) << QUOTA_SHIFT;
        match *self {
            Self::V4(types::frontend4_key { address, port, transport, any }) => {
                as_bytes(&types::frontend4_value { address, port, transport, any, target }).to_vec()
            }
            Self::V6(types::frontend6_key { address, port, transport, any }) => {
                let value = types::frontend6_value { address, port, transport, any, reserved: 0, target };
                as_bytes(&value).to_vec()
            }
        }
    }
}

/// Reads an element of a frontend map. `None`: this daemon did not write it, in any version.
pub(crate) fn decode_frontend(
    family: Family,
    key: &[u8],
    found: &[u8],
) -> Option<(FrontendKey, FrontendValue)> {
    let (address, port, transport, target) = match family {
        Family::V4 => {
            let key = from_bytes::<types::frontend4_key>(key)?;
            let found = from_bytes::<types::frontend4_value>(found)?;
            (IpAddr::V4(from_address4(key.address)), key.port, key.transport, found.target)
        }
        Family::V6 => {
            let key = from_bytes::<types::frontend6_key>(key)?;
            let found = from_bytes::<types::frontend6_value>(found)?;
            (IpAddr::V6(from_address6(key.address)), key.port, key.transport, found.target)
        }
    };
    let port = NonZeroU16::new(u16::from_be(port))?;
    let frontend = FrontendKey { address, port, transport: transport_from_number(transport)? };
    if FrontendBytes::new(&frontend).key() != key {
        return None;
    }
    let index = u32::try_from(target & low_bits(KIND_SHIFT)).ok()?;
    let kind = kind_from_number((target & low_bits(QUOTA_SHIFT)) >> KIND_SHIFT)?;
    let quota = QuotaId(u16::try_from(target >> QUOTA_SHIFT).ok()?);
    Some((frontend, FrontendValue { port: PortIndex(index), kind, quota }))
}

/// Bit positions of the kind and the quota in a target.
const KIND_SHIFT: u32 = types::target_part::TARGET_KIND_AT.0;
const QUOTA_SHIFT: u32 = types::target_part::TARGET_SHARE_AT.0;
const _: () =
    assert!(QUOTA_IDS_MAX as u32 == types::size::FLOW_SHARES.0 - 1, "flows are counted by other shares");

const KINDS: [(FrontendType, types::frontend_kind); 6] = [
    (FrontendType::ClusterIp, types::frontend_kind::CLUSTER_IP),
    (FrontendType::LoadBalancer, types::frontend_kind::LOAD_BALANCER),
    (FrontendType::ExternalIp, types::frontend_kind::EXTERNAL_IP),
    (FrontendType::NodePort, types::frontend_kind::NODE_PORT),
    (FrontendType::Static, types::frontend_kind::STATIC),
    (FrontendType::ClusterSetIp, types::frontend_kind::CLUSTER_SET_IP),
];

fn kind_number(kind: FrontendType) -> u32 {
    KINDS.iter().find(|(it, _)| *it == kind).map_or(0, |(_, number)| number.0)
}

fn kind_from_number(number: u64) -> Option<FrontendType> {
    KINDS.iter().find(|(_, it)| u64::from(it.0) == number).map(|(kind, _)| *kind)
}

/// A number with its lowest `count` bits set.
const fn low_bits(count: u32) -> u64 {
    (1 << count) - 1
}

/// Bit positions of the count and the flags in a list's word.
const COUNT_SHIFT: u32 = types::word_part::WORD_COUNT_AT.0;
const FLAGS_SHIFT: u32 = types::word_part::WORD_FLAGS_AT.0;
const COUNT_MASK: u64 = low_bits(FLAGS_SHIFT - COUNT_SHIFT);
const _: () =
    assert!(BACKENDS_PER_LIST_MAX as u64 <= COUNT_MASK, "a list's word has no bits for so many backends");

const FLAGS: [(WordFlags, types::word_flag); 9] = [
    (WordFlags::DROP, types::word_flag::WORD_DROP),
    (WordFlags::INTERNAL_LOCAL, types::word_flag::WORD_INTERNAL_LOCAL),
    (WordFlags::AFFINITY, types::word_flag::WORD_AFFINITY),
    (WordFlags::EXTERNAL_LOCAL, types::word_flag::WORD_EXTERNAL_LOCAL),
    (WordFlags::MEMBERS, types::word_flag::WORD_MEMBERS),
    (WordFlags::SOURCES, types::word_flag::WORD_SOURCES),
    (WordFlags::MAGLEV, types::word_flag::WORD_MAGLEV),
    (WordFlags::TABLE, types::word_flag::WORD_TABLE),
    (WordFlags::OFF_CLUSTER, types::word_flag::WORD_OUTSIDE),
];

/// Encodes a list's word as 64 bits, so that one aligned store replaces the list.
pub(crate) fn encode_word(word: Word) -> u64 {
    let set = FLAGS.iter().filter(|(flag, _)| word.flags.contains(*flag));
    let flags = set.fold(0, |flags, (_, bit)| flags | u64::from(bit.0));
    u64::from(word.base) | (u64::from(word.count) & COUNT_MASK) << COUNT_SHIFT | flags << FLAGS_SHIFT
}

/// The inverse of [`encode_word`]. `UNKNOWN` stands for all unknown flags.
// Each part is masked to its width first.
#[allow(clippy::cast_possible_truncation)]
pub(crate) fn decode_word(bits: u64) -> Word {
    let is_set = |bit: types::word_flag| bits >> FLAGS_SHIFT & u64::from(bit.0) != 0;
    let flags = FLAGS.iter().fold(WordFlags::default(), |flags, (flag, bit)| flags.with(*flag, is_set(*bit)));
    let known = FLAGS.iter().fold(0, |known, (_, bit)| known | u64::from(bit.0));
    let flags = flags.with(WordFlags::UNKNOWN, bits >> FLAGS_SHIFT & !known != 0);
    Word {
        base: (bits & low_bits(COUNT_SHIFT)) as u32,
        count: (bits >> COUNT_SHIFT & COUNT_MASK) as u32,
        flags,
    }
}

const STATES: [(SlotState, types::slot_state); 2] = [
    (SlotState::Active, types::slot_state::SLOT_ACTIVE),
    (SlotState::Draining, types::slot_state::SLOT_DRAINING),
];

pub(crate) fn state_number(state: SlotState) -> u32 {
    STATES.iter().find(|(it, _)| *it == state).map_or(0, |(_, number)| number.0)
}

fn state_from_number(number: u32) -> Option<SlotState> {
    STATES.iter().find(|(_, it)| it.0 == number).map(|(state, _)| *state)
}

/// How many 64-bit words a slot of that family has.
pub(crate) const fn slot_words(family: Family) -> usize {
    match family {
        Family::V4 => size_of::<types::slot4>() / 8,
        Family::V6 => size_of::<types::slot6>() / 8,
    }
}

/// The most words that a slot of any family has.
pub(crate) const SLOT_WORDS_MAX: usize = slot_words(Family::V6);

fn pad_words(mut words: impl Iterator<Item = u64>) -> [u64; SLOT_WORDS_MAX] {
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

/// Encodes a slot as the words of its array; the first [`slot_words`] count. `None`: the slot is of the other family.
pub(crate) fn encode_slot(family: Family, slot: &Slot) -> Option<[u64; SLOT_WORDS_MAX]> {
    let port = slot.port.get().to_be();
    let state = u16::try_from(state_number(slot.state)).ok()?;
    match (family, slot.address) {
        (Family::V4, IpAddr::V4(address)) => {
            Some(pad_words(to_words(&types::slot4 { address: address4(address), port, state })))
        }
        (Family::V6, IpAddr::V6(address)) => {
            Some(pad_words(to_words(&types::slot6 { address: address6(address), port, state, pad: 0 })))
        }
        _ => None,
    }
}

/// The inverse of [`encode_slot`]. `None`: the slot is empty.
pub(crate) fn decode_slot(family: Family, words: impl Iterator<Item = u64>) -> Option<Slot> {
    let (address, port, state) = match family {
        Family::V4 => {
            let slot: types::slot4 = from_words(words)?;
            (IpAddr::V4(from_address4(slot.address)), slot.port, slot.state)
        }
        Family::V6 => {
            let slot: types::slot6 = from_words(words)?;
            (IpAddr::V6(from_address6(slot.address)), slot.port, slot.state)
        }
    };
    Some(Slot {
        address,
        port: NonZeroU16::new(u16::from_be(port))?,
        state: state_from_number(u32::from(state))?,
    })
}

pub(crate) fn encode_facts(facts: PortFacts) -> u64 {
    let PortFacts { affinity_timeout, ignored_bits: left_out } = facts;
    let facts = types::port_facts { affinity_timeout, ignored_bits: left_out.into() };
    to_words(&facts).next().unwrap_or_default()
}

pub(crate) fn decode_facts(word: u64) -> PortFacts {
    let facts: types::port_facts = from_words([word].into_iter()).unwrap_or_default();
    // A larger number comes from another writer. Drift repair then rewrites the word.
    let left_out = facts.ignored_bits.try_into().unwrap_or(u8::MAX);
    PortFacts { affinity_timeout: facts.affinity_timeout, ignored_bits: left_out }
}

const fn scope_number(membership: Membership) -> u32 {
    match membership {
        Membership::List(Scope::Cluster) => types::scope::SCOPE_CLUSTER.0,
        Membership::List(Scope::Local) => types::scope::SCOPE_LOCAL.0,
        Membership::Serving => types::scope::SCOPE_SERVING.0,
    }
}

pub(crate) fn encode_member(key: &MemberKey) -> types::member_key {
    types::member_key {
        port_index: key.port.0,
        scope: scope_number(key.membership),
        address: to_mapped(key.backend.ip()),
        port: key.backend.port().to_be(),
        pad: [0; 3],
    }
}

pub(crate) fn decode_member(key: &[u8], state: &[u8]) -> Option<(MemberKey, SlotState)> {
    let key: types::member_key = from_bytes(key)?;
    let membership = Membership::ALL.into_iter().find(|it| scope_number(*it) == key.scope)?;
    let backend = SocketAddr::new(from_mapped(key.address), u16::from_be(key.port));
    let state = state_from_number(u32::from_ne_bytes(state.try_into().ok()?))?;
    Some((MemberKey { port: PortIndex(key.port_index), membership, backend }, state))
}

/// The address that a connected UDP socket dialled, and the backend that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UdpConnection {
    /// The cookie of its network namespace.
    pub(crate) netns: u64,
    pub(crate) dialled: SocketAddr,
    pub(crate) backend: SocketAddr,
}

/// Reads a UDP socket's cookie and connection. `None`: another thread was writing the entry.
pub(crate) fn decode_connection(entry: &[u8]) -> Option<(u64, UdpConnection)> {
    let types::udp_connection { cookie, netns, pair } = from_bytes(entry)?;
    let mixed =
        mix_endpoint(mix_endpoint(0, pair.dialled, pair.dialled_port), pair.backend, pair.backend_port);
    let endpoint = |address, port| SocketAddr::new(from_mapped(address), u16::from_be(port));
    let connection = UdpConnection {
        netns,
        dialled: endpoint(pair.dialled, pair.dialled_port),
        backend: endpoint(pair.backend, pair.backend_port),
    };
    (u64::from(pair.check) == mixed >> 32).then_some((cookie, connection))
}

/// How many 64-bit words an entry of `ports` has.
pub(crate) const PORT_WORDS: usize = size_of::<types::port>() / 8;

pub(crate) fn port_words(ports: &MappedArray, index: PortIndex) -> Option<&[AtomicU64]> {
    let at = index.0 as usize * PORT_WORDS;
    ports.get(at..at + PORT_WORDS)
}

pub(crate) fn sock_rev_nat_index(cookie: u64) -> u32 {
    let last = u64::from(types::size::SOCK_REV_NAT_ENTRIES.0) - 1;
    u32::try_from(cookie & last).unwrap_or_default()
}

/// The address that a TCP socket dialled when it got that backend. `None`: the entry is torn or belongs to another
/// socket.
pub(crate) fn tcp_dial_target(found: &[u8], cookie: u64, backend: SocketAddr) -> Option<SocketAddr> {
    let entry: types::sock_rev_nat = from_bytes(found)?;
    let mixed = mix_endpoint(cookie, entry.address, entry.port);
    let check = mix_endpoint(mixed, to_mapped(backend.ip()), backend.port().to_be()) >> 32;
    let is_own = entry.cookie == cookie && u64::from(entry.check) == check;
    is_own.then(|| SocketAddr::new(from_mapped(entry.address), u16::from_be(entry.port)))
}

/// Does the same as `mix` in `bpf/common.h`.
fn mix(mixed: u64, low: u32, high: u32) -> u64 {
    let mixed = (mixed ^ (u64::from(high) << 32 | u64::from(low))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

fn mix_endpoint(mixed: u64, address: [u32; 4], port: u16) -> u64 {
    let [a, b, c, d] = address;
    mix(mix(mixed, d, c ^ u32::from(port)), b, a)
}

/// The key of a node address: 4 bytes or 16.
pub(crate) fn encode_node_address(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

pub(crate) fn decode_node_address(key: &[u8]) -> Option<IpAddr> {
    let v4 = || Some(IpAddr::from(<[u8; 4]>::try_from(key).ok()?));
    let v6 = || Some(IpAddr::from(<[u8; 16]>::try_from(key).ok()?));
    v4().or_else(v6)
}

#[cfg(test)]
mod tests;
