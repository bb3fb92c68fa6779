//! Queries name servers over a socket that no program translates.
//!
//! Invariant: an answer counts only from the queried address, to a port that the kernel chose for this query, with its
//! random id. Its size is bounded ([`message::BYTES_MAX`]). The caller sets the timeout. Nothing is cached, and no
//! connection to an apiserver needs DNS.

pub mod message;

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub use holdfast_config::dns_name::{InvalidDnsName, Name};
use holdfast_host::exempt;
pub use message::{Answer, AnswerError, NameRecords, Question, RCODE_NXDOMAIN, RecordType, SrvRecord};

/// The longest datagram to read: more than servers are asked to send.
const DATAGRAM_BYTES_MAX: usize = 4_096;

/// The most unrelated datagrams to skip. More of them are a flood.
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
    /// Creates a question with a random id.
    pub fn with_random_id(name: &Name, kind: RecordType) -> Self {
        // Without randomness the port still protects: the kernel chose it.
        let [high, low, ..] = getrandom::u32().unwrap_or_default().to_be_bytes();
        Self::new(u16::from_be_bytes([high, low]), name, kind)
    }
}

/// Queries over UDP.
pub async fn query_udp(to: SocketAddr, question: &Question) -> Result<Answer, QueryError> {
    let socket = exempt::connect_udp(to).await?;
    socket.send(question.as_bytes()).await?;
    let mut answer = [0; DATAGRAM_BYTES_MAX];
    for _ in 0..STRAYS_MAX {
        let (length, from) = socket.recv_from(&mut answer).await?;
        // Datagrams from before the connect may have any sender.
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

/// Queries over TCP.
pub async fn query_tcp(to: SocketAddr, question: &Question) -> Result<Answer, QueryError> {
    let mut stream = exempt::connect(to).await?;
    // A question has a few hundred bytes.
    let length = u16::try_from(question.as_bytes().len()).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes()[..], question.as_bytes()].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(Answer::parse(question, &answer)?)
}

/// Queries over UDP, again without EDNS if the server rejects it, and over TCP if the answer is truncated.
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
