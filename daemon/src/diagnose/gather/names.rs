//! Whether a backend answers as a name server, and what the cluster's own name server says of the Service's name.
//!
//! Invariant: the names that are asked for are that of the Service itself and one that every cluster has. Only backends
//! of the Service and of the cluster's DNS are asked, from a socket that no program translates. One datagram goes out
//! for each question; an answer is read up to [`ANSWER_BYTES_MAX`], and believed only if it repeats the question.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use holdfast_core::keys::ObjectName;
use holdfast_judgement::diagnose::material::Named;
use tokio::time::{Instant, timeout_at};

use crate::diagnose::limits::PROBE;
use crate::exempt;

/// The most bytes of an answer that are read: more than a server sends to a resolver that does not ask for more (512,
/// by RFC 1035).
const ANSWER_BYTES_MAX: usize = 1_232;

/// The most addresses of one answer that are read.
const ANSWERS_MAX: usize = 64;

/// The most labels of a name in an answer. A pointer to another name ends a name after two bytes, and is not followed.
const LABELS_MAX: usize = 128;

/// The domain that a cluster has unless its operator chose another one.
const DOMAIN: &str = "svc.cluster.local";

/// A name that every cluster has.
const EVERYWHERE: &str = "kubernetes.default.svc.cluster.local";

const HEADER_LEN: usize = 12;
const IS_ANSWER: u8 = 0x80;
const IS_CUT: u8 = 0x02;
const CODE: u8 = 0x0f;
const CLASS_INTERNET: u16 = 1;
const NAME_ERROR: u8 = 3;

/// The kinds of records that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    A = 1,
    Aaaa = 28,
}

/// The question as bytes.
fn question(id: u16, name: &str, kind: Kind) -> Vec<u8> {
    // Recursion is desired; one question, nothing else.
    let mut bytes = [&id.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap_or_default());
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend((kind as u16).to_be_bytes());
    bytes.extend(CLASS_INTERNET.to_be_bytes());
    bytes
}

/// What an answer says; none: it does not answer this question.
fn read(question: &[u8], answer: &[u8]) -> Option<Named> {
    let [id @ .., flags, more] = answer.first_chunk::<4>()?;
    let asked = question.get(HEADER_LEN..)?;
    let repeats = answer.get(HEADER_LEN..)?.get(..asked.len())?.eq_ignore_ascii_case(asked);
    if question.first_chunk::<2>()? != id || flags & IS_ANSWER == 0 || !repeats {
        return None;
    }
    let count = u16::from_be_bytes(*answer.get(6..)?.first_chunk()?);
    let mut addresses = Vec::new();
    let mut rest = answer.get(HEADER_LEN + asked.len()..)?;
    for _ in 0..usize::from(count).min(ANSWERS_MAX) {
        let Some((address, left)) = record(rest) else { break };
        addresses.extend(address);
        rest = left;
    }
    let code = more & CODE;
    Some(Named::Answer { addresses, is_unknown: code == NAME_ERROR, code, is_cut: flags & IS_CUT != 0 })
}

/// The address in one record, if it is a record of an address, and the bytes after the record.
fn record(bytes: &[u8]) -> Option<(Option<IpAddr>, &[u8])> {
    let rest = after_name(bytes)?;
    let kind = u16::from_be_bytes(*rest.first_chunk()?);
    let length = usize::from(u16::from_be_bytes(*rest.get(8..)?.first_chunk()?));
    let data = rest.get(10..)?.get(..length)?;
    let address = match kind {
        1 => <[u8; 4]>::try_from(data).ok().map(|it| IpAddr::V4(Ipv4Addr::from(it))),
        28 => <[u8; 16]>::try_from(data).ok().map(|it| IpAddr::V6(Ipv6Addr::from(it))),
        _ => None,
    };
    Some((address, rest.get(10 + length..)?))
}

fn after_name(mut bytes: &[u8]) -> Option<&[u8]> {
    for _ in 0..LABELS_MAX {
        match *bytes.first()? {
            0 => return bytes.get(1..),
            pointer if pointer & 0xc0 == 0xc0 => return bytes.get(2..),
            length => bytes = bytes.get(usize::from(length) + 1..)?,
        }
    }
    None
}

/// The number of the next question. It need not be hard to guess: a reply also has to repeat the question, and to come
/// to a port that the kernel chose.
static NEXT: AtomicU16 = AtomicU16::new(0x4846);

async fn ask(to: SocketAddr, name: &str, kind: Kind, until: Instant) -> Named {
    let question = question(NEXT.fetch_add(1, Ordering::Relaxed), name, kind);
    let until = until.min(Instant::now() + PROBE);
    match timeout_at(until, exchanged(to, &question)).await {
        Ok(Ok(named)) => named,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Named::Refused,
        Ok(Err(error)) => Named::Failed(error.to_string()),
        Err(_) => Named::Silent,
    }
}

async fn exchanged(to: SocketAddr, question: &[u8]) -> io::Result<Named> {
    let socket = exempt::datagrams(to).await?;
    socket.send(question).await?;
    let mut answer = [0; ANSWER_BYTES_MAX];
    loop {
        let length = socket.recv(&mut answer).await?;
        if let Some(named) = read(question, answer.get(..length).unwrap_or_default()) {
            return Ok(named);
        }
    }
}

/// Whether there is a name server: it is one if it gives any answer to a name that every cluster has.
pub(super) async fn answers(to: SocketAddr, until: Instant) -> Named {
    ask(to, EVERYWHERE, Kind::A, until).await
}

/// What a name server says of the Service's own name.
pub(super) async fn of_service(to: SocketAddr, name: &ObjectName, is_v6: bool, until: Instant) -> Named {
    let kind = if is_v6 { Kind::Aaaa } else { Kind::A };
    ask(to, &format!("{}.{}.{DOMAIN}", name.name(), name.namespace()), kind, until).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::time::Duration;

    use super::*;

    /// As name servers write it: the question again, a pointer to its name, one address.
    fn answer(question: &[u8], code: u8, address: &[u8]) -> Vec<u8> {
        let mut bytes = question.to_vec();
        (bytes[2], bytes[3], bytes[7]) = (0x81, 0x80 | code, u8::from(!address.is_empty()));
        if !address.is_empty() {
            let kind = if address.len() == 4 { 1 } else { 28 };
            bytes.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 5, 0, u8::try_from(address.len()).unwrap()]);
            bytes.extend(address);
        }
        bytes
    }

    fn asked() -> Vec<u8> {
        question(7, "web.shop.svc.cluster.local", Kind::A)
    }

    #[test]
    fn an_answer_is_read_with_its_addresses() {
        let good = read(&asked(), &answer(&asked(), 0, &[10, 96, 0, 1])).unwrap();
        let addresses = vec![IpAddr::from([10, 96, 0, 1])];
        assert_eq!(good, Named::Answer { addresses, is_unknown: false, code: 0, is_cut: false });
        let unknown = read(&asked(), &answer(&asked(), 3, &[])).unwrap();
        assert!(matches!(unknown, Named::Answer { is_unknown: true, .. }), "{unknown:?}");
    }

    #[test]
    fn what_does_not_repeat_the_question_is_no_answer() {
        let whole = answer(&asked(), 0, &[10, 96, 0, 1]);
        assert_eq!(read(&question(8, "web.shop.svc.cluster.local", Kind::A), &whole), None, "another number");
        assert_eq!(read(&question(7, "db.shop.svc.cluster.local", Kind::A), &whole), None, "another name");
        assert_eq!(read(&asked(), &asked()), None, "a question");
        for length in 0..HEADER_LEN + 4 {
            assert_eq!(read(&asked(), &whole[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_the_reader_panic(
            tail in proptest::collection::vec(any::<u8>(), 0..200),
            count in any::<u8>(),
        ) {
            let mut bytes = answer(&asked(), 0, &[]);
            bytes[7] = count;
            bytes.extend(tail);
            let _ = read(&asked(), &bytes);
        }
    }

    #[tokio::test]
    async fn kernel_who_answers_is_told_from_who_does_not() {
        let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = server.local_addr().unwrap();
        let serving = async {
            let mut bytes = [0; 512];
            let (length, from) = server.recv_from(&mut bytes).await.unwrap();
            server.send_to(b"no answer at all", from).await.unwrap();
            server.send_to(&answer(&bytes[..length], 0, &[10, 96, 0, 1]), from).await.unwrap();
        };
        let name = ObjectName::new("shop", "web").unwrap();
        let until = Instant::now() + Duration::from_secs(2);
        let (found, ()) = tokio::join!(of_service(to, &name, false, until), serving);
        assert!(matches!(found, Named::Answer { code: 0, .. }), "{found:?}");
        drop(server);
        assert_eq!(answers(to, Instant::now() + Duration::from_secs(2)).await, Named::Refused);
    }
}
