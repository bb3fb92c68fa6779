//! The program at a device's driver (XDP), for frames of which the kernel has made no packets yet.
//!
//! Invariant: a program of another owner is never replaced. A device is told to pass frames on only while its program
//! is there, its driver sends what programs give it, and the program can see of which VLAN a frame is. What is not
//! passed on goes to the programs of packets as it came.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

use super::driver::{self, Driver, Mode};
use super::link::Link;
use crate::bpf_call;

/// At which devices packets may pass by the stack at the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpUse {
    #[default]
    Never,
    /// At those whose drivers have a place for programs.
    Native,
    /// At those, and at others behind their drivers.
    Generic,
}

/// Whether packets pass by the stack at a device's driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpState {
    /// They are not to.
    Unwanted,
    /// They do, as far as they pass by the stack at all.
    Taken(Mode),
    /// They do not, and why.
    Not(Cow<'static, str>),
}

const NO_DRIVER: &str = "its driver has no place for such a program";
const OF_OTHERS: &str = "a program of another owner is there";
const OF_MEMBERS: &str = "its frames come by its members";
const NO_TAGS: &str = "it takes VLAN tags off before a program can see them (`ethtool -K DEVICE rxvlan off`)";
const NO_SENDER: &str =
    "it does not send what programs give it, as a veth without GRO or a program at its other end";
const NOT_YET: &str = "it was not tried yet";

/// How many looks lie between two attempts at most. Some drivers stop for a moment at each.
const GAP_MAX: u32 = 64;

/// The program at one device, as far as it is there.
#[derive(Debug)]
pub(super) struct Place {
    link: Option<Link>,
    // The number of the program that is to be there.
    own: Option<u32>,
    state: XdpState,
    // In how many looks it is tried again, and how many lay before the last attempt.
    again: u32,
    gap: u32,
}

impl Place {
    /// What a former daemon left, if it left something.
    pub(super) fn open(pin: &Path) -> Self {
        let state = XdpState::Not(Cow::Borrowed(NOT_YET));
        Self { link: Link::open(pin).ok(), own: None, state, again: 0, gap: 0 }
    }

    pub(super) const fn state(&self) -> &XdpState {
        &self.state
    }

    /// Where frames are passed on.
    pub(super) const fn mode(&self) -> Option<Mode> {
        match self.state {
            XdpState::Taken(mode) => Some(mode),
            _ => None,
        }
    }

    fn program_at(&self, index: u32) -> Option<u32> {
        let place = self.link.as_ref()?.place().ok()?;
        (place.kind == sys::BPF_LINK_TYPE_XDP && place.device == index).then_some(place.program)
    }

    /// Puts another program in the place of ours where there is one, and attaches none anew.
    pub(super) fn replace(&mut self, index: u32, program: BorrowedFd<'_>) {
        if self.program_at(index).is_some()
            && let Some(link) = &self.link
            && link.update(program).is_ok()
        {
            self.own = bpf_call::program_number(program).ok();
        }
    }

    /// Has the program there, or takes it away.
    pub(super) fn put(
        &mut self,
        wanted: XdpUse,
        index: u32,
        program: Result<BorrowedFd<'_>, &String>,
        pin: &Path,
    ) {
        (self.again, self.gap) = (0, 0);
        match (wanted, program) {
            (XdpUse::Never, _) => {
                self.withdraw(pin);
                self.state = XdpState::Unwanted;
            }
            (_, Err(why)) => self.state = XdpState::Not(Cow::Owned(why.clone())),
            (_, Ok(program)) => self.attach(wanted, index, program, pin),
        }
    }

    fn attach(&mut self, wanted: XdpUse, index: u32, program: BorrowedFd<'_>, pin: &Path) {
        let attached = Driver::of(index).and_then(|driver| {
            if wanted == XdpUse::Native && driver.mode == Some(Mode::Generic) {
                self.withdraw(pin);
            }
            self.own = Some(bpf_call::program_number(program)?);
            match self.program_at(index) {
                Some(_) => self.update(program, pin),
                None => self.attach_anew(wanted, index, (program, &driver), pin),
            }
        });
        match attached {
            Ok(()) => self.look(index),
            Err(error) => self.state = XdpState::Not(why(&error)),
        }
    }

    fn update(&self, program: BorrowedFd<'_>, pin: &Path) -> io::Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        link.update(program)?;
        if pin.exists() { Ok(()) } else { link.keep(pin) }
    }

    fn attach_anew(
        &mut self,
        wanted: XdpUse,
        index: u32,
        (program, driver): (BorrowedFd<'_>, &Driver),
        pin: &Path,
    ) -> io::Result<()> {
        let target = i32::try_from(index).unwrap_or(i32::MAX);
        let create = |mode: Mode| bpf_call::create_link(program, target, sys::BPF_XDP, flags(mode));
        let native =
            if driver.has_members() { Err(io::Error::other(OF_MEMBERS)) } else { create(Mode::Native) };
        let created = match native {
            Err(error) if wanted == XdpUse::Generic && !is_of_others(&error) => create(Mode::Generic),
            native => native,
        };
        let link = Link(created?);
        link.keep(pin)?;
        self.link = Some(link);
        Ok(())
    }

    /// Looks at what decides whether the program, which is there, may pass frames on.
    fn look(&mut self, index: u32) {
        self.state = match Driver::of(index) {
            Ok(driver) => state_of(&driver, index),
            Err(error) => XdpState::Not(why(&error)),
        };
    }

    /// Looks at the device again, and puts back what was taken away. `true`: something was.
    pub(super) fn mend(
        &mut self,
        wanted: XdpUse,
        index: u32,
        program: Result<BorrowedFd<'_>, &String>,
        pin: &Path,
    ) -> bool {
        if wanted == XdpUse::Never {
            return false;
        }
        if self.program_at(index).is_some_and(|found| Some(found) == self.own) && pin.exists() {
            self.look(index);
            return false;
        }
        let was_there = self.own.is_some() && self.link.is_some();
        self.again = self.again.saturating_sub(1);
        if was_there || self.again == 0 {
            let gap = (2 * self.gap).clamp(1, GAP_MAX);
            self.link = self.link.take().filter(|link| link.place().is_ok_and(|place| place.device == index));
            self.put(wanted, index, program, pin);
            (self.again, self.gap) = (gap, gap);
        }
        was_there && self.mode().is_some()
    }

    /// Takes the program away.
    pub(super) fn withdraw(&mut self, pin: &Path) {
        if let Some(link) = self.link.take() {
            let _ = link.detach();
        }
        let _ = fs::remove_file(pin);
        self.own = None;
    }
}

/// Whether frames may pass at a device that has the program. Both ends of a veth are this host's: tags stay on there
/// as long as no VLAN stands on the other end.
fn state_of(driver: &Driver, index: u32) -> XdpState {
    let Some(mode) = driver.mode else { return XdpState::Not(Cow::Borrowed(NO_DRIVER)) };
    if !driver.is_veth() && !driver::knows_tags(index).unwrap_or(false) {
        return XdpState::Not(Cow::Borrowed(NO_TAGS));
    }
    if mode == Mode::Native && !driver.sends_frames(index) {
        return XdpState::Not(Cow::Borrowed(NO_SENDER));
    }
    XdpState::Taken(mode)
}

const fn flags(mode: Mode) -> u32 {
    match mode {
        Mode::Native => sys::XDP_FLAGS_DRV_MODE,
        Mode::Generic => sys::XDP_FLAGS_SKB_MODE,
    }
}

fn is_of_others(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn why(error: &io::Error) -> Cow<'static, str> {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Cow::Borrowed(NO_DRIVER),
        _ if is_of_others(error) => Cow::Borrowed(OF_OTHERS),
        _ => Cow::Owned(format!("cannot attach its program: {error}")),
    }
}
