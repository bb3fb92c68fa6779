//! Selects the client that a full port closes to accept the next.
//!
//! Invariant: the client idle for longest goes first, a client with a request in progress never. Bytes that arrived
//! from a client are read before it is evicted. So idle clients, however many, never lock out one that has a request.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct ClientState {
    /// When the client was last active: a counter that goes up with each arrival and message of any client.
    last_active: AtomicU64,
    /// How many of its requests lack a full response.
    requests: AtomicUsize,
    evict: Notify,
    /// Notified when the client has gone, or has a request after all.
    eviction_decided: Notify,
}

/// All clients of one port.
#[derive(Debug, Default)]
pub struct IdleEvictor {
    clients: Vec<Weak<ClientState>>,
    clock: Arc<AtomicU64>,
}

impl IdleEvictor {
    /// Adds a client, active as of now.
    pub fn add_client(&mut self) -> TrackedClient {
        self.clients.retain(|it| it.strong_count() > 0);
        let voice = Activity { client: Arc::default(), clock: Arc::clone(&self.clock) };
        voice.touch();
        self.clients.push(Arc::downgrade(&voice.client));
        TrackedClient(voice)
    }

    /// Asks the client idle for longest to leave, and waits until it has gone or has a request, which takes a turn of
    /// the runtime. Returns `false` if every client has a request in progress.
    pub async fn evict_idle(&mut self) -> bool {
        let idle = self.clients.iter().filter_map(Weak::upgrade);
        let idle = idle.filter(|it| it.requests.load(Ordering::Relaxed) == 0);
        let Some(next) = idle.min_by_key(|it| it.last_active.load(Ordering::Relaxed)) else { return false };
        next.evict.notify_one();
        next.eviction_decided.notified().await;
        true
    }
}

/// Records when its client sends something.
#[derive(Clone, Debug)]
struct Activity {
    client: Arc<ClientState>,
    clock: Arc<AtomicU64>,
}

impl Activity {
    fn touch(&self) {
        self.client.last_active.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// One client. Drop it after everything else of the client, because that frees its slot.
#[derive(Debug)]
pub struct TrackedClient(Activity);

impl Drop for TrackedClient {
    fn drop(&mut self) {
        self.0.client.eviction_decided.notify_one();
    }
}

impl TrackedClient {
    pub fn begin_request(&self) -> RequestGuard {
        self.0.client.requests.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(&self.0.client))
    }

    /// Wraps the client's stream, so that reads count as activity.
    pub fn track_stream<S>(&self, stream: S) -> TrackedStream<S> {
        TrackedStream { stream, activity: self.0.clone() }
    }

    /// Serves the client's connection until it ends; `None` if the client was evicted first.
    pub async fn serve_until_evicted<T>(&self, connection: impl Future<Output = T>) -> Option<T> {
        let known = &self.0.client;
        let mut connection = pin!(connection);
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return Some(ended),
                () = known.evict.notified() => {}
            }
            // The runtime polls sockets meanwhile, so bytes that have arrived are read now.
            tokio::task::yield_now().await;
            tokio::select! {
                biased;
                ended = connection.as_mut() => return Some(ended),
                () = std::future::ready(()) => {}
            }
            if known.requests.load(Ordering::Relaxed) == 0 {
                return None;
            }
            known.eviction_decided.notify_one();
        }
    }
}

#[derive(Debug)]
pub struct RequestGuard(Arc<ClientState>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's stream, which records the client's activity.
#[derive(Debug)]
pub struct TrackedStream<S> {
    stream: S,
    activity: Activity,
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.touch();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// A client, and the task that serves it. With `asks`, the first byte begins a request that gets no response.
    fn connect(evictor: &mut IdleEvictor, asks: bool) -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (ours, theirs) = duplex(16);
        let client = evictor.add_client();
        let mut stream = client.track_stream(ours);
        let serving = async move {
            let mut asking = None;
            let connection = async {
                while stream.read_u8().await.is_ok() {
                    asking = asks.then(|| client.begin_request());
                }
            };
            let _ = client.serve_until_evicted(connection).await;
        };
        (theirs, tokio::spawn(serving))
    }

    #[tokio::test]
    async fn the_client_idle_for_longest_is_evicted_first() {
        let mut evictor = IdleEvictor::default();
        let mut all: Vec<_> = (0..3).map(|_| connect(&mut evictor, false)).collect();
        tokio::task::yield_now().await;
        all[0].0.write_u8(1).await.unwrap();
        tokio::task::yield_now().await;
        for gone in [1, 2, 0] {
            assert!(evictor.evict_idle().await);
            tokio::task::yield_now().await;
            assert!(all[gone].1.is_finished(), "{gone}");
        }
        assert!(!evictor.evict_idle().await, "no client is left");
    }

    #[tokio::test]
    async fn arrived_bytes_are_read_before_eviction_and_requests_are_never_aborted() {
        let mut evictor = IdleEvictor::default();
        let (mut asks, asking) = connect(&mut evictor, true);
        let (_idle, idles) = connect(&mut evictor, false);
        // No task has run yet, so this byte is not read.
        asks.write_u8(1).await.unwrap();
        assert!(evictor.evict_idle().await);
        tokio::task::yield_now().await;
        assert_eq!((asking.is_finished(), idles.is_finished()), (false, false), "it was read, and stays");
        assert!(evictor.evict_idle().await);
        tokio::task::yield_now().await;
        assert_eq!((asking.is_finished(), idles.is_finished()), (false, true));
        assert!(!evictor.evict_idle().await, "a client with a request is not evicted");
    }
}
