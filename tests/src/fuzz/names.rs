//! Fuzzes the parser of DNS answers.

use holdfast_standalone::dns::{Answer, Name, NameRecords, Question, RecordType};

use super::Target;

/// Flags, count and records after the question: an address, an alias by a pointer, and a server whose target is the
/// root.
const CORPUS: [&[u8]; 4] = [
    b"\x81\x80\0\x01\xc0\x0c\0\x01\0\x01\0\0\0\x1e\0\x04\xc0\0\x02\x01",
    b"\x81\x80\0\x02\xc0\x0c\0\x05\0\x01\0\0\0\x1e\0\x02\xc0\x10\xc0\x10\0\x01\0\x01\0\0\0\x1e\0\x04\xc0\0\x02\x01",
    b"\x85\x80\0\x01\xc0\x0c\0\x21\0\x01\0\0\0\x1e\0\x07\0\x0a\0\x05\x1f\x90\0",
    b"\x81\x83\0\0",
];

/// The offsets of flags, count and the end of the question.
const FLAGS: usize = 2;
const COUNT: usize = 6;

/// The answers to one question of each kind.
pub(super) struct Answers {
    name: Name,
}

impl Answers {
    pub(super) fn new() -> Result<Self, String> {
        let name = Name::parse("_web._tcp.example.com").map_err(|error| error.to_string())?;
        Ok(Self { name })
    }

    /// The question's message, with the input in place of flags, count and everything after the question.
    fn message(&self, kind: RecordType, input: &[u8]) -> Vec<u8> {
        let mut message =
            [&[0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x04_web\x04_tcp\x07example\x03com\0"].concat();
        message.extend([0, kind as u8, 0, 1]);
        let (head, rest) = input.split_at(input.len().min(4));
        for (place, byte) in [FLAGS, FLAGS + 1, COUNT, COUNT + 1].into_iter().zip(head) {
            message.get_mut(place).into_iter().for_each(|at| *at = *byte);
        }
        message.extend(rest);
        message
    }
}

/// The count in words, because answers that differ only in numbers count as one.
fn amount(count: usize) -> &'static str {
    match count {
        0 => "none",
        1 => "one",
        _ => "several",
    }
}

impl Target for Answers {
    fn name(&self) -> &'static str {
        "names"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        CORPUS.iter().map(|input| input.to_vec()).collect()
    }

    fn read(&mut self, input: &[u8]) -> Result<String, String> {
        let mut said = String::new();
        for kind in [RecordType::A, RecordType::Aaaa, RecordType::Srv] {
            let question = Question::new(7, &self.name, kind);
            let read = Answer::parse(&question, &self.message(kind, input));
            match read.and_then(|answer| answer.name_records(&question)) {
                Ok(NameRecords { addresses, servers, ttl: seconds }) => {
                    if (addresses.len() + servers.len()) * 11 > input.len() {
                        return Err(format!("more records than {} bytes can have", input.len()));
                    }
                    let has_any = !addresses.is_empty() || !servers.is_empty();
                    if has_any != seconds.is_some() {
                        return Err("records without a time, or a time without records".to_owned());
                    }
                    said += &format!("{kind:?}: {} {}; ", amount(addresses.len()), amount(servers.len()));
                }
                Err(error) => said += &format!("{kind:?}: {error}; "),
            }
        }
        Ok(said)
    }
}
