//! Kills the real daemon at random moments: at its start, while maps grow, while it removes.
//!
//! Invariant: each life begins with new pins and small maps, so that growth happens again and again. Clients never
//! notice. A kill can hit any point of the code; the kills are spread over the measured time of a start.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_core::maps::{Capacity, Maps};
use holdfast_core::op::MapGrowth;
use holdfast_datapath::{KernelMaps, PINS_VERSION, ServedSockets, StaleSockets, StartOptions, cleanup};

use super::cluster::Cluster;
use super::{Dice, SoakBed, SoakError};
use crate::bed::BedError;
use crate::bed::daemon::Daemon;

/// The number of kills in one life.
const KILLS: u32 = 6;

/// Logs only warnings, because thousands of frontends come and go.
const QUIET: &str = "[log]\nlevel = \"warn\"\n";

/// The estimated time until a life is consistent, before it was measured.
const FIRST_SPAN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// The number of lives.
    pub lives: u64,
    /// How often the daemon was killed.
    pub kills: u64,
    /// Lives in which the maps grew, between kills or during one.
    pub growths: u64,
    /// Connects; all succeeded.
    pub connects: u64,
}

/// Starts lives until the time is over and clients have connected often enough.
pub fn kill_again_and_again(
    bed: &SoakBed,
    seed: u64,
    time: Duration,
    connects_min: u64,
) -> Result<Lives, SoakError> {
    let mut daemon = Daemon::new(&bed.bed, QUIET)?;
    Cluster::SMALL.write(&daemon, None)?;
    daemon.start()?;
    wait_for(&mut daemon, Cluster::SMALL)?;
    let mut life = Life { bed, dice: Dice::new(seed), lives: Lives::default(), span: FIRST_SPAN };
    bed.under_load(|connects| {
        let until = Instant::now() + time;
        loop {
            life.live(&mut daemon)?;
            life.lives.connects = connects.load(Ordering::Relaxed);
            if Instant::now() > until && life.lives.connects >= connects_min {
                return Ok(());
            }
            is_alive(connects, life.lives.connects)?;
        }
    })?;
    Ok(life.lives)
}

/// A dead client ends the run at once, not at the end of the time.
fn is_alive(connects: &AtomicU64, before: u64) -> Result<(), SoakError> {
    let until = Instant::now() + Duration::from_secs(10);
    while connects.load(Ordering::Relaxed) == before {
        if Instant::now() > until {
            return Err(SoakError::Differs("the clients do not connect any more".to_owned()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

struct Life<'a> {
    bed: &'a SoakBed,
    dice: Dice,
    lives: Lives,
    // The time from a start with a large table until all is written.
    span: Duration,
}

impl Life<'_> {
    /// One life: small maps, then kills, then an undisturbed daemon until its state is consistent.
    fn live(&mut self, daemon: &mut Daemon<'_>) -> Result<(), SoakError> {
        let former = daemon.pins();
        daemon.stop()?;
        daemon.move_pins(&format!("life-{}", self.lives.lives), QUIET)?;
        let mut cluster = Cluster::SMALL;
        cluster.write(daemon, None)?;
        daemon.start()?;
        wait_for(daemon, cluster)?;
        // From here on, only this life's programs serve.
        if let Some(error) = cleanup(&former)?.errors.pop() {
            return Err(error.into());
        }
        for kill in 0..KILLS {
            // Growth is under way at the first kills, and done at the last.
            let is_large = kill == 0 || kill == KILLS - 1;
            let next = if is_large { Cluster::large(&mut self.dice) } else { Cluster::any(&mut self.dice) };
            next.write(daemon, Some(cluster))?;
            cluster = self.replace_for_a_while(daemon, next)?;
            daemon.kill()?;
            self.lives.kills += 1;
            daemon.launch()?;
        }
        self.end(daemon, cluster)
    }

    /// Replaces the dialled service's list up to some moment.
    fn replace_for_a_while(
        &mut self,
        daemon: &Daemon<'_>,
        mut cluster: Cluster,
    ) -> Result<Cluster, SoakError> {
        let span = u64::try_from(self.span.as_micros()).unwrap_or(u64::MAX);
        let until = Instant::now() + Duration::from_micros(self.dice.below(span));
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(20).min(until - Instant::now()));
            let next = cluster.with_other_backends(&mut self.dice);
            next.write(daemon, Some(cluster))?;
            cluster = next;
        }
        Ok(cluster)
    }

    fn end(&mut self, daemon: &mut Daemon<'_>, cluster: Cluster) -> Result<(), SoakError> {
        let begun = Instant::now();
        wait_for(daemon, cluster)?;
        self.span = self.span.max(begun.elapsed());
        daemon.stop()?;
        cluster.check(&self.options(daemon).and_then(|options| Ok(KernelMaps::start(&options)?.dump()?))?)?;
        self.lives.lives += 1;
        self.lives.growths += u64::from(!daemon.pins().join(format!("v{PINS_VERSION}/g1")).exists());
        Ok(daemon.start()?)
    }

    /// Options of another process that takes over the daemon's state and returns it.
    fn options(&self, daemon: &Daemon<'_>) -> Result<StartOptions, SoakError> {
        Ok(StartOptions {
            cgroup: Some(self.bed.bed.cgroup().to_owned()),
            bpffs: daemon.pins(),
            capacity: Capacity::default(),
            mark: 0,
            expected: MapGrowth::default(),
            stale_sockets: StaleSockets::default(),
            served: ServedSockets::default(),
            packets: None,
        })
    }
}

/// Waits until every frontend is programmed. Each start reads the sources from the beginning, so the lists are new
/// too.
fn wait_for(daemon: &mut Daemon<'_>, cluster: Cluster) -> Result<(), SoakError> {
    let is_written = |daemon: &Daemon<'_>| {
        let Some(status) = daemon.status() else { return Ok::<_, BedError>(false) };
        let has_none =
            |key: &str| status.get(key).and_then(serde_json::Value::as_array).is_some_and(Vec::is_empty);
        let is_written = ["faults", "errors", "rejected"].into_iter().all(has_none);
        Ok(is_written
            && status.get("ready") == Some(&true.into())
            && status.get("frontends") == Some(&cluster.frontends().into()))
    };
    Ok(daemon.wait_until(is_written)?)
}
