//! One question to the apiserver: bounded in bytes, objects, requests and time, and never in the way of a watch.
//!
//! Invariant: a question takes no longer than [`QUESTION`], and all questions of a diagnosis end at one deadline. No
//! more requests are sent than the bounds allow, those by which an apiserver proves its cluster included. A body is
//! read piece by piece, and one that does not end is cut.

use std::sync::atomic::{AtomicUsize, Ordering};

use holdfast_diagnose::material::{Asked, Request, Right};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use crate::diagnose::limits::{
    ANSWER_BYTES_MAX, OBJECT_BYTES_MAX, QUESTION, REFUSAL_BYTES_MAX, REQUESTS_MAX,
};
use holdfast_kubernetes::apiserver::{Access, Connection, JSON, Reply};
use holdfast_kubernetes::source::page::Page;
use holdfast_kubernetes::source::piece::Piece;
use holdfast_kubernetes::source::resource::push;

/// The status by which an apiserver says that the daemon lacks a right.
const FORBIDDEN: u16 = 403;

/// The most characters that are kept of an apiserver's words about a refusal.
const MESSAGE_LENGTH_MAX: usize = 200;

const NO_TIME: &str = "no time left";
const NO_KIND: &str = "this apiserver has no such kind of objects";

/// What all questions of one diagnosis share.
#[derive(Debug)]
pub(super) struct Bounds {
    deadline: Instant,
    left: AtomicUsize,
}

impl Bounds {
    pub(super) fn new(deadline: Instant, requests: usize) -> Self {
        Self { deadline, left: AtomicUsize::new(requests) }
    }

    /// Takes one request from those that are left, if there is one.
    fn take(&self) -> Result<(), Why> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.map(drop).map_err(|_| Why::NoRequest)
    }
}

/// What is asked for, and the right that it takes.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// As it is shown: `service`, `pods`, …
    pub(super) name: &'static str,
    pub(super) path: String,
    pub(super) right: Right,
}

/// The form in which a list is asked for, and the kind that the answer then has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) accept: &'static str,
    pub(super) kind: &'static str,
}

impl Form {
    /// The metadata of each object, and nothing else.
    pub(super) const NAMES: Self = Self {
        accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        kind: "PartialObjectMetadataList",
    };

    /// Whole objects of this kind.
    pub(super) const fn whole(kind: &'static str) -> Self {
        Self { accept: JSON, kind }
    }
}

/// A list, as far as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// Whether there are more objects than were read, or some that could not be read.
    pub(super) more: bool,
    /// Where the next page begins.
    token: Option<String>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Why {
    /// The diagnosis has asked as often as it may.
    NoRequest,
    NoTime,
    Forbidden,
    /// The apiserver has no such API.
    NoKind,
    Failed(String),
}

/// The part of a `Status` that counts here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    message: String,
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
}

/// A connection, for question after question.
#[derive(Debug)]
pub(super) struct Lane<'a> {
    access: &'a Access,
    bounds: &'a Bounds,
    kept: Option<Connection>,
    pub(super) requests: Vec<Request>,
}

impl<'a> Lane<'a> {
    pub(super) const fn new(access: &'a Access, bounds: &'a Bounds) -> Self {
        Self { access, bounds, kept: None, requests: Vec::new() }
    }

    /// Connects before the first question, so that an apiserver that is away is found out once and not by each
    /// question.
    pub(super) async fn open(&mut self) -> Result<(), String> {
        let until = self.bounds.deadline.min(Instant::now() + QUESTION);
        match timeout_at(until, self.connection()).await {
            Ok(Ok(connection)) => {
                self.kept = Some(connection);
                Ok(())
            }
            Ok(Err(Why::Failed(error))) => Err(error),
            Ok(Err(_)) => Err(no_request()),
            Err(_) => Err(format!("the apiserver does not answer within {} s", QUESTION.as_secs())),
        }
    }

    /// One object; none: the apiserver has no such object.
    pub(super) async fn get<T: DeserializeOwned>(&mut self, question: &Question) -> Asked<Option<T>> {
        let begun = Instant::now();
        let answer = in_time(self.bounds.deadline, self.object(&question.path)).await;
        self.noted(question, begun, answer)
    }

    /// As [`Self::get`], for a kind that older apiservers do not have: there the question does not apply.
    pub(super) async fn get_if_served<T: DeserializeOwned>(
        &mut self,
        question: &Question,
    ) -> Asked<Option<T>> {
        let begun = Instant::now();
        let answer = in_time(self.bounds.deadline, self.object(&question.path)).await;
        let is_served = !matches!(answer, Err(Why::NoKind));
        let asked = self.noted(question, begun, answer);
        if is_served { asked } else { Asked::Not(NO_KIND) }
    }

    /// The first page of a list. `each` gets one object at a time, and says `false` if it cannot read that one.
    pub(super) async fn list(
        &mut self,
        question: &Question,
        form: Form,
        each: impl FnMut(&[u8]) -> bool + Send,
    ) -> Asked<Listing> {
        let begun = Instant::now();
        let answer = in_time(self.bounds.deadline, self.page(&question.path, form, each)).await;
        self.noted(question, begun, answer)
    }

    /// As [`Self::list_scope`], with `most` pages at most. If a page does not come, the pages before it count.
    pub(super) async fn pages(
        &mut self,
        question: &Question,
        form: Form,
        most: usize,
        mut each: impl FnMut(&[u8]) -> bool + Send,
    ) -> Asked<Listing> {
        let mut asked = self.list(question, form, &mut each).await;
        for _ in 1..most {
            let Asked::Answered(Listing { token: Some(token), .. }) = &asked else { break };
            let mut next = question.clone();
            push(&mut next.path, "continue", token);
            match self.list(&next, form, &mut each).await {
                Asked::Answered(listing) => asked = Asked::Answered(listing),
                _ => break,
            }
        }
        asked
    }

    async fn object<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>, Why> {
        let reply = self.reply(JSON, path).await?;
        match reply.status {
            200 => {
                let body = self.body(reply, OBJECT_BYTES_MAX).await?;
                let read = serde_json::from_slice(&body);
                read.map(Some)
                    .map_err(|error| Why::Failed(format!("the answer is not what was asked for: {error}")))
            }
            404 => self.missing(reply).await.map(|()| None),
            _ => Err(self.refused(reply).await),
        }
    }

    async fn page(
        &mut self,
        path: &str,
        form: Form,
        mut each: impl FnMut(&[u8]) -> bool + Send,
    ) -> Result<Listing, Why> {
        let mut reply = self.reply(form.accept, path).await?;
        if reply.status != 200 {
            return Err(self.refused(reply).await);
        }
        let mut page = Page::default();
        let mut bytes = 0;
        let mut odd = false;
        let mut take = |piece: Piece<'_>| match piece {
            Piece::Whole(object) => odd |= !each(object),
            Piece::Cut(_) => odd = true,
        };
        while let Some(chunk) = reply.chunk(QUESTION).await.map_err(failed)? {
            page.take(&chunk, &mut take).map_err(failed)?;
            bytes += chunk.len();
            if bytes > ANSWER_BYTES_MAX {
                return Ok(Listing { more: true, token: None });
            }
        }
        let frame = page.end(&mut take).map_err(failed)?;
        if frame.kind != form.kind {
            return Err(Why::Failed(format!("the answer is not a {}", form.kind)));
        }
        self.kept = Some(reply.into_connection());
        let token = frame.metadata.token.filter(|token| !token.is_empty());
        Ok(Listing { more: odd || token.is_some(), token })
    }

    /// Tells an object that is not there, which is an answer, from an API that is not there, which is none.
    async fn missing(&mut self, reply: Reply) -> Result<(), Why> {
        let body = self.body(reply, REFUSAL_BYTES_MAX).await?;
        let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
        match refusal.details {
            Some(details) if !details.name.is_empty() => Ok(()),
            _ => Err(Why::NoKind),
        }
    }

    async fn refused(&mut self, reply: Reply) -> Why {
        let status = reply.status;
        let body = match self.body(reply, REFUSAL_BYTES_MAX).await {
            Ok(body) => body,
            Err(_) if status == FORBIDDEN => return Why::Forbidden,
            Err(why) => return why,
        };
        if status == FORBIDDEN {
            return Why::Forbidden;
        }
        let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
        let message: String = refusal.message.chars().take(MESSAGE_LENGTH_MAX).collect();
        let colon = if message.is_empty() { "" } else { ": " };
        Why::Failed(format!("the apiserver answers {status}{colon}{message}"))
    }

    /// An answer over the connection that is kept, or else over a new one.
    async fn reply(&mut self, accept: &'static str, path: &str) -> Result<Reply, Why> {
        if let Some(kept) = self.kept.take() {
            self.bounds.take()?;
            // If this fails, the kept connection was closed meanwhile, which says nothing of the apiserver.
            if let Ok(reply) = self.access.ask_aside(accept, path, kept).await {
                return Ok(reply);
            }
        }
        let connection = self.connection().await?;
        self.bounds.take()?;
        self.access.ask_aside(accept, path, connection).await.map_err(failed)
    }

    /// Opens a connection. Over it the apiserver first proves which cluster it belongs to, which takes a request as
    /// well.
    async fn connection(&self) -> Result<Connection, Why> {
        self.bounds.take()?;
        self.access.connect().await.map_err(failed)
    }

    /// The whole of a short body; the connection is kept for the next question.
    async fn body(&mut self, mut reply: Reply, most: usize) -> Result<Vec<u8>, Why> {
        let mut whole = Vec::new();
        while let Some(chunk) = reply.chunk(QUESTION).await.map_err(failed)? {
            if whole.len().saturating_add(chunk.len()) > most {
                return Err(Why::Failed(format!("the answer has more than {most} bytes")));
            }
            whole.extend_from_slice(&chunk);
        }
        self.kept = Some(reply.into_connection());
        Ok(whole)
    }

    /// Turns an answer into what is judged, and adds a line to what was asked, unless the question was not sent.
    fn noted<T>(&mut self, question: &Question, begun: Instant, answer: Result<T, Why>) -> Asked<T> {
        let asked = match answer {
            Ok(answer) => Asked::Answered(answer),
            Err(Why::Forbidden) => Asked::Forbidden(question.right.clone()),
            // An answer could have mattered, so this is not the same as a question that does not apply.
            Err(Why::NoRequest) => return Asked::Failed(no_request().into()),
            Err(Why::NoTime) => return Asked::Failed(NO_TIME.into()),
            Err(Why::NoKind) => Asked::Failed(NO_KIND.into()),
            Err(Why::Failed(error)) => Asked::Failed(error.into()),
        };
        let took = begun.elapsed();
        let error = asked.why_not();
        self.requests.push(Request { what: question.name.to_owned(), took, error });
        asked
    }
}

/// Asks within the deadline and within [`QUESTION`]. A question that began and took too long has no answer; one for
/// which no time was left was not asked.
async fn in_time<T>(deadline: Instant, asking: impl Future<Output = Result<T, Why>>) -> Result<T, Why> {
    let now = Instant::now();
    if now >= deadline {
        return Err(Why::NoTime);
    }
    let until = deadline.min(now + QUESTION);
    let answer = timeout_at(until, asking).await;
    answer.unwrap_or_else(|_| Err(Why::Failed(format!("no answer within {} ms", (until - now).as_millis()))))
}

fn no_request() -> String {
    format!("not asked: the budget of {REQUESTS_MAX} requests was spent")
}

fn failed(error: impl std::fmt::Display) -> Why {
    Why::Failed(error.to_string())
}
