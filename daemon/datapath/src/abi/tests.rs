//! The bytes are as in `bpf/include/abi.h`, and decoding inverts encoding.

use proptest::prelude::*;

use super::*;

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key(address: &str, transport: Transport) -> FrontendKey {
    let address: SocketAddr = address.parse().unwrap();
    FrontendKey { address: address.ip(), port: NonZeroU16::new(address.port()).unwrap(), transport }
}

#[track_caller]
fn check_frontend(address: &str, transport: Transport, value: FrontendValue, key_hex: &str, value_hex: &str) {
    let frontend = FrontendBytes::new(&key(address, transport));
    assert_eq!(hex(frontend.key()), key_hex, "{address}");
    assert_eq!(hex(&frontend.value_bytes(value)), value_hex, "{address}");
}

#[test]
fn a_frontends_value_repeats_the_key_before_the_target() {
    let value =
        FrontendValue { port: PortIndex(0x0102_0304), kind: FrontendType::NodePort, quota: QuotaId(0x0506) };
    check_frontend(
        "10.96.0.1:80",
        Transport::Tcp,
        value,
        "0a60000100500600",
        "0a600001005006000403020103000605",
    );
    check_frontend(
        "[fd00::1]:53",
        Transport::Udp,
        value,
        "fd00000000000000000000000000000100351100",
        "fd00000000000000000000000000000100351100000000000403020103000605",
    );
}

#[test]
fn a_node_port_key_equals_no_address_key() {
    let value = FrontendValue { port: PortIndex(7), kind: FrontendType::NodePort, quota: QuotaId::default() };
    let target = "0700000003000000";
    check_frontend(
        "0.0.0.0:80",
        Transport::Tcp,
        value,
        "0000000000500601",
        &format!("0000000000500601{target}"),
    );
    let key = "0000000000000000000000000000000000351101";
    check_frontend("[::]:53", Transport::Udp, value, key, &format!("{key}00000000{target}"));
    let strange = types::frontend4_key {
        any: 1,
        ..types::frontend4_key { address: 5, port: 5, transport: Transport::Tcp.protocol_number(), any: 0 }
    };
    let found = types::frontend4_value::default();
    assert_eq!(
        decode_frontend(Family::V4, as_bytes(&strange), as_bytes(&found)),
        None,
        "an address with the wildcard flag"
    );
}

#[test]
fn a_slot_is_address_port_and_state() {
    let slot = |address: &str, state| {
        let address: SocketAddr = address.parse().unwrap();
        Slot { address: address.ip(), port: NonZeroU16::new(address.port()).unwrap(), state }
    };
    let words_hex = |family, slot: &Slot| {
        let words = encode_slot(family, slot).unwrap();
        hex(&words.into_iter().take(slot_words(family)).flat_map(u64::to_ne_bytes).collect::<Vec<_>>())
    };
    let v4 = slot("192.0.2.1:8080", SlotState::Active);
    assert_eq!(words_hex(Family::V4, &v4), "c00002011f900100");
    let v6 = slot("[2001:db8::2]:443", SlotState::Draining);
    assert_eq!(words_hex(Family::V6, &v6), "20010db800000000000000000000000201bb020000000000");
    assert_eq!(encode_slot(Family::V6, &v4), None, "a slot of the other family");
    assert_eq!(decode_slot(Family::V4, [0].into_iter()), None, "an empty slot is no backend");
}

#[test]
fn a_word_is_base_then_count_then_flags() {
    let word =
        Word { base: 0x0102_0304, count: 0xf_0001, flags: WordFlags::DROP.with(WordFlags::MEMBERS, true) };
    assert_eq!(encode_word(word), 0x011f_0001_0102_0304);
    assert_eq!(encode_word(Word::EMPTY), 0, "an unwritten word refuses");
    let longest = Word { base: u32::MAX, count: u32::MAX, ..Word::EMPTY };
    assert_eq!(decode_word(encode_word(longest)).flags, Word::EMPTY.flags, "no count overlaps the flags");
    let strange = WordFlags::UNKNOWN;
    let foreign = decode_word(0xe00_u64 << FLAGS_SHIFT);
    assert_eq!(foreign, Word { flags: strange, ..Word::EMPTY }, "unknown flags");
    assert_eq!(encode_word(foreign), 0, "are never written");
}

#[test]
fn a_member_is_in_mapped_form() {
    let member = MemberKey {
        port: PortIndex(7),
        membership: Membership::List(Scope::Local),
        backend: "192.0.2.1:80".parse().unwrap(),
    };
    assert_eq!(
        hex(as_bytes(&encode_member(&member))),
        "070000000100000000000000000000000000ffffc00002010050000000000000"
    );
}

#[test]
fn facts_are_seconds_and_bits() {
    let facts = PortFacts { affinity_timeout: 10_800, ignored_bits: 64 };
    assert_eq!(hex(&encode_facts(facts).to_ne_bytes()), "302a000040000000");
    assert_eq!(decode_facts(encode_facts(facts)), facts);
    assert_ne!(decode_facts(1 << 40), PortFacts::default(), "facts that no rule writes");
}

proptest! {
    #[test]
    fn frontends_come_back(
        address: IpAddr, port in 1_u16.., udp: bool, index: u32, kind in 0_usize..5, share: u16,
    ) {
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        let key = FrontendKey { address, port: NonZeroU16::new(port).unwrap(), transport };
        let value = FrontendValue { port: PortIndex(index), kind: KINDS[kind].0, quota: QuotaId(share) };
        let frontend = FrontendBytes::new(&key);
        let back = decode_frontend(Family::from_address(address), frontend.key(), &frontend.value_bytes(value));
        prop_assert_eq!(back, Some((key, value)));
    }

    #[test]
    fn words_come_back(base: u32, count in 0_u32..1 << 20, set: [bool; 6]) {
        let flags = FLAGS.iter().zip(set).fold(WordFlags::default(), |all, ((flag, _), on)| all.with(*flag, on));
        let word = Word { base, count, flags };
        prop_assert_eq!(decode_word(encode_word(word)), word);
        for ((flag, bit), on) in FLAGS.iter().zip(set) {
            prop_assert_eq!(flags.contains(*flag), on);
            prop_assert_eq!(encode_word(word) >> FLAGS_SHIFT & u64::from(bit.0) != 0, on);
        }
    }

    #[test]
    fn slots_and_members_come_back_in_canonical_form(
        address: IpAddr, port in 1_u16.., draining: bool, index: u32, kind in 0_usize..3,
    ) {
        let state = if draining { SlotState::Draining } else { SlotState::Active };
        let address = address.to_canonical();
        let slot = Slot { address, port: NonZeroU16::new(port).unwrap(), state };
        let words = encode_slot(Family::from_address(address), &slot).unwrap();
        prop_assert_eq!(decode_slot(Family::from_address(address), words.into_iter()), Some(slot));
        let member = MemberKey { port: PortIndex(index), membership: Membership::ALL[kind], backend: slot.backend() };
        let found = decode_member(as_bytes(&encode_member(&member)), &state_number(state).to_ne_bytes());
        prop_assert_eq!(found, Some((member, state)));
    }
}
