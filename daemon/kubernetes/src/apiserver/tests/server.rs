//! A small apiserver that replies by script, or misbehaves.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_fixtures::clock::pause_async;
pub(crate) use holdfast_fixtures::{Authority, Leaf};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(super) const OUR_UID: &str = "2f6d6a52-0001";

/// The rest of a reply after this character is sent byte by byte.
pub(crate) const SLOWLY: char = '\u{e000}';

/// The pause between such bytes.
const SLOW: Duration = Duration::from_millis(20);

/// The behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// TLS and replies.
    Serve,
    /// Accepts, then silence.
    SilentTcp,
    /// TLS, then silence.
    SilentHttp,
    /// Closes at once.
    Close,
    /// TLS, reads the request, closes.
    CloseAfterRequest,
    /// Replies to the handshake with plain text.
    PlainText,
}

/// An authority for server certificates, and a folder with its `ca.crt`.
pub(super) fn create_authority() -> (tempfile::TempDir, Authority) {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.write(&folder.path().join("ca.crt"));
    (folder, authority)
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(super) head: String,
}

impl Asked {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

pub(crate) type Script = Arc<dyn Fn(&Asked) -> String + Send + Sync>;

/// A running server; it stops when dropped.
pub(crate) struct Server {
    pub(super) address: SocketAddr,
    pub(super) asked: Arc<Mutex<Vec<Asked>>>,
    manner: Arc<Mutex<Manner>>,
    dials: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// A reply with a length.
pub(super) fn answer(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The reply with the cluster's identity.
pub(super) fn namespace(uid: &str) -> String {
    answer(
        "200 OK",
        &format!(
            r#"{{"kind":"Namespace","apiVersion":"v1","metadata":{{"name":"kube-system","uid":"{uid}"}}}}"#
        ),
    )
}

/// Replies with our cluster's identity, and with `rest` to everything else.
pub(crate) fn ours(rest: impl Fn(&Asked) -> String + Send + Sync + 'static) -> Script {
    Arc::new(move |asked| if asked.path.ends_with("/kube-system") { namespace(OUR_UID) } else { rest(asked) })
}

/// Our cluster, with an empty object as every other reply.
pub(super) fn plain() -> Script {
    ours(|_| answer("200 OK", "{}"))
}

impl Server {
    pub(crate) async fn start(leaf: &Leaf, manner: Manner, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve(listener, leaf, manner, script)
    }

    /// Starts at the address of a server that has just stopped.
    pub(super) async fn start_at(address: SocketAddr, leaf: &Leaf, script: Script) -> Self {
        Self::serve(TcpListener::bind(address).await.unwrap(), leaf, Manner::Serve, script)
    }

    fn serve(listener: TcpListener, leaf: &Leaf, manner: Manner, script: Script) -> Self {
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(config(leaf));
        let (asked, manner) = (Arc::default(), Arc::new(Mutex::new(manner)));
        let mut tasks = JoinSet::new();
        let (record, how) = (Arc::clone(&asked), Arc::clone(&manner));
        let dials = Arc::<AtomicUsize>::default();
        let counter = Arc::clone(&dials);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                let manner = *how.lock().unwrap();
                connections.spawn(meet(
                    stream,
                    manner,
                    acceptor.clone(),
                    Arc::clone(&script),
                    Arc::clone(&record),
                ));
            }
        });
        Self { address, asked, manner, dials, _tasks: tasks }
    }

    pub(super) fn set(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    pub(crate) fn url(&self) -> String {
        format!("\"https://{}\"", self.address)
    }

    /// The count of requests for a path.
    pub(super) fn count(&self, path: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| asked.path == path).count()
    }

    /// The count of accepted connections.
    pub(super) fn dials(&self) -> usize {
        self.dials.load(Ordering::Relaxed)
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.asked.lock().unwrap().iter().map(|asked| asked.path.clone()).collect()
    }
}

fn config(leaf: &Leaf) -> Arc<ServerConfig> {
    use rustls::pki_types::pem::PemObject;
    let chain = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap())
}

async fn meet(
    mut stream: TcpStream,
    manner: Manner,
    tls: TlsAcceptor,
    script: Script,
    asked: Arc<Mutex<Vec<Asked>>>,
) {
    match manner {
        Manner::Close => return,
        Manner::SilentTcp => return std::future::pending().await,
        Manner::PlainText => {
            let _ = stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await;
            return;
        }
        Manner::Serve | Manner::SilentHttp | Manner::CloseAfterRequest => {}
    }
    let Ok(mut stream) = tls.accept(stream).await else { return };
    while let Some(request) = head(&mut stream).await {
        match manner {
            Manner::SilentHttp => return std::future::pending().await,
            Manner::CloseAfterRequest => return,
            _ => {}
        }
        let path = request.split(' ').nth(1).unwrap().to_owned();
        let request = Asked { path, head: request };
        let answer = script(&request);
        asked.lock().unwrap().push(request);
        if say(&mut stream, &answer).await.is_none() {
            return;
        }
    }
}

/// Writes a reply: at once up to [`SLOWLY`], then byte by byte.
async fn say(stream: &mut (impl AsyncWriteExt + Unpin), answer: &str) -> Option<()> {
    let (at_once, slowly) = answer.split_once(SLOWLY).unwrap_or((answer, ""));
    stream.write_all(at_once.as_bytes()).await.ok()?;
    for byte in slowly.bytes() {
        pause_async(SLOW).await;
        stream.write_all(&[byte]).await.ok()?;
    }
    Some(())
}

/// Reads one request's head; `None` at the end.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}
