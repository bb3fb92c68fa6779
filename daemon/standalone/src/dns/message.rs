//! Questions and answers of the DNS as bytes.
//!
//! Invariant: pure. An answer is one only to the question that it repeats, byte by byte, number and letters alike. It
//! is read whole or not at all, and no record of it counts that is not of the name that was asked for, or of what that
//! name is an alias of. The work is bounded by the answer's length, which [`BYTES_MAX`] bounds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use holdfast_config::dns_name::{self as name, Name};

/// The most bytes of an answer: what two bytes of length can say before one that comes by TCP.
pub const BYTES_MAX: usize = u16::MAX as usize;

/// The most bytes that a server is asked to put into a datagram: what no network has to cut (DNS flag day 2020).
pub(super) const DATAGRAM_BYTES: u16 = 1_232;

/// The most aliases on the way to an address; resolvers themselves follow some ten.
const ALIASES_MAX: usize = 8;

const HEADER_BYTES: usize = 12;

/// Where in the header the number of options stands, which is 0 or 1.
const ARCOUNT_LOW: usize = 11;

const FLAG_QR: u8 = 0x80;
const OPCODE_MASK: u8 = 0x78;
const FLAG_AA: u8 = 0x04;
const FLAG_TC: u8 = 0x02;
const FLAG_RA: u8 = 0x80;
const RCODE_MASK: u8 = 0x0f;

/// The codes of a server that cannot read a question, and of one that does not know what it is about.
const RCODE_FORMERR: u8 = 1;
const RCODE_NOTIMP: u8 = 4;

const CLASS_INTERNET: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_OPT: u16 = 41;

/// The kinds of records that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordType {
    A = 1,
    Aaaa = 28,
    Srv = 33,
}

/// A question, with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    name: Name,
    kind: RecordType,
    message: Vec<u8>,
    // Where in the message the question proper ends.
    end: usize,
}

impl Question {
    /// Recursion is desired, and an answer of `DATAGRAM_BYTES` is welcome.
    pub fn new(id: u16, name: &Name, kind: RecordType) -> Self {
        let mut message = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 1]].concat();
        message.extend(name.to_wire());
        message.extend((kind as u16).to_be_bytes());
        message.extend(CLASS_INTERNET.to_be_bytes());
        let end = message.len();
        message.push(0);
        message.extend(TYPE_OPT.to_be_bytes());
        message.extend(DATAGRAM_BYTES.to_be_bytes());
        message.extend([0; 6]);
        Self { name: name.clone(), kind, message, end }
    }

    /// The same as servers knew it before there were options (RFC 1035): then an answer has at most 512 bytes.
    pub(super) fn without_edns(mut self) -> Self {
        self.message.truncate(self.end);
        self.message.get_mut(ARCOUNT_LOW).into_iter().for_each(|count| *count = 0);
        self
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.message
    }

    /// Whether a message answers this question. A server that cannot read it may repeat nothing of it but its number.
    fn is_answered_by(&self, answer: &[u8]) -> bool {
        let part = |message: &[u8], from, to| message.get(from..to).map(<[u8]>::to_vec);
        let is_answer = |flags: &u8| flags & (FLAG_QR | OPCODE_MASK) == FLAG_QR;
        let repeats = part(answer, 4, 6) == Some(vec![0, 1])
            && answer.get(HEADER_BYTES..self.end) == self.message.get(HEADER_BYTES..self.end);
        let cannot_read = answer.get(3).is_some_and(|more| more & RCODE_MASK == RCODE_FORMERR)
            && answer.get(4..).is_some_and(|counts| counts == [0; HEADER_BYTES - 4]);
        part(answer, 0, 2) == part(&self.message, 0, 2)
            && answer.get(2).is_some_and(is_answer)
            && (repeats || cannot_read)
    }
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RecordData {
    Address(IpAddr),
    Cname(Option<Name>),
    Srv(Option<SrvRecord>),
    Other,
}

/// A record of kind SRV.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvRecord {
    /// Only servers of the lowest number are asked.
    pub priority: u16,
    pub target: Name,
    pub port: u16,
    /// The share among those of the same priority.
    pub weight: u16,
}

#[derive(Debug)]
struct Record {
    owner: Option<Name>,
    ttl: u32,
    data: RecordData,
}

impl Record {
    /// Whether it leads to what is no name: without it a part of the answer would count.
    fn lacks_name(&self, kind: RecordType) -> bool {
        matches!((&self.data, kind), (RecordData::Cname(None), _) | (RecordData::Srv(None), RecordType::Srv))
    }
}

/// How a server answered.
#[derive(Debug)]
pub struct Answer {
    /// 0: no error. 3: there is no such name.
    pub rcode: u8,
    /// There is more than fits into a datagram, and none of it was read.
    pub is_truncated: bool,
    // Whether the server speaks for the zone of the name, and whether for all of the DNS.
    is_authoritative: bool,
    is_recursive: bool,
    records: Vec<Record>,
}

/// The code of a name that is not there.
pub const RCODE_NXDOMAIN: u8 = 3;

/// What a name has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameRecords {
    pub addresses: Vec<IpAddr>,
    pub servers: Vec<SrvRecord>,
    /// For how many seconds it may be believed; none: the name has nothing.
    pub ttl: Option<u32>,
}

/// Why a message says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("it does not answer the question")]
    Mismatch,
    #[error("its answer cannot be read")]
    Broken,
    #[error("its answer has more than {ALIASES_MAX} aliases one after the other")]
    Aliases,
    #[error("it answered with {}", code_name(*.0))]
    Code(u8),
    #[error("it refers to other servers: name one that resolves for its clients")]
    Referral,
}

impl Answer {
    /// Reads a message as the answer to a question.
    pub fn parse(question: &Question, message: &[u8]) -> Result<Self, AnswerError> {
        if !question.is_answered_by(message) {
            return Err(AnswerError::Mismatch);
        }
        let [.., flags, more] = *message.first_chunk::<4>().ok_or(AnswerError::Mismatch)?;
        let is_cut = flags & FLAG_TC != 0;
        let count = message.get(6..8).map_or(0, read_u16);
        let mut records = Vec::new();
        let mut at = question.end;
        for _ in 0..if is_cut { 0 } else { count } {
            let (record, end) = parse_record(message, at).ok_or(AnswerError::Broken)?;
            records.push(record);
            at = end;
        }
        let [is_authoritative, may_recurse] = [flags & FLAG_AA != 0, more & FLAG_RA != 0];
        Ok(Self {
            rcode: more & RCODE_MASK,
            is_truncated: is_cut,
            is_authoritative,
            is_recursive: may_recurse,
            records,
        })
    }

    /// Whether the server may be one that does not know options, of which there are few (RFC 6891 7).
    pub(super) fn is_edns_refusal(&self) -> bool {
        matches!(self.rcode, RCODE_FORMERR | RCODE_NOTIMP)
    }

    /// Every address of the answer, whatever name it is of.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.records.iter().filter_map(|record| match record.data {
            RecordData::Address(address) => Some(address),
            _ => None,
        })
    }

    /// What the name that was asked for has; nothing if there is no such name.
    pub fn name_records(&self, question: &Question) -> Result<NameRecords, AnswerError> {
        match self.rcode {
            0 => self.follow_aliases(question),
            RCODE_NXDOMAIN if self.is_authoritative || self.is_recursive => Ok(NameRecords::default()),
            RCODE_NXDOMAIN => Err(AnswerError::Referral),
            code => Err(AnswerError::Code(code)),
        }
    }

    fn follow_aliases(&self, question: &Question) -> Result<NameRecords, AnswerError> {
        let mut found = NameRecords::default();
        let mut owner = question.name.clone();
        let mut least = u32::MAX;
        for _ in 0..=ALIASES_MAX {
            let own = |record: &&Record| record.owner.as_ref() == Some(&owner);
            if self.records.iter().filter(own).any(|record| record.lacks_name(question.kind)) {
                return Err(AnswerError::Broken);
            }
            for record in
                self.records.iter().filter(own).filter(|it| found.add_record(question.kind, &it.data))
            {
                least = least.min(record.ttl);
            }
            let alias = self.records.iter().filter(own).find_map(|record| match &record.data {
                RecordData::Cname(Some(name)) => Some((name.clone(), record.ttl)),
                _ => None,
            });
            // A server of the name's zone does not speak for a name in another one, to which an alias may lead.
            let is_final = self.is_recursive || (self.is_authoritative && owner == question.name);
            match alias {
                Some((name, seconds)) if found.is_empty() => (owner, least) = (name, least.min(seconds)),
                _ if found.is_empty() && !is_final => return Err(AnswerError::Referral),
                _ => {
                    found.ttl = (!found.is_empty()).then_some(least);
                    return Ok(found);
                }
            }
        }
        Err(AnswerError::Aliases)
    }
}

impl NameRecords {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.servers.is_empty()
    }

    /// Takes in what a record says if it is of this kind; says whether it is.
    fn add_record(&mut self, kind: RecordType, said: &RecordData) -> bool {
        match (kind, said) {
            (RecordType::A, RecordData::Address(address @ IpAddr::V4(_)))
            | (RecordType::Aaaa, RecordData::Address(address @ IpAddr::V6(_))) => {
                self.addresses.push(*address)
            }
            (RecordType::Srv, RecordData::Srv(Some(server))) => self.servers.push(server.clone()),
            _ => return false,
        }
        true
    }
}

fn read_u16(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// The record at a place of a message, and where it ends.
fn parse_record(message: &[u8], at: usize) -> Option<(Record, usize)> {
    let owner = name::read_name(message, at)?;
    let fixed = message.get(owner.end..)?.first_chunk::<10>()?;
    let [kind_high, kind_low, class_high, class_low, time @ .., length_high, length_low] = *fixed;
    let begin = owner.end.checked_add(fixed.len())?;
    let end = begin.checked_add(usize::from(u16::from_be_bytes([length_high, length_low])))?;
    let body = message.get(begin..end)?;
    let kind = u16::from_be_bytes([kind_high, kind_low]);
    let is_internet = u16::from_be_bytes([class_high, class_low]) == CLASS_INTERNET;
    let said = if is_internet { parse_rdata(message, kind, (begin, body))? } else { RecordData::Other };
    // A time with the highest bit is none (RFC 2181).
    let seconds = i32::from_be_bytes(time).try_into().unwrap_or_default();
    Some((Record { owner: owner.name, ttl: seconds, data: said }, end))
}

/// What a record of a kind says, by its body and where that begins; none: it cannot be what its kind says.
fn parse_rdata(message: &[u8], kind: u16, (begin, body): (usize, &[u8])) -> Option<RecordData> {
    let end = begin.checked_add(body.len())?;
    let name_at =
        |at: usize| name::read_name(message, at).filter(|read| read.end == end).map(|read| read.name);
    Some(match kind {
        TYPE_CNAME => RecordData::Cname(name_at(begin)?),
        kind if kind == RecordType::A as u16 => {
            RecordData::Address(Ipv4Addr::from(<[u8; 4]>::try_from(body).ok()?).into())
        }
        kind if kind == RecordType::Aaaa as u16 => {
            RecordData::Address(Ipv6Addr::from(<[u8; 16]>::try_from(body).ok()?).into())
        }
        kind if kind == RecordType::Srv as u16 => {
            let [priority, weight, port] = [0, 2, 4].map(|at| read_u16(body.get(at..).unwrap_or_default()));
            let target = name_at(begin.checked_add(6)?)?;
            RecordData::Srv(target.map(|target| SrvRecord { priority, target, port, weight }))
        }
        _ => RecordData::Other,
    })
}

/// What a code is called.
fn code_name(code: u8) -> String {
    let known =
        [(1, "FORMERR"), (2, "SERVFAIL"), (RCODE_NXDOMAIN, "NXDOMAIN"), (4, "NOTIMP"), (5, "REFUSED")];
    let known = known.iter().find(|(number, _)| *number == code);
    known.map_or_else(|| format!("code {code}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
pub(crate) mod tests;
