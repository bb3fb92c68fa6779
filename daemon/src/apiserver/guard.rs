//! The endpoint that others on this node are led to at the apiserver's virtual address.
//!
//! A connection to it is held open, on which the kernel notices a dead host within seconds and at no cost for the
//! server; a server that goes says so on it at once. The endpoints are the daemon's own, in the operator's order; what
//! the guard thinks of each is its own matter, because it is less patient than the daemon, for which a slow apiserver
//! is better than none.
//!
//! Invariant: an address is named only after its server has shown, over a connection of this process, the certificate
//! of an apiserver, our cluster, and that it is ready, or did so before a restart. What is named stays until another
//! server has shown the same: the virtual address leads somewhere as long as it is configured.

mod doubts;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use holdfast_judgement::views::apiserver::Tier;
use tokio::time::{sleep, timeout};

use super::http::{Ask, Connection};
use super::lease::Target;
use super::limits::{
    ASK_GUARDED, DIAL, GUARD_AGAIN, GUARD_DIAL, GUARDED_ANSWER, SHORT_BODY, SHORT_BODY_BYTES_MAX, SHORT_POST,
};
use super::trouble::Trouble;
use super::walk::{self, Opened};
use super::{Inner, JSON};
use crate::beat;
use crate::logging::messages::{self, say};
use doubts::Doubts;

/// What is asked over the connection, so that a server that hangs is noticed, and keeps the connection open.
const READY: Ask<'static> = Ask { accept: JSON, path_and_query: "/readyz", write: None };

/// Guards for as long as it is polled.
pub(super) async fn run(inner: &Inner) {
    loop {
        match inner.asked().vip {
            Some(vip) => Guard { inner, vip, doubts: Doubts::default(), short_posts: 0 }.stand().await,
            None => {
                inner.lead_to(None);
                beat::next().await;
            }
        }
    }
}

/// Whether an endpoint can be led to: no client is sent from one family to the other.
pub(super) fn suits(vip: SocketAddr, endpoint: SocketAddr) -> bool {
    vip.is_ipv4() == endpoint.is_ipv4()
}

/// The guard of one virtual address.
struct Guard<'a> {
    inner: &'a Inner,
    vip: SocketAddr,
    doubts: Doubts,
    // Connections in a row that a server closed soon after it had shown itself.
    short_posts: u32,
}

/// The connection to the endpoint that others are led to.
struct Post {
    connection: Connection,
    target: Target,
    since: Instant,
    ask_at: Instant,
}

impl Guard<'_> {
    /// Until another address is to be guarded, or none.
    async fn stand(&mut self) {
        if self.inner.led.borrow().is_some_and(|led| !suits(self.vip, led)) {
            self.inner.lead_to(None);
        }
        // Before the first reading there is nothing to show to any endpoint.
        self.inner.refresh().await;
        while self.inner.asked().vip == Some(self.vip) {
            let mut post = self.take_post().await;
            if post.is_none() {
                sleep(GUARD_AGAIN).await;
            }
            while let Some(held) = post {
                post = if self.inner.asked().vip == Some(self.vip) { self.hold(held).await } else { None };
            }
        }
    }

    /// The endpoints that can be led to, in the operator's order.
    fn candidates(&self) -> Vec<Target> {
        let rows: Vec<_> = self.inner.endpoints.lock().rows().iter().map(|row| row.id).collect();
        let targets = rows.into_iter().filter_map(|id| self.inner.endpoints.target(id));
        targets.filter(|target| suits(self.vip, target.address)).collect()
    }

    fn may_be_tried(&self, target: &Target) -> bool {
        self.doubts.may_be_tried(target.address, Instant::now())
    }

    /// A connection to the first endpoint that shows itself.
    async fn take_post(&mut self) -> Option<Post> {
        let mut all = self.candidates();
        self.doubts.keep(|address| all.iter().any(|target| target.address == address));
        all.retain(|target| self.may_be_tried(target));
        let last = all.len().saturating_sub(1);
        for (at, target) in all.into_iter().enumerate() {
            // There is time for the last one: no other waits to be tried.
            let limit = if at == last { DIAL } else { GUARD_DIAL };
            let post = self.shown(target, limit).await;
            if post.is_some() {
                return post;
            }
        }
        None
    }

    /// Leads others to an endpoint that shows itself in time.
    async fn shown(&mut self, target: Target, limit: Duration) -> Option<Post> {
        match timeout(limit, show(self.inner, &target)).await.unwrap_or(Err(Trouble::Silent)) {
            Ok(connection) => {
                target.served();
                self.doubts.clear(target.address);
                self.inner.lead_to(Some(target.address));
                let now = Instant::now();
                Some(Post { connection, target, since: now, ask_at: now + spread(self.inner, ASK_GUARDED) })
            }
            Err(trouble) => {
                self.doubt(&target, trouble);
                None
            }
        }
    }

    /// What is wrong with our own files says nothing about the endpoint, and nothing was dialled.
    fn doubt(&mut self, target: &Target, trouble: Trouble) {
        let is_ours = matches!(trouble, Trouble::Credentials(_));
        target.noted(trouble);
        if is_ours {
            return;
        }
        let Self { inner, doubts, .. } = self;
        doubts.add(target.address, Instant::now(), |pause| spread(inner, pause));
    }

    /// Holds the post for a beat at most; `None`: it is lost.
    async fn hold(&mut self, mut post: Post) -> Option<Post> {
        tokio::select! {
            ended = post.connection.ended() => {
                match ended {
                    None | Some(Trouble::Closed) => self.pace(&post).await,
                    Some(trouble) => self.doubt(&post.target, trouble),
                }
                return None;
            }
            () = beat::next() => {}
        }
        let all = self.candidates();
        let at = all.iter().position(|target| target.id == post.target.id)?;
        let better = all.into_iter().take(at).find(|target| self.may_be_tried(target));
        if let Some(better) = better
            && let Some(other) = self.shown(better, GUARD_DIAL).await
        {
            return Some(other);
        }
        if Instant::now() < post.ask_at { Some(post) } else { self.asked(post).await }
    }

    /// Servers close connections that are idle, and proxies before them may do so after each answer: that is no
    /// failure, and the next connection is made after a pause that grows. A server that is gone refuses that one.
    async fn pace(&mut self, post: &Post) {
        if post.since.elapsed() >= SHORT_POST {
            self.short_posts = 0;
            return;
        }
        sleep(spread(self.inner, doubts::pause(self.short_posts))).await;
        self.short_posts = self.short_posts.saturating_add(1);
    }

    /// Asks the server once more whether it is ready.
    async fn asked(&mut self, post: Post) -> Option<Post> {
        let Post { connection, target, since, .. } = post;
        let asked = timeout(GUARDED_ANSWER, ask(self.inner, connection));
        match asked.await.unwrap_or(Err(Trouble::Silent)) {
            Ok(connection) => {
                let ask_at = Instant::now() + spread(self.inner, ASK_GUARDED);
                Some(Post { connection, target, since, ask_at })
            }
            Err(trouble) => {
                self.doubt(&target, trouble);
                None
            }
        }
    }
}

/// Another time on each node, so that thousands do not come in one moment.
fn spread(inner: &Inner, time: Duration) -> Duration {
    inner.endpoints.lock().jittered(time)
}

/// A connection over which the server has shown the apiserver's certificate, our cluster, and that it is ready. Where a
/// server may not say which cluster it belongs to, it is taken at the operator's word alone.
async fn show(inner: &Inner, target: &Target) -> Result<Connection, Trouble> {
    let Opened { connection, is_our_cluster } = walk::opened_for_others(inner, target).await?;
    if !is_our_cluster && target.tier != Tier::Configured {
        return Err(Trouble::NotAnApiserver("it may not say which cluster it belongs to".to_owned()));
    }
    ask(inner, connection).await
}

/// What is about the request or about our credentials says nothing against the server: it answers.
async fn ask(inner: &Inner, connection: Connection) -> Result<Connection, Trouble> {
    let mut reply = walk::asked_with_last(inner, &READY, connection, GUARDED_ANSWER).await?;
    let body = reply.collect(SHORT_BODY_BYTES_MAX, SHORT_BODY).await?;
    match reply.status {
        200 | 401 | 403 | 429 => Ok(reply.into_connection()),
        status => Err(Trouble::status(status, &body)),
    }
}

impl Inner {
    /// Names the endpoint that others are led to, and remembers it over restarts.
    fn lead_to(&self, endpoint: Option<SocketAddr>) {
        let is_new = self.led.send_if_modified(|known| std::mem::replace(known, endpoint) != endpoint);
        if !is_new {
            return;
        }
        if let (Some(vip), Some(endpoint)) = (self.asked().vip, endpoint) {
            say!(info, messages::APISERVER_LED, %vip, %endpoint);
        }
        self.memory().led = endpoint;
        self.learned.notify_one();
        self.publish();
    }
}
