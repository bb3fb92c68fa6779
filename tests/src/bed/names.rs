//! A DNS server in a bed, which answers by UDP from the zone that a test gives it.
//!
//! Invariant: it answers as a recursive resolver, from one zone that is replaced as a whole. Dropping it closes its
//! port.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Bed, BedError, Location, at};

/// How often the server checks whether to end.
const END_POLL: Duration = Duration::from_millis(20);

const HEADER_BYTES: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_SRV: u16 = 33;

/// A record of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    A(Ipv4Addr),
    /// Priority, weight, port and target; the empty target is the root.
    Srv(u16, u16, u16, String),
}

/// The records of each name, and their TTL in seconds.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    pub seconds: u32,
    pub names: BTreeMap<String, Vec<Entry>>,
}

/// How the server answers.
#[derive(Clone, Debug)]
pub enum DnsBehavior {
    /// From its zone.
    Well(Zone),
    Silent,
    /// With this response code and no record.
    Code(u8),
    /// With bytes that are no DNS message.
    Noise,
}

#[derive(Debug)]
struct Shared {
    mood: Mutex<DnsBehavior>,
    asked: AtomicU64,
    is_over: AtomicBool,
}

/// A server that answers until it is dropped.
#[derive(Debug)]
pub struct NameServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    pub fn start(
        bed: &Bed,
        location: Location<'_>,
        to: SocketAddr,
        mood: DnsBehavior,
    ) -> Result<Self, BedError> {
        let what = || to.to_string();
        let socket = bed.within(location, || UdpSocket::bind(to))?;
        let socket = socket.map_err(at("listen at", Path::new(&what())))?;
        socket.set_read_timeout(Some(END_POLL)).map_err(at("set up", Path::new(&what())))?;
        let (mood, asked, is_over) = (Mutex::new(mood), AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { mood, asked, is_over });
        let serving = Arc::clone(&shared);
        Ok(Self { shared, thread: Some(thread::spawn(move || serving.serve(&socket))) })
    }

    /// Changes how it answers from now on.
    pub fn turn(&self, mood: DnsBehavior) {
        *self.shared.mood() = mood;
    }

    /// The number of questions so far.
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::Relaxed)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn mood(&self) -> MutexGuard<'_, DnsBehavior> {
        self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, socket: &UdpSocket) {
        let mut bytes = [0; 1_500];
        while !self.is_over.load(Ordering::Relaxed) {
            let heard = socket.recv_from(&mut bytes);
            if let Ok((length, from)) = heard {
                self.asked.fetch_add(1, Ordering::Relaxed);
                let question = bytes.get(..length).unwrap_or_default();
                // A client that has gone needs no answer.
                let _: Option<io::Result<usize>> =
                    answer(&self.mood(), question).map(|answer| socket.send_to(&answer, from));
            }
        }
    }
}

/// The encoded answer, if there is one.
fn answer(mood: &DnsBehavior, question: &[u8]) -> Option<Vec<u8>> {
    let (name, kind, end) = asked(question)?;
    let head = question.get(..end)?;
    let (code, entries, seconds) = match mood {
        DnsBehavior::Silent => return None,
        DnsBehavior::Noise => return Some([head, &[0xff; 200]].concat()),
        DnsBehavior::Code(code) => (*code, Vec::new(), 0),
        DnsBehavior::Well(zone) => {
            let entries = zone.names.get(&name);
            let code = if entries.is_some() { 0 } else { 3 };
            (code, entries.cloned().unwrap_or_default(), zone.seconds)
        }
    };
    let bodies: Vec<_> = entries.iter().filter_map(|entry| body(entry, kind)).collect();
    let count = u16::try_from(bodies.len()).ok()?.to_be_bytes();
    // The id and question of the request, with the flags of a recursive resolver.
    let mut answer =
        [head.get(..2)?, &[0x81, 0x80 | code, 0, 1], &count, &[0; 4], head.get(HEADER_BYTES..)?].concat();
    for body in bodies {
        let length = u16::try_from(body.len()).ok()?.to_be_bytes();
        answer.extend(
            [&[0xc0, 12], &kind.to_be_bytes()[..], &[0, 1], &seconds.to_be_bytes(), &length, &body].concat(),
        );
    }
    Some(answer)
}

/// Name and type of a question, and the offset of its end.
fn asked(question: &[u8]) -> Option<(String, u16, usize)> {
    let (mut labels, mut place) = (Vec::new(), HEADER_BYTES);
    loop {
        let length = usize::from(*question.get(place)?);
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(place + 1..place + 1 + length)?).into_owned());
        place += 1 + length;
    }
    let kind = u16::from_be_bytes(*question.get(place + 1..)?.first_chunk()?);
    Some((labels.join("."), kind, place + 5))
}

fn body(entry: &Entry, kind: u16) -> Option<Vec<u8>> {
    match (entry, kind) {
        (Entry::A(address), TYPE_A) => Some(address.octets().to_vec()),
        (Entry::Srv(priority, weight, port, target), TYPE_SRV) => {
            let mut body = [*priority, *weight, *port].map(u16::to_be_bytes).concat();
            for label in target.split('.').filter(|label| !label.is_empty()) {
                body.push(u8::try_from(label.len()).ok()?);
                body.extend(label.bytes());
            }
            body.push(0);
            Some(body)
        }
        _ => None,
    }
}
