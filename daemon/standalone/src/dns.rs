//! How name servers are asked: one question, one answer, over a socket that no program translates.
//!
//! Invariant: an answer is taken only from the address that was asked, to a port that the kernel chose for this
//! question alone, with a number that cannot be guessed. What is read of it has a bound ([`refusal_message::BYTES_MAX`]). How
//! long to wait is the caller's to say. Nothing is kept here, and nothing on the way to an apiserver asks.

pub mod message;

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub use holdfast_config::dns_name::{InvalidDnsName, Name};
use holdfast_host::exempt;
pub use message::{Answer, AnswerError, NameRecords, Question, RCODE_NXDOMAIN, RecordType, SrvRecord};

/// The longest datagram that is read: longer than what servers are asked to send.
const DATAGRAM_BYTES_MAX: usize = 4_096;

/// The most datagrams that are passed over because they answer something else. More of them are a flood.
const STRAYS_MAX: usize = 100;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl Question {
    /// A question with a number that cannot be guessed.
    pub fn with_random_id(name: &Name, kind: RecordType) -> Self {
        // Without randomness there is still the port, which is the kernel's choice.
        let [high, low, ..] = getrandom::u32().unwrap_or_default().to_be_bytes();
        Self::new(u16::from_be_bytes([high, low]), name, kind)
    }
}

/// Asks by one datagram.
pub async fn query_udp(to: SocketAddr, question: &Question) -> Result<Answer, QueryError> {
    let socket = exempt::connect_udp(to).await?;
    socket.send(question.as_bytes()).await?;
    let mut answer = [0; DATAGRAM_BYTES_MAX];
    for _ in 0..STRAYS_MAX {
        let (length, from) = socket.recv_from(&mut answer).await?;
        // What came before the socket was connected may be of any sender.
        if (from.ip(), from.port()) != (to.ip(), to.port()) {
            continue;
        }
        match Answer::parse(question, answer.get(..length).unwrap_or_default()) {
            Err(AnswerError::Mismatch) => {}
            read => return Ok(read?),
        }
    }
    Err(AnswerError::Mismatch.into())
}

/// Asks by a connection.
pub async fn query_tcp(to: SocketAddr, question: &Question) -> Result<Answer, QueryError> {
    let mut stream = exempt::connect(to).await?;
    // A question is a few hundred bytes.
    let length = u16::try_from(question.as_bytes().len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes()[..], question.as_bytes()].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(Answer::parse(question, &answer)?)
}

/// Asks by a datagram, without options if the server does not seem to know any, and by a connection if the answer does
/// not fit into a datagram.
pub async fn query_server(to: SocketAddr, name: &Name, kind: RecordType) -> Result<NameRecords, QueryError> {
    let mut question = Question::with_random_id(name, kind);
    let mut answer = query_udp(to, &question).await?;
    if answer.is_edns_refusal() {
        question = Question::with_random_id(name, kind).without_edns();
        answer = query_udp(to, &question).await?;
    }
    if answer.is_truncated {
        answer = query_tcp(to, &question).await?;
    }
    if answer.is_truncated {
        return Err(AnswerError::Broken.into());
    }
    Ok(answer.name_records(&question)?)
}
