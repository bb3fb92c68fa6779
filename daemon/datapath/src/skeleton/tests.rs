//! The instructions of the compiled objects, which depend on the compiler.

macro_rules! object {
    ($name:literal) => {
        ($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")).as_slice())
    };
}

const OBJECTS: [(&str, &[u8]); 5] =
    [object!("socket"), object!("packet"), object!("xdp"), object!("udp_iter"), object!("tcp_reset")];

type Instruction = [u8; 8];

/// Atomic operations on four and on eight bytes. Their last number says which; 0 is an addition without a result.
const ATOMIC: [u8; 2] = [0xc3, 0xdb];
const ADDITION: [u8; 4] = [0; 4];

/// ELF: where the table of sections is, and in a section its flags and its place.
const TABLE_AT: usize = 40;
const NUMBER_AT: usize = 60;
const SECTION_BYTES: usize = 64;
const FLAGS_AT: usize = 8;
const PLACE_AT: usize = 24;
const LENGTH_AT: usize = 32;
const EXECUTABLE: usize = 4;

fn number(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()).try_into().unwrap()
}

/// The instructions of all programs and functions.
fn instructions(object: &[u8]) -> Vec<Instruction> {
    let table = &object[number(object, TABLE_AT)..];
    let sections = u16::from_le_bytes([object[NUMBER_AT], object[NUMBER_AT + 1]]);
    let sections = table.chunks_exact(SECTION_BYTES).take(sections.into());
    let code = sections.filter(|section| number(section, FLAGS_AT) & EXECUTABLE != 0).flat_map(|section| {
        let at = number(section, PLACE_AT);
        object[at..at + number(section, LENGTH_AT)].chunks_exact(size_of::<Instruction>())
    });
    code.map(|instruction| instruction.try_into().unwrap()).collect()
}

/// Linux 5.10 and 5.11 have no other, and newer compilers choose others by themselves.
#[test]
fn each_atomic_operation_is_an_addition_without_a_result() {
    let mut atomic = 0;
    for (name, object) in OBJECTS {
        let all = instructions(object);
        assert!(all.len() > 30, "{name}: {} instructions", all.len());
        for (at, it) in all.iter().enumerate().filter(|(_, it)| ATOMIC.contains(&it[0])) {
            assert_eq!(it[4..], ADDITION, "{name}: the operation of instruction {at}");
            atomic += 1;
        }
    }
    assert!(atomic > 0, "programs count");
}
