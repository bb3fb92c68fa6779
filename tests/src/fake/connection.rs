//! One connection: TLS, then one request after another, each with its fault or none.
//!
//! Invariant: an error closes only this connection.

use std::io;
use std::sync::Arc;

use holdfast_fixtures::clock::{self, pause_async};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::fault::{Fault, Greeting, Verb};
use super::journal::Request;
use super::request::Head;
use super::server::State;
use super::watch::Manner;
use super::writer::{Encoding, Writer};
use super::{Kind, events, list, watch};

/// Serves a connection until either side ends it.
pub(super) async fn serve(mut stream: TcpStream, number: u64, state: Arc<State>) -> io::Result<()> {
    match state.greeting() {
        Greeting::Close => return Ok(()),
        Greeting::Silent => return never_answer(&mut stream).await,
        Greeting::ClearText => return stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n").await,
        Greeting::Serve => {}
    }
    let tls = TlsAcceptor::from(state.tls()).accept(stream).await?;
    let shown = tls.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certificate = shown.map(|certificate| certificate.as_ref().to_vec());
    let (mut reader, writer) = split(tls);
    let mut writer = Writer::new(writer);
    while let Some(head) = Head::read(&mut reader).await? {
        let request = Request {
            at: clock::now(),
            connection: number,
            verb: head.verb,
            kind: head.kind,
            target: head.target.clone(),
            headers: head.headers.clone(),
            certificate: certificate.clone(),
        };
        state.journal.note(&request);
        let Some(encoding) = head.encoding(state.speaks_protobuf()) else {
            writer.encoding = Encoding::Json;
            writer.status(406, "NotAcceptable", None).await?;
            continue;
        };
        writer.encoding = encoding;
        answer(&state, number, &request, &head, &mut reader, &mut writer).await?;
    }
    Ok(())
}

async fn answer(
    state: &Arc<State>,
    number: u64,
    request: &Request,
    head: &Head,
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut Writer<impl AsyncWrite + Unpin>,
) -> io::Result<()> {
    let mut manner = Manner::default();
    match state.script.take(head.verb, head.kind) {
        Some(Fault::Status { code, reason, retry_after }) => {
            return writer.status(code, reason, retry_after).await;
        }
        Some(Fault::Raw(bytes)) => {
            writer.raw(bytes.as_bytes()).await?;
            writer.close().await?;
            return Err(closed());
        }
        Some(Fault::Silent) => return never_answer(reader).await,
        Some(Fault::SilentBody) => {
            writer.begin().await?;
            return never_answer(reader).await;
        }
        Some(Fault::Reset) => {
            state.reset(number);
            return Err(closed());
        }
        Some(Fault::Close) => return Err(closed()),
        Some(Fault::Event(line)) => {
            writer.begin().await?;
            writer.line(&line).await?;
            return writer.end().await;
        }
        Some(Fault::SayProtobuf(body)) => return say(writer, Encoding::Protobuf, &body).await,
        Some(Fault::Say(body)) => return say(writer, Encoding::Json, body.as_bytes()).await,
        Some(Fault::Endless(piece)) => return say_for_ever(writer, piece.as_bytes()).await,
        Some(Fault::Slow(time)) => pause_async(time).await,
        Some(Fault::CutAfter(bytes)) => writer.cut_after(bytes),
        Some(Fault::Twice) => manner.twice = true,
        Some(Fault::Trickle(pause)) => manner.pause = pause,
        None => {}
    }
    if !state.lets_in(request) {
        return writer.status(401, "Unauthorized", None).await;
    }
    match head.verb {
        _ if head.kind == Kind::Unknown => writer.status(404, "NotFound", None).await,
        Verb::Get => list::get(&state.cluster, head, writer).await,
        Verb::List | Verb::Audit => list::list(&state.cluster, head, writer).await,
        Verb::Watch => watch::watch(state, head, manner, reader, writer).await,
        Verb::Create => events::create(&state.cluster, head, writer).await,
        Verb::Patch => events::patch(&state.cluster, head, writer).await,
    }
}

async fn say(
    writer: &mut Writer<impl AsyncWrite + Unpin>,
    encoding: Encoding,
    body: &[u8],
) -> io::Result<()> {
    writer.encoding = encoding;
    writer.begin().await?;
    writer.chunk(body).await?;
    writer.end().await
}

/// Writes the bytes again and again until the client gives up.
async fn say_for_ever(writer: &mut Writer<impl AsyncWrite + Unpin>, piece: &[u8]) -> io::Result<()> {
    writer.encoding = Encoding::Json;
    writer.begin().await?;
    loop {
        writer.chunk(piece).await?;
    }
}

/// Reads and ignores the client's bytes until it gives up.
async fn never_answer(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut ignored = [0; 1024];
    while reader.read(&mut ignored).await? > 0 {}
    Err(closed())
}

fn closed() -> io::Error {
    io::Error::other("closed as the test asked for")
}
