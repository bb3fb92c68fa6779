//! How name servers are asked: one question, one answer, over a socket that no program translates.
//!
//! Invariant: an answer is taken only from the address that was asked, to a port that the kernel chose for this
//! question alone, with a number that cannot be guessed. What is read of it has a bound ([`message::BYTES_MAX`]). How
//! long to wait is the caller's to say. Nothing is kept here, and nothing on the way to an apiserver asks.

pub mod message;

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub use holdfast_config::dns_name::{Name, NoName};
use holdfast_host::exempt;
pub use message::{Answer, Found, Kind, NO_SUCH_NAME, Question, Server, Unread};

/// The longest datagram that is read: longer than what servers are asked to send.
const DATAGRAM_BYTES_MAX: usize = 4_096;

/// The most datagrams that are passed over because they answer something else. More of them are a flood.
const STRAYS_MAX: usize = 100;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Unread(#[from] Unread),
}

impl Question {
    /// A question with a number that cannot be guessed.
    pub fn unguessable(name: &Name, kind: Kind) -> Self {
        // Without randomness there is still the port, which is the kernel's choice.
        let [high, low, ..] = getrandom::u32().unwrap_or_default().to_be_bytes();
        Self::new(u16::from_be_bytes([high, low]), name, kind)
    }
}

/// Asks by one datagram.
pub async fn by_datagram(to: SocketAddr, question: &Question) -> Result<Answer, Failed> {
    let socket = exempt::datagrams(to).await?;
    socket.send(question.bytes()).await?;
    let mut answer = [0; DATAGRAM_BYTES_MAX];
    for _ in 0..STRAYS_MAX {
        let (length, from) = socket.recv_from(&mut answer).await?;
        // What came before the socket was connected may be of any sender.
        if (from.ip(), from.port()) != (to.ip(), to.port()) {
            continue;
        }
        match Answer::read(question, answer.get(..length).unwrap_or_default()) {
            Err(Unread::OfAnother) => {}
            read => return Ok(read?),
        }
    }
    Err(Unread::OfAnother.into())
}

/// Asks by a connection.
pub async fn by_connection(to: SocketAddr, question: &Question) -> Result<Answer, Failed> {
    let mut stream = exempt::connect(to).await?;
    // A question is a few hundred bytes.
    let length = u16::try_from(question.bytes().len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes()[..], question.bytes()].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(Answer::read(question, &answer)?)
}

/// Asks by a datagram, without options if the server does not seem to know any, and by a connection if the answer does
/// not fit into a datagram.
pub async fn ask(to: SocketAddr, name: &Name, kind: Kind) -> Result<Found, Failed> {
    let mut question = Question::unguessable(name, kind);
    let mut answer = by_datagram(to, &question).await?;
    if answer.may_be_for_options() {
        question = Question::unguessable(name, kind).without_options();
        answer = by_datagram(to, &question).await?;
    }
    if answer.is_cut {
        answer = by_connection(to, &question).await?;
    }
    if answer.is_cut {
        return Err(Unread::Broken.into());
    }
    Ok(answer.found(&question)?)
}
