//! The daemon's identity to the apiserver and its trusted authorities, from files and programs that rotate.
//!
//! Invariant: the last good credentials stay in force until better ones were read as a whole. A half-written file, a
//! key that does not fit, and a plugin or file system that hangs are named and change nothing. Only threads that may
//! block touch files, and no request waits for a refresh while good credentials exist.

#![forbid(unsafe_code)]

mod client_tls;
pub mod tls;
pub use client_tls::{CHECK_EVERY, ClientTls};

mod exec;
mod expiry;
mod files;
mod kubeconfig;
mod read_task;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::header::HeaderValue;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::tls::ClientKeyPair;
use exec::{IssuedCredential, Plugin};
use files::{FileReader, FileSnapshot};
use holdfast_config::{Apiserver, ApiserverUrl, ClientIdentity, FileAuthor, TlsFiles};
use kubeconfig::Context;
use read_task::ReadTask;

/// After this time, unchanged files are read again.
const REREAD_AFTER: Duration = Duration::from_secs(60);

/// How often a 401 may cause a read. Otherwise a server that rejects every credential would run the plugin with each
/// response.
const RECHECK_PAUSE: Duration = Duration::from_secs(5);

/// How long before its expiry a plugin's credential is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(60);

/// Where the credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locations {
    kubeconfig: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    identity: Option<ClientIdentity>,
    tls_server_name: Option<String>,
    // Whether the kubeconfig supplies the apiserver's address.
    asks_for_server: bool,
    // Whether it is normal that no file exists.
    is_optional: bool,
    // Who named the files.
    author: FileAuthor,
}

impl Locations {
    /// The locations that `[apiserver]` names.
    pub fn from_config(apiserver: &Apiserver) -> Self {
        Self {
            kubeconfig: apiserver.kubeconfig.clone(),
            ca_file: apiserver.ca_file.clone(),
            identity: apiserver.identity.clone(),
            tls_server_name: apiserver.tls_server_name.clone(),
            asks_for_server: apiserver.endpoints.is_empty(),
            is_optional: false,
            author: FileAuthor::Administrator,
        }
    }

    /// One optional kubeconfig that supplies everything.
    pub const fn from_kubeconfig(path: PathBuf) -> Self {
        Self {
            kubeconfig: Some(path),
            ca_file: None,
            identity: None,
            tls_server_name: None,
            asks_for_server: true,
            is_optional: true,
            author: FileAuthor::Administrator,
        }
    }

    /// An authority and an optional client certificate, for peers other than apiservers.
    pub fn from_files(files: &TlsFiles) -> Self {
        Self {
            kubeconfig: None,
            ca_file: Some(files.ca_file.clone()),
            identity: files.client.clone(),
            tls_server_name: None,
            asks_for_server: false,
            is_optional: false,
            author: files.author,
        }
    }

    pub const fn has_authority(&self) -> bool {
        self.ca_file.is_some() || self.kubeconfig.is_some()
    }

    /// The file that has the authorities, or names their file.
    fn authorities_file(&self) -> Option<&Path> {
        self.ca_file.as_deref().or(self.kubeconfig.as_deref())
    }

    /// The file that has the client's certificate, or names its file.
    fn certificate_file(&self) -> Option<&Path> {
        match &self.identity {
            Some(ClientIdentity::Certificate { certificate_file, .. }) => Some(certificate_file),
            Some(ClientIdentity::TokenFile(_)) | None => self.kubeconfig.as_deref(),
        }
    }
}

/// Why the credentials could not be read.
#[derive(Debug)]
pub enum GatherError {
    /// Files are missing or not readable now, each with its reason. That may change.
    Unreadable(Vec<String>),
    /// A file has an invalid or unsupported setting.
    Wrong(String),
}

impl GatherError {
    fn into_text(self) -> String {
        match self {
            Self::Unreadable(all) => all.join("; "),
            Self::Wrong(text) => text,
        }
    }

    fn for_file(why: String) -> Self {
        Self::Unreadable(vec![why])
    }
}

/// Both results, or everything that is wrong with either: an operator mends all files at once.
fn join_results<A, B>(
    first: Result<A, GatherError>,
    second: Result<B, GatherError>,
) -> Result<(A, B), GatherError> {
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(GatherError::Unreadable(first)), Err(GatherError::Unreadable(second))) => {
            Err(GatherError::Unreadable([first, second].concat()))
        }
        (Err(wrong @ GatherError::Wrong(_)), _) | (_, Err(wrong @ GatherError::Wrong(_))) => Err(wrong),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

/// The daemon's identity.
#[derive(Clone, Default, PartialEq, Eq)]
struct Client {
    token: Option<String>,
    pair: Option<(Vec<u8>, Vec<u8>)>,
    plugin: Option<Plugin>,
}

impl fmt::Debug for Client {
    /// Keeps secrets out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileContents {
    authorities: Vec<u8>,
    client: Client,
    server: Option<ApiserverUrl>,
    tls_server_name: Option<String>,
}

impl FileContents {
    /// Why certificates and keys that were read cannot be used, each with the file that names it.
    fn problems(&self, locations: &Locations) -> Vec<String> {
        let pair = self.client.pair.as_ref().map(ClientKeyPair::from_pem);
        let pair = pair.as_ref().map_or(Ok(()), tls::check_pair);
        let problems = [
            (tls::check_authorities(&self.authorities), locations.authorities_file()),
            (pair, locations.certificate_file()),
        ];
        let named = problems.into_iter().filter_map(|(problem, path)| Some((problem.err()?, path?)));
        named.map(|(why, path)| format!("{}: {why}", path.display())).collect()
    }
}

#[derive(Debug)]
pub struct ConnectionCredentials {
    pub tls: Arc<ClientConfig>,
    pub authorization: Option<HeaderValue>,
    pub server_name: Option<ServerName<'static>>,
    /// The apiserver's address in the kubeconfig.
    pub server: Option<SocketAddr>,
    kind: &'static str,
    expires: Option<SystemTime>,
    contents: FileContents,
    issued: Option<IssuedCredential>,
}

impl ConnectionCredentials {
    /// The kind of credential, for the message when a server rejects it.
    pub const fn kind(&self) -> &'static str {
        self.kind
    }
}

/// The state of the credentials for people, and their problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub kind: &'static str,
    pub files: Vec<(PathBuf, Option<SystemTime>)>,
    pub expires: Option<SystemTime>,
    pub problem: Option<(String, SystemTime)>,
}

#[derive(Debug)]
pub struct Credentials {
    locations: Locations,
    /// The task that refreshes holds the lock. A hanging read stays inside, so a second one never begins.
    refreshing: tokio::sync::Mutex<Option<ReadTask>>,
    state: Mutex<CredentialState>,
}

#[derive(Debug, Default)]
struct CredentialState {
    good: Option<Arc<ConnectionCredentials>>,
    files: Vec<FileSnapshot>,
    read_at: Option<Instant>,
    /// Whether the read hangs, so that not even a change would be seen.
    is_hanging: bool,
    problem: Option<(String, SystemTime)>,
}

impl CredentialState {
    /// Whether unchanged files are due to be read again.
    fn is_old(&self, doubted: bool) -> bool {
        let age = self.read_at.map(|read| read.elapsed());
        let most = if doubted || self.problem.is_some() { RECHECK_PAUSE } else { REREAD_AFTER };
        let ends = self.good.as_ref().and_then(|good| good.issued.as_ref()?.expires);
        let ends_soon = ends.is_some_and(|it| it <= SystemTime::now() + RENEW_BEFORE);
        // A hanging plugin is not run for every request.
        let may_run = age.is_none_or(|age| age >= RECHECK_PAUSE);
        age.is_none_or(|age| age >= most) || (ends_soon && may_run)
    }
}

impl Credentials {
    pub fn new(locations: Locations) -> Self {
        Self { locations, refreshing: tokio::sync::Mutex::default(), state: Mutex::default() }
    }

    pub const fn locations(&self) -> &Locations {
        &self.locations
    }

    /// Returns an error if a setting is invalid, and a warning for each file that cannot be used now, which may change.
    /// It takes a few seconds at most, even if a file hangs, and runs no plugin.
    pub fn check(&self) -> Result<Vec<String>, String> {
        match read_task::gather_within_timeout(&self.locations) {
            Some(Err(GatherError::Wrong(why))) => Err(why),
            Some(Err(GatherError::Unreadable(all))) => Ok(all),
            None => Ok(vec!["its files cannot be read in time; does their file system hang?".to_owned()]),
            Some(Ok(contents)) => Ok(contents.problems(&self.locations)),
        }
    }

    /// The credentials in force. After a 401 they are `doubted`, and unchanged files are read again.
    pub async fn current(&self, doubted: bool) -> Result<Arc<ConnectionCredentials>, String> {
        let good = self.lock_state().good.clone();
        match (self.refreshing.try_lock(), good) {
            (Ok(mut reading), _) => self.refresh(&mut reading, doubted).await,
            // Another task is refreshing.
            (Err(_), Some(good)) => return Ok(good),
            (Err(_), None) => drop(self.refreshing.lock().await),
        }
        let state = self.lock_state();
        let problem =
            || state.problem.as_ref().map_or("nothing was read yet", |(problem, _)| problem).to_owned();
        state.good.clone().ok_or_else(problem)
    }

    /// The last good credentials, for a caller that must not wait for a file or program.
    pub fn last_good(&self) -> Option<Arc<ConnectionCredentials>> {
        self.lock_state().good.clone()
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, CredentialState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the files, and reads them if they changed or are old.
    async fn refresh(&self, pending: &mut Option<ReadTask>, doubted: bool) {
        let (before, is_old, seen) = {
            let state = self.lock_state();
            (state.good.clone(), state.is_old(doubted), state.files.clone())
        };
        // A hanging read has used up its time; only poll whether it has ended.
        let patience = if pending.is_some() { Duration::ZERO } else { read_task::READ_TIMEOUT };
        let mut reading = pending.take().unwrap_or_else(|| ReadTask::begin(&self.locations, seen, is_old));
        let (gathered, seen) = match reading.wait_for_outcome(patience).await {
            Some(Ok(None)) => return,
            Some(Ok(Some((gathered, seen)))) => (gathered.map_err(GatherError::into_text), Some(seen)),
            Some(Err(error)) => (Err(error.to_string()), None),
            None => {
                let hangs = reading.describe_hang();
                *pending = Some(reading);
                (Err(hangs), None)
            }
        };
        self.lock_state().is_hanging = pending.is_some();
        let shown = match gathered {
            Ok(gathered) => build_credentials(gathered, before, doubted).await,
            Err(why) => Err(why),
        };
        self.store_outcome(shown, seen);
    }

    fn store_outcome(
        &self,
        shown: Result<Arc<ConnectionCredentials>, String>,
        seen: Option<Vec<FileSnapshot>>,
    ) {
        let mut state = self.lock_state();
        state.read_at = Some(Instant::now());
        if let Some(seen) = seen {
            state.files = seen;
        }
        match shown {
            Ok(shown) => {
                if state.problem.take().is_some() {
                    tracing::info!(kind = shown.kind, "credentials are good again");
                }
                state.good = Some(shown);
            }
            Err(why) => {
                let is_new = state.problem.as_ref().is_none_or(|(known, _)| *known != why);
                if is_new {
                    self.log_problem(&why, &state);
                    state.problem = Some((why, SystemTime::now()));
                }
            }
        }
    }

    fn log_problem(&self, error: &str, state: &CredentialState) {
        let keeps_old = state.good.is_some();
        if self.locations.is_optional && state.is_absent() {
            tracing::debug!(error, "no credentials there");
        } else {
            let files: Vec<_> = state.files.iter().map(|seen| seen.path.as_path()).collect();
            tracing::warn!(error, ?files, keeps_old, "credentials cannot be read");
        }
    }

    /// The state of the credentials; `None` if the files are optional and none was ever found.
    pub fn report(&self) -> Option<Report> {
        let kept = self.lock_state();
        let is_nothing = self.locations.is_optional && kept.good.is_none() && kept.is_absent();
        (!is_nothing).then(|| kept.report())
    }
}

impl CredentialState {
    fn is_absent(&self) -> bool {
        !self.is_hanging && self.files.iter().all(|seen| seen.modified_at().is_none())
    }

    fn report(&self) -> Report {
        Report {
            kind: self.good.as_ref().map_or("none", |good| good.kind),
            files: self.files.iter().map(|seen| (seen.path.clone(), seen.modified_at())).collect(),
            expires: self.good.as_ref().and_then(|good| good.expires),
            problem: self.problem.clone(),
        }
    }
}

fn gather_into(locations: &Locations, files: &mut FileReader) -> Result<FileContents, GatherError> {
    let context = locations.kubeconfig.as_deref().map(|path| Context::read(path, files)).transpose()?;
    let wrong =
        || GatherError::Wrong("there is no certificate authority: set `ca_file` or `kubeconfig`".to_owned());
    let authorities = match (&locations.ca_file, &context) {
        (Some(path), _) => files.read(path).map_err(GatherError::for_file),
        (None, Some(context)) => context.authorities(files),
        (None, None) => return Err(wrong()),
    };
    let client = match (&locations.identity, &context) {
        (Some(identity), _) => read_identity(identity, files),
        (None, Some(context)) => context.client(files),
        (None, None) => Ok(Client::default()),
    };
    let (authorities, client) = join_results(authorities, client)?;
    let server = match &context {
        Some(context) if locations.asks_for_server => Some(context.server().map_err(GatherError::Wrong)?),
        _ => None,
    };
    let named = locations.tls_server_name.clone();
    let tls_server_name = named.or_else(|| context.as_ref().and_then(Context::tls_server_name));
    Ok(FileContents { authorities, client, server, tls_server_name })
}

fn read_identity(identity: &ClientIdentity, files: &mut FileReader) -> Result<Client, GatherError> {
    match identity {
        ClientIdentity::TokenFile(path) => {
            Ok(Client { token: Some(read_token(path, files)?), ..Client::default() })
        }
        ClientIdentity::Certificate { certificate_file, key_file } => {
            let certificate = files.read(certificate_file).map_err(GatherError::for_file);
            let key = files.read(key_file).map_err(GatherError::for_file);
            Ok(Client { pair: Some(join_results(certificate, key)?), ..Client::default() })
        }
    }
}

/// Reads a token without the line end that editors and `echo` add.
fn read_token(path: &Path, files: &mut FileReader) -> Result<String, GatherError> {
    let text = files.read_text(path).map_err(GatherError::for_file)?;
    let token = text.trim();
    let unreadable = |what| GatherError::for_file(format!("{}: {what}", path.display()));
    match token {
        "" => Err(unreadable("is empty")),
        _ if token.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(token.to_owned()),
        _ => Err(unreadable("is not a token: it has spaces or control characters inside")),
    }
}

/// Builds the credentials of these files. Unchanged contents keep the old ones, so that TLS sessions can resume.
async fn build_credentials(
    gathered: FileContents,
    before: Option<Arc<ConnectionCredentials>>,
    doubted: bool,
) -> Result<Arc<ConnectionCredentials>, String> {
    let same = before.filter(|before| before.contents == gathered);
    let issued = match &gathered.client.plugin {
        None => None,
        Some(plugin) => Some(issue_credential(plugin, same.as_deref(), doubted).await?),
    };
    match same {
        Some(same) if same.issued == issued => Ok(same),
        _ => ConnectionCredentials::new(gathered, issued).map(Arc::new),
    }
}

async fn issue_credential(
    plugin: &Plugin,
    before: Option<&ConnectionCredentials>,
    doubted: bool,
) -> Result<IssuedCredential, String> {
    let lasts =
        |issued: &&IssuedCredential| issued.expires.is_none_or(|it| it > SystemTime::now() + RENEW_BEFORE);
    match before.and_then(|before| before.issued.as_ref()).filter(lasts) {
        Some(issued) if !doubted => Ok(issued.clone()),
        _ => plugin.run().await,
    }
}

impl ConnectionCredentials {
    fn new(from: FileContents, issued: Option<IssuedCredential>) -> Result<Self, String> {
        let client = &from.client;
        let token = issued.as_ref().and_then(|it| it.token.as_ref()).or(client.token.as_ref());
        let pair = issued.as_ref().and_then(|it| it.pair.as_ref()).or(client.pair.as_ref());
        let kind = match (&issued, token, pair) {
            (Some(_), _, _) => "exec plugin",
            (None, Some(_), None) => "token",
            (None, None, Some(_)) => "client certificate",
            (None, Some(_), Some(_)) => "token and client certificate",
            (None, None, None) => "anonymous request",
        };
        let ends = [
            issued.as_ref().and_then(|it| it.expires),
            token.and_then(|token| expiry::token_expiry(token)),
            pair.and_then(|(certificate, _)| expiry::certificate_expiry(certificate)),
        ];
        Ok(Self {
            tls: tls::client_config(&from.authorities, pair.map(ClientKeyPair::from_pem).as_ref())?,
            authorization: token.map(|token| bearer_header(token)).transpose()?,
            server_name: from.tls_server_name.as_deref().map(parse_server_name).transpose()?,
            server: from.server.map(ApiserverUrl::address),
            kind,
            expires: ends.into_iter().flatten().min(),
            contents: from,
            issued,
        })
    }
}

fn bearer_header(token: &str) -> Result<HeaderValue, String> {
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.map_err(|_| "the token has characters that no header may have".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

/// Parses a name that a certificate can contain.
pub fn parse_server_name(name: &str) -> Result<ServerName<'static>, String> {
    let parsed = ServerName::try_from(name.to_owned());
    parsed.map_err(|_| format!("tls_server_name {name:?} is neither a DNS name nor an IP address"))
}
