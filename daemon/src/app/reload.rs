//! Reloads the configuration, for a signal or for a client at the unix socket.
//!
//! Invariant: a reload applies as a whole or not at all. A reload reported as failed changes nothing, then or later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use holdfast_core::event::Event;
use tokio::sync::mpsc;

use super::{AppError, ConfigSenders, EffectiveSenders, LoadedConfig, Reload, load_edition, settings, start};
use holdfast_agent::drains::stamp_order;
use holdfast_agent::node;
use holdfast_agent::readings::{RefusedReload, Requester, StartOutcome};
use holdfast_agent::systemd;
use holdfast_api::{ForgetRequest, Peer, ReloadOutcome, ReloadRequest};
use holdfast_config::{Config, ConfigErrors, ConfigFile};
use holdfast_host::logging::Logging;
use holdfast_host::logging::messages::{self, say};
use holdfast_kubernetes::apiserver::Access;

/// How long a reload waits for its files and for a slot in the engine's queue: less than a client of the socket
/// waits.
const RELOAD_WAIT: Duration = Duration::from_secs(7);

pub(super) const RELOAD_TIMED_OUT: &str =
    "reading its files or resizing the maps took more than seven seconds";

impl Reload {
    /// Takes the parts that a reload updates, as the first configuration made them.
    pub(super) fn new(
        file: &ConfigFile,
        (config, editions): ConfigSenders,
        logging: Arc<Logging>,
        access: Option<Access>,
        events: mpsc::Sender<Vec<Event>>,
        (effective, blocks, refused): EffectiveSenders,
    ) -> Self {
        Self {
            file: file.clone(),
            logging,
            refusal: refused,
            in_force_since: Mutex::new(super::now()),
            config,
            editions,
            effective,
            blocks,
            access,
            events,
        }
    }

    /// Reloads the configuration as a whole or not at all. Once it is not wanted, it does not apply: its client got
    /// an error.
    pub(super) async fn reload_config(
        &self,
        peer: Option<Peer>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<ReloadOutcome, String> {
        systemd::notify_reloading();
        let done = self.try_reload(is_wanted).await;
        let refused = match &done {
            Ok(_) => None,
            Err((why, start)) => {
                say!(error, messages::NOT_RELOADED, error = %why);
                Some(self.describe_refusal(why, *start, peer).await)
            }
        };
        self.refusal.send_replace(refused);
        systemd::notify_reloaded();
        done.map_err(|(why, _)| why)
    }

    async fn describe_refusal(&self, why: &str, start: StartOutcome, peer: Option<Peer>) -> RefusedReload {
        let by = match peer {
            Some(Peer { uid, pid }) => Some(Requester { order: stamp_order(uid).await, pid }),
            None => None,
        };
        let in_force_since = *self.in_force_since.lock().unwrap_or_else(PoisonError::into_inner);
        RefusedReload { why: why.to_owned(), at: super::now(), by, in_force_since, start }
    }

    /// Nothing slow runs between asking whether it is wanted and applying it.
    async fn try_reload(
        &self,
        is_wanted: impl Fn() -> bool,
    ) -> Result<ReloadOutcome, (String, StartOutcome)> {
        let unknown = |why: &str| (why.to_owned(), StartOutcome::Unknown);
        let judge = |error: AppError| (error.to_string(), start_outcome(&error));
        let prepared = tokio::time::timeout(RELOAD_WAIT, self.prepare()).await;
        let (reread, room) = prepared.map_err(|_| unknown(RELOAD_TIMED_OUT))?.map_err(judge)?;
        if !is_wanted() {
            return Err(unknown("its client no longer waits"));
        }
        self.follow_apiservers(&reread.config).await.map_err(judge)?;
        Ok(ReloadOutcome { restart_keys: self.apply(reread, room) })
    }

    pub(super) async fn answer_reload(&self, ReloadRequest { peer, answer }: ReloadRequest) {
        tracing::info!(uid = peer.uid, pid = peer.pid, "a client requested a reload");
        if !answer.is_closed() {
            let done = self.reload_config(Some(peer), || !answer.is_closed()).await;
            // A client that left at the last moment finds the outcome in the log.
            let _ = answer.send(done);
        }
    }

    /// Forgets the address that a request names. Without an apiserver, the request gets no response.
    pub(super) async fn answer_forget(&self, ForgetRequest { peer, address, answer }: ForgetRequest) {
        let Some(access) = &self.access else { return };
        let outcome = access.forget_endpoint(address).await;
        let uid = peer.uid;
        let pid = peer.pid;
        match &outcome {
            Ok(None) => tracing::info!(uid, pid, %address, "a learned address was forgotten on request"),
            Ok(Some(error)) => {
                tracing::warn!(uid, pid, %address, error, "a learned address was forgotten, but not on disk yet");
            }
            Err(why) => tracing::info!(uid, pid, %address, %why, "a learned address is not forgotten"),
        }
        let _ = answer.send(outcome);
    }

    /// The loaded configuration and a slot in the engine's queue; `None` if the engine was stopped.
    async fn prepare(&self) -> Result<(LoadedConfig, Option<mpsc::Permit<'_, Vec<Event>>>), AppError> {
        let reread = self.load().await?;
        Ok((reread, self.events.reserve().await.ok()))
    }

    async fn load(&self) -> Result<LoadedConfig, AppError> {
        // The file system may hang.
        let file = self.file.clone();
        let loading = tokio::task::spawn_blocking(move || file.reload());
        let (config, warnings) = loading.await.map_err(|error| AppError::Runtime(error.into()))??;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        check_restartable(&config)?;
        let (in_force, _) = self.config.borrow().merge_reload(config.clone());
        in_force.check_admin_address().map_err(AppError::NeedsRestart)?;
        let blocks = settings::parse_blocks(&in_force, &self.file.path)?;
        start::warn_about_missing(&config);
        let path = self.file.path.clone();
        let reading = tokio::task::spawn_blocking(move || load_edition(&path));
        let edition = reading.await.map_err(|error| AppError::Runtime(error.into()))?;
        Ok(LoadedConfig { config, blocks, edition })
    }

    /// Applies new addresses and credentials of the apiserver, if one is used.
    async fn follow_apiservers(&self, config: &Config) -> Result<(), AppError> {
        let Some(access) = self.access.clone() else { return Ok(()) };
        let sources = settings::apiserver_sources(config);
        // The reload reads files, and their file system may hang.
        let reload = tokio::task::spawn_blocking(move || access.reload(&sources));
        Ok(reload.await.map_err(|error| AppError::Runtime(error.into()))??)
    }

    /// Puts a loaded configuration in force, and returns the keys that wait for a restart.
    fn apply(
        &self,
        LoadedConfig { config, blocks, edition }: LoadedConfig,
        room: Option<mpsc::Permit<'_, Vec<Event>>>,
    ) -> Vec<&'static str> {
        let (config, waiting) = self.config.borrow().merge_reload(config);
        if !waiting.is_empty() {
            say!(warn, messages::RESTART_NEEDED, keys = waiting.join(", "));
        }
        *self.in_force_since.lock().unwrap_or_else(PoisonError::into_inner) = super::now();
        self.logging.set_level(config.log.level);
        self.effective.send_replace(Arc::new(settings::effective_config(&config)));
        self.config.send_replace(Arc::new(config));
        self.editions.send_replace(Arc::new(edition));
        if let Some(room) = room {
            room.send(vec![self.settings_event()]);
        }
        self.blocks.send_replace(Arc::new(blocks));
        say!(info, messages::RELOADED);
        waiting
    }

    /// Sends the engine the settings in force, with the apiserver's current addresses: none of them becomes a
    /// frontend.
    pub(super) async fn send_settings(&self) {
        send_event(&self.events, self.settings_event()).await;
    }

    fn settings_event(&self) -> Event {
        let apiservers = settings::apiserver_addresses(self.access.as_ref());
        Event::SettingsApplied(Arc::new(settings::engine_settings(&self.config.borrow(), apiservers)))
    }
}

/// What a start does with a file that a reload refuses for this reason.
const fn start_outcome(error: &AppError) -> StartOutcome {
    match error {
        AppError::NeedsRestart(_) => StartOutcome::Unknown,
        error if error.exit_code() == ConfigErrors::EXIT_CODE => StartOutcome::Fails,
        _ => StartOutcome::Unknown,
    }
}

/// A reload refuses what a restart would refuse. Otherwise the daemon would fail at its next start, when no operator
/// looks, and stay down.
fn check_restartable(config: &Config) -> Result<(), AppError> {
    node::name(config)?;
    if config.kubernetes.enabled {
        Access::check_config(&config.apiserver)?;
    }
    Ok(())
}

async fn send_event(events: &mpsc::Sender<Vec<Event>>, event: Event) {
    // The engine receives until it is stopped; after that no event matters.
    let _ = events.send(vec![event]).await;
}
