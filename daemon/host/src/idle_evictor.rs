//! Which of the clients at one port makes room for the next.
//!
//! Invariant: the client that has sent nothing for longest goes first, a client with a request under way never, and
//! what has come from a client is read before that client goes. So idle clients, however many, keep out no client that
//! has a request.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// What is known of one client.
#[derive(Debug, Default)]
struct ClientState {
    /// When the client was heard last: a number that goes up with each arrival and each message of any client.
    last_active: AtomicU64,
    /// How many of its requests are not answered in full.
    requests: AtomicUsize,
    evict: Notify,
    /// Notified when the client has gone, or has a request after all.
    eviction_decided: Notify,
}

/// All clients at one port.
#[derive(Debug, Default)]
pub struct IdleEvictor {
    clients: Vec<Weak<ClientState>>,
    clock: Arc<AtomicU64>,
}

impl IdleEvictor {
    /// Adds a client, which counts as heard at this moment.
    pub fn add_client(&mut self) -> TrackedClient {
        self.clients.retain(|it| it.strong_count() > 0);
        let voice = Activity { client: Arc::default(), clock: Arc::clone(&self.clock) };
        voice.touch();
        self.clients.push(Arc::downgrade(&voice.client));
        TrackedClient(voice)
    }

    /// Asks the client that has been silent for longest to go, and waits until it has gone or has a request after all,
    /// which takes a turn of the runtime. `false`: every client has a request under way.
    pub async fn evict_idle(&mut self) -> bool {
        let idle = self.clients.iter().filter_map(Weak::upgrade);
        let idle = idle.filter(|it| it.requests.load(Ordering::Relaxed) == 0);
        let Some(next) = idle.min_by_key(|it| it.last_active.load(Ordering::Relaxed)) else { return false };
        next.evict.notify_one();
        next.eviction_decided.notified().await;
        true
    }
}

/// Notes when its client says something.
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

/// One client. It has to be dropped after everything else of the client, because that frees its place.
#[derive(Debug)]
pub struct TrackedClient(Activity);

impl Drop for TrackedClient {
    fn drop(&mut self) {
        self.0.client.eviction_decided.notify_one();
    }
}

impl TrackedClient {
    /// Begins a request, which lasts until the returned value is dropped.
    pub fn begin_request(&self) -> RequestGuard {
        self.0.client.requests.fetch_add(1, Ordering::Relaxed);
        RequestGuard(Arc::clone(&self.0.client))
    }

    /// Wraps the client's stream, so that it is noted when the client says something.
    pub fn track_stream<S>(&self, stream: S) -> TrackedStream<S> {
        TrackedStream { stream, activity: self.0.clone() }
    }

    /// Serves the client's connection until it ends; none: the client had to go before that.
    pub async fn serve_until_evicted<T>(&self, connection: impl Future<Output = T>) -> Option<T> {
        let known = &self.0.client;
        let mut connection = pin!(connection);
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return Some(ended),
                () = known.evict.notified() => {}
            }
            // The runtime looks at sockets meanwhile, so what has come from the client is read now.
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

/// A request that is under way.
#[derive(Debug)]
pub struct RequestGuard(Arc<ClientState>);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's stream, which notes when the client says something.
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

    /// A client, and the task that serves it; `begin_request`: the first thing that it says is a request that gets no answer.
    fn come(guests: &mut IdleEvictor, asks: bool) -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (ours, theirs) = duplex(16);
        let guest = guests.add_client();
        let mut stream = guest.track_stream(ours);
        let serving = async move {
            let mut asking = None;
            let connection = async {
                while stream.read_u8().await.is_ok() {
                    asking = asks.then(|| guest.begin_request());
                }
            };
            let _ = guest.serve_until_evicted(connection).await;
        };
        (theirs, tokio::spawn(serving))
    }

    #[tokio::test]
    async fn who_has_sent_nothing_for_longest_goes_first() {
        let mut guests = IdleEvictor::default();
        let mut all: Vec<_> = (0..3).map(|_| come(&mut guests, false)).collect();
        tokio::task::yield_now().await;
        all[0].0.write_u8(1).await.unwrap();
        tokio::task::yield_now().await;
        for gone in [1, 2, 0] {
            assert!(guests.evict_idle().await);
            tokio::task::yield_now().await;
            assert!(all[gone].1.is_finished(), "{gone}");
        }
        assert!(!guests.evict_idle().await, "nobody is left");
    }

    #[tokio::test]
    async fn what_has_come_is_read_before_its_client_goes_and_a_request_is_never_broken_off() {
        let mut guests = IdleEvictor::default();
        let (mut asks, asking) = come(&mut guests, true);
        let (_idle, idles) = come(&mut guests, false);
        // No task has run yet, so nothing of this is read.
        asks.write_u8(1).await.unwrap();
        assert!(guests.evict_idle().await);
        tokio::task::yield_now().await;
        assert_eq!((asking.is_finished(), idles.is_finished()), (false, false), "it was read, and stays");
        assert!(guests.evict_idle().await);
        tokio::task::yield_now().await;
        assert_eq!((asking.is_finished(), idles.is_finished()), (false, true));
        assert!(!guests.evict_idle().await, "who asks is not asked to go");
    }
}
