//! The bytes of keys are as in `bpf/include/abi.h`, and decoding inverts encoding.

use proptest::prelude::*;

use super::*;
use crate::abi::tests::hex;

#[test]
fn a_source_key_is_the_port_then_the_address() {
    let key = |range| SourceKey { port: PortIndex(7), range: SourceRange::parse(range).unwrap() };
    assert_eq!(hex(&encode_key(&key("192.0.2.0/24"))), "3800000007000000c0000200");
    assert_eq!(hex(&encode_key(&key("2001:db8::/32"))), "400000000700000020010db8000000000000000000000000");
    let strange = as_bytes(&types::source4_key { prefix: 65, port_index: 7, address: 0 }).to_vec();
    assert_eq!(decode_key(Family::V4, &strange), None, "more bits than an address has");
}

proptest! {
    #[test]
    fn source_keys_are_decoded_back(address: IpAddr, index: u32, bits: u8) {
        if let Some(range) = SourceRange::new(address, bits) {
            let key = SourceKey { port: PortIndex(index), range };
            prop_assert_eq!(decode_key(Family::from_address(address), &encode_key(&key)), Some(key));
        }
    }
}
