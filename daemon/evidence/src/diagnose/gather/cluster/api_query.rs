//! One query to the apiserver: bounded in bytes, objects, requests and time, and never in a watch's way.
//!
//! Invariant: a query takes at most [`QUERY_TIMEOUT`], and all queries of a diagnosis share one deadline. The budget
//! counts every request, including those by which an apiserver proves its cluster. A body is read in pieces, and an
//! endless one is cut.

use std::sync::atomic::{AtomicUsize, Ordering};

use holdfast_diagnose::evidence::{Lookup, Request, Right};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::diagnose::limits::{
    ANSWER_BYTES_MAX, OBJECT_BYTES_MAX, QUERY_TIMEOUT, REFUSAL_BYTES_MAX, REQUESTS_MAX,
};
use holdfast_kubernetes::apiserver::{Access, Connection, JSON, Reply};
use holdfast_kubernetes::source::page::JsonPage;
use holdfast_kubernetes::source::piece::Piece;
use holdfast_kubernetes::source::resource::push_parameter;

const FORBIDDEN: u16 = 403;

/// The longest message of a refusal that is kept, in characters.
const MESSAGE_LENGTH_MAX: usize = 200;

const NO_TIME: &str = "no time left";
const NOT_SERVED: &str = "this apiserver has no such kind of objects";

#[derive(Debug)]
pub(super) struct RequestBudget {
    deadline: Instant,
    left: AtomicUsize,
}

impl RequestBudget {
    pub(super) fn new(deadline: Instant, requests: usize) -> Self {
        Self { deadline, left: AtomicUsize::new(requests) }
    }

    fn take_request(&self) -> Result<(), QueryError> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.map(drop).map_err(|_| QueryError::BudgetSpent)
    }
}

#[derive(Clone, Debug)]
pub(super) struct ApiQuery {
    /// Its name for people: `service`, `pods`, …
    pub(super) name: &'static str,
    pub(super) path: String,
    pub(super) right: Right,
}

/// The requested format of a list, and the kind of the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListFormat {
    pub(super) accept: &'static str,
    pub(super) kind: &'static str,
}

impl ListFormat {
    /// The metadata of each object only.
    pub(super) const METADATA: Self = Self {
        accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        kind: "PartialObjectMetadataList",
    };

    /// Whole objects of this kind.
    pub(super) const fn for_kind(kind: &'static str) -> Self {
        Self { accept: JSON, kind }
    }
}

/// A list that was read, perhaps in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Whether there are more objects than were read, or some that could not be read.
    pub(super) more: bool,
    token: Option<String>,
}

#[derive(Debug)]
pub(super) enum QueryError {
    /// The diagnosis has used up its requests.
    BudgetSpent,
    NoTime,
    Forbidden,
    /// The apiserver has no such API.
    NotServed,
    Failed(String),
}

/// The used part of a `Status`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusBody {
    message: String,
    details: Option<StatusDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StatusDetails {
    name: String,
}

/// A connection for consecutive queries.
#[derive(Debug)]
pub(super) struct QuerySession<'a> {
    access: &'a Access,
    bounds: &'a RequestBudget,
    idle: Option<Connection>,
    pub(super) requests: Vec<Request>,
}

impl<'a> QuerySession<'a> {
    pub(super) const fn new(access: &'a Access, bounds: &'a RequestBudget) -> Self {
        Self { access, bounds, idle: None, requests: Vec::new() }
    }

    /// Connects before the first query, so that an unreachable apiserver costs one timeout, not one for each query.
    pub(super) async fn connect(&mut self) -> Result<(), String> {
        let until = self.bounds.deadline.min(Instant::now() + QUERY_TIMEOUT);
        match timeout_at(until, self.open_connection()).await {
            Ok(Ok(connection)) => {
                self.idle = Some(connection);
                Ok(())
            }
            Ok(Err(QueryError::Failed(error))) => Err(error),
            Ok(Err(_)) => Err(budget_message()),
            Err(_) => Err(format!("the apiserver does not answer within {} s", QUERY_TIMEOUT.as_secs())),
        }
    }

    /// Gets one object. `None`: the apiserver has no such object.
    pub(super) async fn get<T: DeserializeOwned>(&mut self, question: &ApiQuery) -> Lookup<Option<T>> {
        let begun = Instant::now();
        let answer = with_timeout(self.bounds.deadline, self.get_object(&question.path)).await;
        self.record_query(question, begun, answer)
    }

    /// Like [`Self::get`], for a kind that older apiservers lack: the query is skipped there.
    pub(super) async fn get_if_served<T: DeserializeOwned>(
        &mut self,
        question: &ApiQuery,
    ) -> Lookup<Option<T>> {
        let begun = Instant::now();
        let answer = with_timeout(self.bounds.deadline, self.get_object(&question.path)).await;
        let is_served = !matches!(answer, Err(QueryError::NotServed));
        let lookup = self.record_query(question, begun, answer);
        if is_served { lookup } else { Lookup::Skipped(NOT_SERVED) }
    }

    /// Reads the first page of a list. `each` gets one object at a time, and returns `false` if it cannot read it.
    pub(super) async fn list(
        &mut self,
        question: &ApiQuery,
        form: ListFormat,
        each: impl FnMut(&[u8]) -> bool + Send,
    ) -> Lookup<Listing> {
        let begun = Instant::now();
        let answer = with_timeout(self.bounds.deadline, self.read_page(&question.path, form, each)).await;
        self.record_query(question, begun, answer)
    }

    /// Like [`Self::list`], with `most` pages at most. If a page fails, the earlier ones count.
    pub(super) async fn pages(
        &mut self,
        question: &ApiQuery,
        form: ListFormat,
        most: usize,
        mut each: impl FnMut(&[u8]) -> bool + Send,
    ) -> Lookup<Listing> {
        let mut lookup = self.list(question, form, &mut each).await;
        for _ in 1..most {
            let Lookup::Answered(Listing { token: Some(token), .. }) = &lookup else { break };
            let mut next = question.clone();
            push_parameter(&mut next.path, "continue", token);
            match self.list(&next, form, &mut each).await {
                Lookup::Answered(listing) => lookup = Lookup::Answered(listing),
                _ => break,
            }
        }
        lookup
    }

    async fn get_object<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>, QueryError> {
        let reply = self.request(JSON, path).await?;
        match reply.status {
            200 => {
                let body = self.read_body(reply, OBJECT_BYTES_MAX).await?;
                let read = serde_json::from_slice(&body);
                read.map(Some)
                    .map_err(|error| QueryError::Failed(format!("the answer cannot be decoded: {error}")))
            }
            404 => self.classify_not_found(reply).await.map(|()| None),
            _ => Err(self.refusal_error(reply).await),
        }
    }

    async fn read_page(
        &mut self,
        path: &str,
        form: ListFormat,
        mut each: impl FnMut(&[u8]) -> bool + Send,
    ) -> Result<Listing, QueryError> {
        let mut reply = self.request(form.accept, path).await?;
        if reply.status != 200 {
            return Err(self.refusal_error(reply).await);
        }
        let mut page = JsonPage::default();
        let mut bytes = 0;
        let mut odd = false;
        let mut take = |piece: Piece<'_>| match piece {
            Piece::Whole(object) => odd |= !each(object),
            Piece::Cut(_) => odd = true,
        };
        while let Some(chunk) = reply.next_chunk(QUERY_TIMEOUT).await.map_err(map_error)? {
            page.push_chunk(&chunk, &mut take).map_err(map_error)?;
            bytes += chunk.len();
            if bytes > ANSWER_BYTES_MAX {
                return Ok(Listing { more: true, token: None });
            }
        }
        let frame = page.finish(&mut take).map_err(map_error)?;
        if frame.kind != form.kind {
            return Err(QueryError::Failed(format!("the answer is not a {}", form.kind)));
        }
        self.idle = Some(reply.into_connection());
        let token = frame.metadata.token.filter(|token| !token.is_empty());
        Ok(Listing { more: odd || token.is_some(), token })
    }

    /// Distinguishes a missing object, which is an answer, from a missing API, which is none.
    async fn classify_not_found(&mut self, reply: Reply) -> Result<(), QueryError> {
        let body = self.read_body(reply, REFUSAL_BYTES_MAX).await?;
        let refusal: StatusBody = serde_json::from_slice(&body).unwrap_or_default();
        match refusal.details {
            Some(details) if !details.name.is_empty() => Ok(()),
            _ => Err(QueryError::NotServed),
        }
    }

    async fn refusal_error(&mut self, reply: Reply) -> QueryError {
        let status = reply.status;
        let body = match self.read_body(reply, REFUSAL_BYTES_MAX).await {
            Ok(body) => body,
            Err(_) if status == FORBIDDEN => return QueryError::Forbidden,
            Err(why) => return why,
        };
        if status == FORBIDDEN {
            return QueryError::Forbidden;
        }
        let refusal: StatusBody = serde_json::from_slice(&body).unwrap_or_default();
        let message: String = refusal.message.chars().take(MESSAGE_LENGTH_MAX).collect();
        let colon = if message.is_empty() { "" } else { ": " };
        QueryError::Failed(format!("the apiserver answers {status}{colon}{message}"))
    }

    /// Sends a request over the idle connection, or else over a new one.
    async fn request(&mut self, accept: &'static str, path: &str) -> Result<Reply, QueryError> {
        if let Some(idle) = self.idle.take() {
            self.bounds.take_request()?;
            // If this fails, the server has closed the idle connection, which proves nothing about the apiserver.
            if let Ok(reply) = self.access.get_best_effort(accept, path, idle).await {
                return Ok(reply);
            }
        }
        let connection = self.open_connection().await?;
        self.bounds.take_request()?;
        self.access.get_best_effort(accept, path, connection).await.map_err(map_error)
    }

    /// Opens a connection. The apiserver first proves its cluster over it, which costs a request as well.
    async fn open_connection(&self) -> Result<Connection, QueryError> {
        self.bounds.take_request()?;
        self.access.connect().await.map_err(map_error)
    }

    /// Reads a short body whole, and keeps the connection for the next query.
    async fn read_body(&mut self, mut reply: Reply, most: usize) -> Result<Vec<u8>, QueryError> {
        let mut whole = Vec::new();
        while let Some(chunk) = reply.next_chunk(QUERY_TIMEOUT).await.map_err(map_error)? {
            if whole.len().saturating_add(chunk.len()) > most {
                return Err(QueryError::Failed(format!("the answer has more than {most} bytes")));
            }
            whole.extend_from_slice(&chunk);
        }
        self.idle = Some(reply.into_connection());
        Ok(whole)
    }

    /// Turns an answer into a lookup, and logs the query unless it was not sent.
    fn record_query<T>(
        &mut self,
        question: &ApiQuery,
        begun: Instant,
        answer: Result<T, QueryError>,
    ) -> Lookup<T> {
        let lookup = match answer {
            Ok(answer) => Lookup::Answered(answer),
            Err(QueryError::Forbidden) => Lookup::Forbidden(question.right.clone()),
            // An answer could have mattered, so this is no skipped query.
            Err(QueryError::BudgetSpent) => return Lookup::Failed(budget_message().into()),
            Err(QueryError::NoTime) => return Lookup::Failed(NO_TIME.into()),
            Err(QueryError::NotServed) => Lookup::Failed(NOT_SERVED.into()),
            Err(QueryError::Failed(error)) => Lookup::Failed(error.into()),
        };
        let took = begun.elapsed();
        let error = lookup.unavailable_reason();
        self.requests.push(Request { what: question.name.to_owned(), took, error });
        lookup
    }
}

/// Runs a query within the deadline and within [`QUERY_TIMEOUT`]. A query that takes too long has no answer; one
/// without any time left is not sent.
async fn with_timeout<T>(
    deadline: Instant,
    query: impl Future<Output = Result<T, QueryError>>,
) -> Result<T, QueryError> {
    let now = Instant::now();
    if now >= deadline {
        return Err(QueryError::NoTime);
    }
    let until = deadline.min(now + QUERY_TIMEOUT);
    let answer = timeout_at(until, query).await;
    answer.unwrap_or_else(|_| {
        Err(QueryError::Failed(format!("no answer within {} ms", (until - now).as_millis())))
    })
}

fn budget_message() -> String {
    format!("not sent: the budget of {REQUESTS_MAX} requests is spent")
}

fn map_error(error: impl std::fmt::Display) -> QueryError {
    QueryError::Failed(error.to_string())
}
