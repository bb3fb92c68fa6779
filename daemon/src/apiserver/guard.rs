//! The endpoint that others on this node are led to at the apiserver's virtual address.
//!
//! A connection to it is held open, on which the kernel notices a dead host within seconds and at no cost for the
//! server; a server that goes says so on it at once.
//!
//! Invariant: an address is named only after its server has shown the apiserver's certificate and our cluster over a
//! connection of this process, or did so before a restart. What is named stays until another server has shown the same:
//! the virtual address leads somewhere as long as it is configured.

use std::net::SocketAddr;
use std::time::Instant;

use super::endpoints::EndpointId;
use super::http::{Ask, Connection};
use super::lease::Target;
use super::limits::{ASK_GUARDED, GUARD_AGAIN, GUARDED_ANSWER, SHORT_BODY, SHORT_BODY_BYTES_MAX};
use super::trouble::Trouble;
use super::walk::{self, Patience};
use super::{Inner, JSON};
use crate::beat;
use crate::logging::messages::{self, say};

/// What is asked over the connection, so that a server which hangs is noticed, and keeps the connection open.
const READY: Ask<'static> = Ask { accept: JSON, path_and_query: "/readyz", write: None };

/// Guards for as long as it is polled.
pub(super) async fn run(inner: &Inner) {
    loop {
        let Some(vip) = inner.asked().vip else {
            inner.lead_to(None);
            beat::next().await;
            continue;
        };
        let next = tokio::time::Instant::now() + GUARD_AGAIN;
        if let Some(connection) = take_post(inner, vip).await {
            stand(inner, vip, connection).await;
        }
        // A server that shows itself and closes at once is not asked without a pause.
        tokio::time::sleep_until(next).await;
    }
}

/// Whether an endpoint can be led to: no client is sent from one family to the other.
pub(super) fn suits(vip: SocketAddr, endpoint: SocketAddr) -> bool {
    vip.is_ipv4() == endpoint.is_ipv4()
}

/// A connection to the first endpoint that serves.
async fn take_post(inner: &Inner, vip: SocketAddr) -> Option<Connection> {
    inner.refresh().await;
    for target in in_order(inner, vip) {
        match walk::opened_twice(inner, &target, Patience::Guard).await {
            Ok(connection) => {
                target.served();
                inner.lead_to(Some(target.address));
                return Some(connection);
            }
            Err(trouble) => walk::blame(&target, &trouble),
        }
    }
    None
}

fn in_order(inner: &Inner, vip: SocketAddr) -> Vec<Target> {
    let order = inner.endpoints.lock().order(Instant::now());
    let targets = order.into_iter().filter_map(|id| inner.endpoints.target(id));
    targets.filter(|target| suits(vip, target.address)).collect()
}

/// Stays until the connection ends, the server says that it does not serve, or another endpoint is to be preferred.
async fn stand(inner: &Inner, vip: SocketAddr, mut connection: Connection) {
    let target = connection.target().clone();
    let mut asked = Instant::now();
    loop {
        tokio::select! {
            ended = connection.ended() => {
                if let Some(trouble) = ended {
                    walk::blame(&target, &trouble);
                }
                return;
            }
            () = beat::next() => {}
        }
        if !is_best(inner, vip, target.id) {
            return;
        }
        if asked.elapsed() >= ASK_GUARDED {
            asked = Instant::now();
            connection = match asked_again(inner, connection).await {
                Ok(connection) => connection,
                Err(trouble) => return walk::blame(&target, &trouble),
            };
        }
    }
}

/// Whether this endpoint is the one that a new connection would go to first.
fn is_best(inner: &Inner, vip: SocketAddr, id: EndpointId) -> bool {
    inner.asked().vip == Some(vip) && in_order(inner, vip).first().is_some_and(|first| first.id == id)
}

async fn asked_again(inner: &Inner, connection: Connection) -> Result<Connection, Trouble> {
    let mut reply = walk::asked_over(inner, &READY, connection, GUARDED_ANSWER).await?;
    let body = reply.collect(SHORT_BODY_BYTES_MAX, SHORT_BODY).await?;
    match reply.status {
        // 403 is an answer too: the endpoint serves, and only does not tell us its health.
        200 | 403 => Ok(reply.into_connection()),
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
