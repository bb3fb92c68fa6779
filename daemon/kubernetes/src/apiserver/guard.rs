//! The endpoint that others on this node are led to at the apiserver's virtual address.
//!
//! A connection to it is held open, on which the kernel notices a dead host within seconds and at no cost for the
//! server; a server that goes says so on it at once. The endpoints are the daemon's own, in the operator's order; what
//! the guard thinks of each is its own matter, because it is less patient than the daemon, for which a slow apiserver
//! is better than none. Endpoints are tried side by side, each a moment after the one before it, so that silent ones do
//! not add up: other clients wait meanwhile.
//!
//! Invariant: an address is named only after its server has shown, over a connection of this process, the certificate
//! of an apiserver, our cluster, and that it is ready, or did so before a restart. What is named stays until another
//! server has shown the same: the virtual address leads somewhere as long as it is configured. Where none is ready, and
//! the one that is named shows nothing any more, one that shows all but that is better: it may serve most of what is
//! asked.

mod doubts;
mod race;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use holdfast_status::views::apiserver::Tier;
use tokio::time::{sleep, timeout};

use super::http::{Ask, Connection};
use super::lease::Target;
use super::limits::{
    ASK_GUARDED, DIAL, GUARD_AGAIN, GUARD_DIAL, GUARD_STAGGER, GUARDED_ANSWER, SHORT_BODY,
    SHORT_BODY_BYTES_MAX, SHORT_POST,
};
use super::trouble::Trouble;
use super::walk::{self, Opened};
use super::{Inner, JSON};
use doubts::Doubts;
use holdfast_host::beat;
use holdfast_host::logging::messages::{self, say};
use race::Race;

/// What is asked over the connection, so that a server that hangs is noticed, and keeps the connection open.
const READY: Ask<'static> = Ask::read(JSON, "/readyz");

/// Guards for as long as it is polled.
pub(super) async fn run(inner: &Inner) {
    loop {
        match inner.asked().vip {
            Some(vip) => {
                Guard::of(inner, vip).stand().await;
            }
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
    // The candidates that showed all but that they are ready when they were tried last.
    unready: BTreeSet<SocketAddr>,
    short_posts: ShortPosts,
}

/// Connections in a row that one server closed soon after it had shown itself.
#[derive(Default)]
struct ShortPosts {
    at: Option<SocketAddr>,
    times: u32,
}

/// What came of an attempt at an endpoint.
type Tried = (Target, Result<Connection, NotShown>);

/// Why a server is not led to.
enum NotShown {
    /// It has shown that it is one of ours, and says that it is not ready.
    Unready(Trouble),
    Other(Trouble),
}

impl From<Trouble> for NotShown {
    fn from(trouble: Trouble) -> Self {
        Self::Other(trouble)
    }
}

/// The connection to the endpoint that others are led to.
struct Post<'a> {
    connection: Connection,
    target: Target,
    since: Instant,
    ask_at: Instant,
    // Attempts at the endpoints before this one.
    better: Race<'a, Tried>,
}

/// What a beat on the post brought.
enum Beat {
    /// Nothing.
    Calm,
    Ended(Option<Trouble>),
    Tried(Tried),
}

impl<'a> Guard<'a> {
    fn of(inner: &'a Inner, vip: SocketAddr) -> Self {
        let (doubts, short_posts) = (Doubts::default(), ShortPosts::default());
        Self { inner, vip, doubts, unready: BTreeSet::new(), short_posts }
    }

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

    /// Attempts at those of the endpoints that may be tried, each of which takes so long at most.
    fn race(&self, mut all: Vec<Target>, limit: Duration) -> Race<'a, Tried> {
        let (inner, now) = (self.inner, Instant::now());
        all.retain(|target| self.doubts.may_be_tried(target.address, now));
        let attempt = |target: Target| {
            let attempt: BoxFuture<'a, Tried> = Box::pin(async move {
                let shown = timeout(limit, show(inner, &target)).await;
                (target, shown.unwrap_or(Err(Trouble::Silent.into())))
            });
            attempt
        };
        Race::new(all.into_iter().map(attempt), GUARD_STAGGER)
    }

    /// A connection to the first endpoint that shows itself. There is time for each: the others do not wait for it.
    async fn take_post(&mut self) -> Option<Post<'a>> {
        let all = self.candidates();
        let is_there = |address| all.iter().any(|target| target.address == address);
        self.doubts.keep(is_there);
        self.unready.retain(|address| is_there(*address));
        let addresses: Vec<_> = all.iter().map(|target| target.address).collect();
        let mut race = self.race(all, DIAL);
        while let Some((target, shown)) = race.next().await {
            match shown {
                Ok(connection) => return Some(self.post(target, connection)),
                Err(why) => self.not_shown(&target, why),
            }
        }
        self.make_do(&addresses);
        None
    }

    /// Leads others to the first endpoint that has shown all but that it is ready, if the one to which they are led
    /// shows not even that.
    fn make_do(&self, addresses: &[SocketAddr]) {
        let led = *self.inner.led.borrow();
        let first = addresses.iter().find(|address| self.unready.contains(address));
        if led.is_some_and(|led| !self.unready.contains(&led)) && first.is_some() {
            self.inner.lead_to(first.copied());
        }
    }

    fn not_shown(&mut self, target: &Target, why: NotShown) {
        let trouble = match why {
            NotShown::Unready(trouble) => {
                self.unready.insert(target.address);
                trouble
            }
            NotShown::Other(trouble) => {
                self.unready.remove(&target.address);
                trouble
            }
        };
        self.doubt(target, trouble);
    }

    /// Leads others to an endpoint that has shown itself.
    fn post(&mut self, target: Target, connection: Connection) -> Post<'a> {
        target.served();
        self.doubts.clear(target.address);
        self.unready.remove(&target.address);
        self.inner.lead_to(Some(target.address));
        let since = Instant::now();
        let better = Race::new([], GUARD_STAGGER);
        Post { connection, target, since, ask_at: since + spread(self.inner, ASK_GUARDED), better }
    }

    /// What is wrong with our own files and sockets says nothing about the endpoint, and nothing was dialled.
    fn doubt(&mut self, target: &Target, trouble: Trouble) {
        let is_ours = trouble.is_own();
        target.noted(trouble);
        if is_ours {
            return;
        }
        if self.short_posts.at == Some(target.address) {
            // A proxy that closes after each answer would have let us in again: this one has gone.
            self.short_posts = ShortPosts::default();
        }
        let Self { inner, doubts, .. } = self;
        doubts.add(target.address, Instant::now(), |pause| spread(inner, pause));
    }

    /// Holds the post for a beat at most; `None`: it is lost.
    async fn hold(&mut self, mut post: Post<'a>) -> Option<Post<'a>> {
        let beat = tokio::select! {
            ended = post.connection.ended() => Beat::Ended(ended),
            Some(tried) = post.better.next() => Beat::Tried(tried),
            () = beat::next() => Beat::Calm,
        };
        match beat {
            Beat::Calm => self.look_around(post).await,
            Beat::Ended(ended) => {
                self.lost(&post.target, post.since, ended).await;
                None
            }
            // The order may be another one by now.
            Beat::Tried((target, Ok(connection))) if self.is_before(&target, &post.target) => {
                Some(self.post(target, connection))
            }
            Beat::Tried((_, Ok(_))) => Some(post),
            Beat::Tried((target, Err(why))) => {
                self.not_shown(&target, why);
                Some(post)
            }
        }
    }

    /// Has the endpoints before this one tried, once in a beat at most, and asks this one when it is time.
    async fn look_around(&mut self, mut post: Post<'a>) -> Option<Post<'a>> {
        let all = self.candidates();
        let at = all.iter().position(|target| target.id == post.target.id)?;
        if post.better.is_over() {
            post.better = self.race(all.into_iter().take(at).collect(), GUARD_DIAL);
        }
        if Instant::now() < post.ask_at { Some(post) } else { self.asked(post).await }
    }

    fn is_before(&self, target: &Target, other: &Target) -> bool {
        let all = self.candidates();
        let at = |target: &Target| all.iter().position(|it| it.id == target.id);
        matches!((at(target), at(other)), (Some(one), Some(other)) if one < other)
    }

    /// The connection has ended, with a trouble or without.
    async fn lost(&mut self, target: &Target, since: Instant, ended: Option<Trouble>) {
        self.lift_doubts(since);
        match ended {
            None | Some(Trouble::Closed) => self.pace(target, since).await,
            Some(trouble) => self.doubt(target, trouble),
        }
    }

    /// All others are worth another try now, also those that did not show themselves of late. That follows only from
    /// the loss of a post that has lasted, so that endpoints which come and go are not asked in a loop.
    fn lift_doubts(&mut self, since: Instant) {
        if since.elapsed() >= SHORT_POST {
            self.doubts.lift(Instant::now());
        }
    }

    /// Servers close connections that are idle, and proxies before them may do so after each answer: that is no
    /// failure, and the next connection is made after a pause that grows. A server that is gone refuses that one.
    async fn pace(&mut self, target: &Target, since: Instant) {
        let at = Some(target.address);
        if since.elapsed() >= SHORT_POST || self.short_posts.at != at {
            self.short_posts = ShortPosts { at, times: 0 };
        }
        if since.elapsed() < SHORT_POST {
            sleep(spread(self.inner, doubts::pause(self.short_posts.times))).await;
            self.short_posts.times = self.short_posts.times.saturating_add(1);
        }
    }

    /// Asks the server once more whether it is ready.
    async fn asked(&mut self, post: Post<'a>) -> Option<Post<'a>> {
        let Post { connection, target, since, better, .. } = post;
        let asked = timeout(GUARDED_ANSWER, ask(self.inner, connection)).await;
        match asked.unwrap_or(Err(Trouble::Silent.into())) {
            Ok(connection) => {
                let ask_at = Instant::now() + spread(self.inner, ASK_GUARDED);
                Some(Post { connection, target, since, ask_at, better })
            }
            Err(why) => {
                self.lift_doubts(since);
                self.not_shown(&target, why);
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
async fn show(inner: &Inner, target: &Target) -> Result<Connection, NotShown> {
    let Opened { connection, is_our_cluster } = walk::opened_for_others(inner, target).await?;
    if !is_our_cluster && target.tier != Tier::Configured {
        return Err(Trouble::NotAnApiserver("it may not say which cluster it belongs to".to_owned()).into());
    }
    ask(inner, connection).await
}

/// What is about the request or about our credentials says nothing against the server: it answers.
async fn ask(inner: &Inner, connection: Connection) -> Result<Connection, NotShown> {
    let mut reply = walk::asked_with_last(inner, &READY, connection, GUARDED_ANSWER).await?;
    let body = reply.collect(SHORT_BODY_BYTES_MAX, SHORT_BODY).await?;
    match reply.status {
        200 | 401 | 403 | 429 => Ok(reply.into_connection()),
        status => Err(NotShown::Unready(Trouble::status(status, &body))),
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
