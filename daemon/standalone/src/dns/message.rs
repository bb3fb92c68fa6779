//! Encodes DNS questions and decodes answers.
//!
//! Invariant: pure. An answer must repeat its question byte by byte, id and case included. It is read whole or not at
//! all. Only records of the queried name or of its alias targets count. The work is bounded by the answer's length, at
//! most [`BYTES_MAX`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use holdfast_config::dns_name::{self as name, Name};

/// The most bytes of an answer: the limit of TCP's two-byte length.
pub const BYTES_MAX: usize = u16::MAX as usize;

/// The most bytes that a server may send in a datagram: no network fragments that (DNS flag day 2020).
pub(super) const DATAGRAM_BYTES: u16 = 1_232;

/// The most aliases to follow; resolvers themselves follow about ten.
const ALIASES_MAX: usize = 8;

const HEADER_BYTES: usize = 12;

/// The header's byte with the count of additional records, which is 0 or 1.
const ARCOUNT_LOW: usize = 11;

const FLAG_QR: u8 = 0x80;
const OPCODE_MASK: u8 = 0x78;
const FLAG_AA: u8 = 0x04;
const FLAG_TC: u8 = 0x02;
const FLAG_RA: u8 = 0x80;
const RCODE_MASK: u8 = 0x0f;

/// The codes of a server that cannot parse a question, and of one that does not implement it.
const RCODE_FORMERR: u8 = 1;
const RCODE_NOTIMP: u8 = 4;

const CLASS_INTERNET: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_OPT: u16 = 41;

/// The record types to query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordType {
    A = 1,
    Aaaa = 28,
    Srv = 33,
}

/// A question with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    name: Name,
    kind: RecordType,
    message: Vec<u8>,
    // Where the question section ends.
    end: usize,
}

impl Question {
    /// Requests recursion, and announces `DATAGRAM_BYTES` by EDNS.
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

    /// The question without EDNS (RFC 1035): an answer then has at most 512 bytes.
    pub(super) fn without_edns(mut self) -> Self {
        self.message.truncate(self.end);
        self.message.get_mut(ARCOUNT_LOW).into_iter().for_each(|count| *count = 0);
        self
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.message
    }

    /// Whether a message answers this question. A server that cannot parse it may repeat only its id.
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

/// A record's data.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RecordData {
    Address(IpAddr),
    Cname(Option<Name>),
    Srv(Option<SrvRecord>),
    Other,
}

/// An SRV record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvRecord {
    /// Only servers of the lowest priority are used.
    pub priority: u16,
    pub target: Name,
    pub port: u16,
    /// The weight among servers of the same priority.
    pub weight: u16,
}

#[derive(Debug)]
struct Record {
    owner: Option<Name>,
    ttl: u32,
    data: RecordData,
}

impl Record {
    /// Whether its target is no valid name: without the record, only part of the answer would count.
    fn lacks_name(&self, kind: RecordType) -> bool {
        matches!((&self.data, kind), (RecordData::Cname(None), _) | (RecordData::Srv(None), RecordType::Srv))
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// 0: no error; 3: no such name.
    pub rcode: u8,
    /// The answer did not fit into a datagram, and no record was read.
    pub is_truncated: bool,
    // Whether the server is authoritative for the name's zone.
    is_authoritative: bool,
    is_recursive: bool,
    records: Vec<Record>,
}

/// The code of a missing name.
pub const RCODE_NXDOMAIN: u8 = 3;

/// The records of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameRecords {
    pub addresses: Vec<IpAddr>,
    pub servers: Vec<SrvRecord>,
    /// The least TTL in seconds; `None`: the name has no records.
    pub ttl: Option<u32>,
}

/// Why a message is no usable answer.
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
    /// Parses a message as the answer to a question.
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

    /// Whether the server may lack EDNS, which is rare (RFC 6891 7).
    pub(super) fn is_edns_refusal(&self) -> bool {
        matches!(self.rcode, RCODE_FORMERR | RCODE_NOTIMP)
    }

    /// Every address of the answer, of any name.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.records.iter().filter_map(|record| match record.data {
            RecordData::Address(address) => Some(address),
            _ => None,
        })
    }

    /// The records of the queried name; empty if it does not exist.
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
            // A zone's server is not authoritative for a name elsewhere, which an alias may lead to.
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

    /// Adds a record of this type; returns whether it is of the type.
    fn add_record(&mut self, kind: RecordType, data: &RecordData) -> bool {
        match (kind, data) {
            (RecordType::A, RecordData::Address(address @ IpAddr::V4(_)))
            | (RecordType::Aaaa, RecordData::Address(address @ IpAddr::V6(_))) => {
                self.addresses.push(*address);
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

/// Parses the record at an offset; also returns its end.
fn parse_record(message: &[u8], at: usize) -> Option<(Record, usize)> {
    let owner = name::read_name(message, at)?;
    let fixed = message.get(owner.end..)?.first_chunk::<10>()?;
    let [kind_high, kind_low, class_high, class_low, time @ .., length_high, length_low] = *fixed;
    let begin = owner.end.checked_add(fixed.len())?;
    let end = begin.checked_add(usize::from(u16::from_be_bytes([length_high, length_low])))?;
    let body = message.get(begin..end)?;
    let kind = u16::from_be_bytes([kind_high, kind_low]);
    let is_internet = u16::from_be_bytes([class_high, class_low]) == CLASS_INTERNET;
    let data = if is_internet { parse_rdata(message, kind, (begin, body))? } else { RecordData::Other };
    // A TTL with the highest bit set counts as zero (RFC 2181).
    let seconds = i32::from_be_bytes(time).try_into().unwrap_or_default();
    Some((Record { owner: owner.name, ttl: seconds, data }, end))
}

/// Parses a record's data by type; `None`: it is malformed.
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

/// The name of a code.
fn code_name(code: u8) -> String {
    let known =
        [(1, "FORMERR"), (2, "SERVFAIL"), (RCODE_NXDOMAIN, "NXDOMAIN"), (4, "NOTIMP"), (5, "REFUSED")];
    let known = known.iter().find(|(number, _)| *number == code);
    known.map_or_else(|| format!("code {code}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
pub(crate) mod tests;
