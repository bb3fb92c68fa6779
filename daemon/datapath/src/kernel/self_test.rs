//! The self-test: with the programs attached, a probe frontend is translated and the daemon's own sockets are not.
//!
//! Invariant: the probe uses a port index and slot that no service can have, at a loopback address that no service may
//! claim, and is removed after the test. A failed test undoes the start.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::num::NonZeroU16;
use std::os::unix::process::CommandExt;
use std::process::Command;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::{Scope, Slot, SlotState};
use holdfast_core::op::{FrontendType, FrontendValue, QuotaId, Word};

use super::{Attachment, KernelMaps};
use crate::abi::{FrontendBytes, types};
use crate::pins::ProgramKind;
use crate::sys;

/// Nothing listens here, so an untranslated connect is refused at once.
const PROBE_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 255, 104, 102);

/// The base of the child's exit error: plus 1 if its plain connect reached the backend, plus 2 if its marked one did.
const CHILD_CODE: i32 = 1 << 20;

/// The datapath does not work as it must.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The test itself failed.
    #[error("cannot {attempt} for the self-test: {source}")]
    Setup {
        /// The failed step, as a verb with its object.
        attempt: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The probe frontend was not written.
    #[error("cannot write the self-test's frontend: {0:#}")]
    Map(#[source] libbpf_rs::Error),
    /// Clients would not be served.
    #[error("a client in {} is not translated; another program may decide before ours", cgroup.display())]
    NotTranslated {
        /// The cgroup of the client.
        cgroup: std::path::PathBuf,
    },
    /// The daemon would cut itself off.
    #[error("sockets with the mark {mark:#x} are translated, so this daemon could cut itself off")]
    MarkTranslated {
        /// The mark of this daemon's sockets.
        mark: u32,
    },
    /// The daemon would cut itself off although programs exempt its mark.
    #[error("sockets of this daemon's cgroup are translated, so it could cut itself off")]
    CgroupTranslated,
}

fn setup_error(attempt: &'static str) -> impl FnOnce(io::Error) -> SelfTestError {
    move |source| SelfTestError::Setup { attempt, source }
}

/// Which of two connects reached the backend.
#[derive(Clone, Copy, Debug)]
struct ConnectProbe {
    plain: bool,
    marked: bool,
}

impl KernelMaps {
    /// Tests with real sockets that clients are translated and this daemon is not. After a failure this start is
    /// undone: clients are served as before, or not at all if they were not.
    pub fn self_test(&mut self) -> Result<(), SelfTestError> {
        let outcome = self.run_self_test();
        match (&outcome, &mut self.attached) {
            (Ok(()), Some(attached)) => attached.links.discard_former(),
            (Err(_), Some(_)) => self.undo_start(),
            _ => {}
        }
        outcome
    }

    /// Undoes the start as far as possible. It reports no error of its own, only the test's counts.
    fn undo_start(&mut self) {
        let Some(Attachment { pins, mut links, former_control, .. }) = self.attached.take() else {
            return;
        };
        self.shared.write_control(&former_control);
        pins.remove_programs(ProgramKind::Sockets);
        if links.undo_attach(&pins) {
            let _ = pins.remove_all();
        }
    }

    fn run_self_test(&mut self) -> Result<(), SelfTestError> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(setup_error("listen on the loopback"))?;
        let port = listener.local_addr().map_err(setup_error("listen on the loopback"))?.port();
        let Some(port) = NonZeroU16::new(port) else { return Ok(()) };
        let key = FrontendKey { address: PROBE_ADDRESS.into(), port, transport: Transport::Tcp };
        let slot = Slot { address: Ipv4Addr::LOCALHOST.into(), port, state: SlotState::Active };
        self.insert_probe(&key, slot).map_err(SelfTestError::Map)?;
        let outcome = self.check_translation(SocketAddrV4::new(PROBE_ADDRESS, port.get()));
        if let Some(attached) = &self.attached {
            self.shared.write_control(&attached.control);
        }
        self.remove_probe(&key).map_err(SelfTestError::Map)?;
        outcome
    }

    fn insert_probe(&mut self, key: &FrontendKey, slot: Slot) -> Result<(), libbpf_rs::Error> {
        let (index, range) = self.generation.probe_slot(Family::V4);
        self.generation.fill_range(range, std::iter::once(slot));
        let word = Word { base: range.base, count: range.count, ..Word::EMPTY };
        self.generation.publish_word(index, Scope::Cluster, word);
        let value = FrontendValue { port: index, kind: FrontendType::Static, quota: QuotaId::default() };
        let bytes = FrontendBytes::new(key);
        self.shared.note_inserted(key);
        self.generation.frontends_mut(Family::V4).put(bytes.key(), &bytes.value_bytes(value))
    }

    fn remove_probe(&mut self, key: &FrontendKey) -> Result<(), libbpf_rs::Error> {
        let (index, range) = self.generation.probe_slot(Family::V4);
        let removed = self.generation.frontends_mut(Family::V4).remove(FrontendBytes::new(key).key());
        self.generation.publish_word(index, Scope::Cluster, Word::EMPTY);
        self.generation.fill_range(range, std::iter::empty());
        removed.map(drop)
    }

    fn check_translation(&self, probe: SocketAddrV4) -> Result<(), SelfTestError> {
        let Some(Attachment { links, control, .. }) = &self.attached else { return Ok(()) };
        let cgroup = links.site().path();
        if control.exempt_cgroup != 0 && can_reach(probe, 0)? {
            return Err(SelfTestError::CgroupTranslated);
        }
        // This cgroup is not exempt for a moment, which is harmless: the daemon has no unmarked socket yet.
        self.shared.write_control(&types::control { exempt_cgroup: 0, ..self.shared.control() });
        let mark = control.exempt_mark;
        let here = ConnectProbe { plain: can_reach(probe, 0)?, marked: mark != 0 && can_reach(probe, mark)? };
        let reached = if here.plain { here } else { probe_from_cgroup(cgroup, probe, mark)? };
        if !reached.plain {
            return Err(SelfTestError::NotTranslated { cgroup: cgroup.to_owned() });
        }
        if reached.marked { Err(SelfTestError::MarkTranslated { mark }) } else { Ok(()) }
    }
}

/// Whether a connect reaches the backend, which only a translated one does.
fn can_reach(probe: SocketAddrV4, mark: u32) -> Result<bool, SelfTestError> {
    match sys::connect(probe, mark) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            let dropped = "nothing answers within two seconds; a firewall may drop packets of the loopback";
            Err(setup_error("connect on the loopback")(io::Error::new(io::ErrorKind::TimedOut, dropped)))
        }
        Err(error) => Err(setup_error("connect on the loopback")(error)),
    }
}

/// Tests connects from a child in that cgroup, for a daemon outside of it.
fn probe_from_cgroup(
    cgroup: &std::path::Path,
    probe: SocketAddrV4,
    mark: u32,
) -> Result<ConnectProbe, SelfTestError> {
    let open = |name| OpenOptions::new().write(true).open(cgroup.join(name));
    let files: Vec<File> = ["cgroup.procs", "cgroup.threads"].into_iter().flat_map(open).collect();
    let dial = move || {
        // A threaded cgroup admits a process by the second file only.
        if !files.iter().any(|mut file| file.write_all(b"0").is_ok()) {
            return io::Error::from(io::ErrorKind::PermissionDenied);
        }
        let plain = i32::from(sys::connect(probe, 0).is_ok());
        let marked = i32::from(mark != 0 && sys::connect(probe, mark).is_ok());
        io::Error::from_raw_os_error(CHILD_CODE + plain + 2 * marked)
    };
    let mut child = Command::new("/proc/self/exe");
    // SAFETY: after the fork the child makes only system calls, on files opened before. It never executes the program:
    // the error that it always returns carries the result.
    unsafe { child.pre_exec(move || Err(dial())) };
    let Err(error) = child.spawn() else {
        return Err(setup_error("ask a child")(io::ErrorKind::Other.into()));
    };
    match error.raw_os_error().and_then(|code| code.checked_sub(CHILD_CODE)) {
        Some(reached @ 0..=3) => Ok(ConnectProbe { plain: reached & 1 != 0, marked: reached & 2 != 0 }),
        _ => Err(setup_error("enter the cgroup")(error)),
    }
}
