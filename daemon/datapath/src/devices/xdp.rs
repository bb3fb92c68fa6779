//! The program at a device's driver (XDP), for frames of which the kernel has made no packets yet.
//!
//! Invariant: a program of another owner is never replaced. A device is told to pass frames on only while its program
//! is there, its driver sends what programs give it, and the program can see of which VLAN a frame is; the caller tells
//! it to stop before the program is taken away. Whatever is known to be in the way keeps the program from coming, since
//! some drivers stop for a moment where one comes. What is not passed on goes to the programs of packets as it came.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

use super::driver::{self, Driver};
use super::link::Link;
use super::{XdpState, XdpUse};
use crate::bpf_call;

/// Why packets do not pass at a driver.
type Reason = Cow<'static, str>;

const NO_DRIVER: &str = "its driver has no place for such a program";
const OF_OTHERS: &str = "a program of another owner is there";
const OF_MEMBERS: &str = "its frames come by its members";
const NO_TAGS: &str = "it takes VLAN tags off before a program can see them (`ethtool -K DEVICE rxvlan off`, and rx-vlan-stag-hw-parse)";
const NO_SENDER: &str =
    "it does not send what programs give it, as a veth without GRO or a program at its other end";
const NOT_TOLD: &str = "this kernel does not tell whether it sends what programs give it (Linux before 6.3)";
const NOT_YET: &str = "it was not tried yet";

/// How many looks lie between two attempts at most. Some drivers stop for a moment at each.
const GAP_MAX: u32 = 64;

/// In how many looks in a row the program may be there for nothing, before it is taken away again.
const VAIN_MAX: u32 = 3;

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
    // In how many looks in a row it was there for nothing.
    vain: u32,
}

impl Place {
    /// What a former daemon left, if it left something.
    pub(super) fn open(pin: &Path) -> Self {
        let state = XdpState::Not(Cow::Borrowed(NOT_YET));
        Self { link: Link::open(pin).ok(), own: None, state, again: 0, gap: 0, vain: 0 }
    }

    pub(super) const fn state(&self) -> &XdpState {
        &self.state
    }

    /// Whether a program of ours is at the driver.
    pub(super) const fn is_there(&self) -> bool {
        self.link.is_some()
    }

    /// Whether frames are passed on.
    pub(super) const fn passes_frames(&self) -> bool {
        matches!(self.state, XdpState::Taken)
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

    /// Whether there is a program that is not to be there. It is taken away before [`Self::put`].
    pub(super) fn is_to_go(&self, wanted: XdpUse) -> bool {
        self.link.is_some() && wanted == XdpUse::Never
    }

    /// Whether the program has been there for nothing long enough.
    pub(super) fn is_in_vain(&self) -> bool {
        self.link.is_some() && self.vain >= VAIN_MAX
    }

    /// Has the program there if that is wanted.
    pub(super) fn put(
        &mut self,
        wanted: XdpUse,
        index: u32,
        program: Result<BorrowedFd<'_>, &String>,
        pin: &Path,
    ) {
        (self.again, self.gap) = (0, 0);
        let attached = match (wanted, program) {
            (XdpUse::Never, _) => {
                (self.state, self.vain) = (XdpState::Unwanted, 0);
                return;
            }
            (_, Err(why)) => Err(Cow::Owned(why.clone())),
            (_, Ok(program)) => self.attach(index, program, pin),
        };
        match attached {
            Ok(()) => self.look(index),
            Err(why) => self.state = XdpState::Not(why),
        }
    }

    fn attach(&mut self, index: u32, program: BorrowedFd<'_>, pin: &Path) -> Result<(), Reason> {
        let own = bpf_call::program_number(program).map_err(|error| why(&error))?;
        if self.program_at(index).is_some() {
            self.own = Some(own);
            return self.update(program, pin).map_err(|error| why(&error));
        }
        let driver = Driver::of(index).map_err(|error| why(&error))?;
        if let Some(why) = in_the_way(&driver, index) {
            self.vain = 0;
            return Err(Cow::Borrowed(why));
        }
        let link = self.attach_anew(index, program, &driver)?;
        link.keep(pin).map_err(|error| why(&error))?;
        (self.link, self.own) = (Some(link), Some(own));
        Ok(())
    }

    fn update(&self, program: BorrowedFd<'_>, pin: &Path) -> io::Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        link.update(program)?;
        if pin.exists() { Ok(()) } else { link.keep(pin) }
    }

    fn attach_anew(&self, index: u32, program: BorrowedFd<'_>, driver: &Driver) -> Result<Link, Reason> {
        if let Some(why) = self.no_sender(driver, index) {
            return Err(Cow::Borrowed(why));
        }
        let target = i32::try_from(index).unwrap_or(i32::MAX);
        let created = bpf_call::create_link(program, target, sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE);
        created.map(Link).map_err(|error| why(&error))
    }

    /// Why the driver would not send frames, as far as that is known before the program is there. Some kernels tell it
    /// of hardware only while one is.
    fn no_sender(&self, driver: &Driver, index: u32) -> Option<&'static str> {
        match driver::sends_frames(index) {
            Err(_) => Some(NOT_TOLD),
            Ok(sends) if driver.is_veth() => (!sends).then_some(NO_SENDER),
            Ok(_) => (self.vain >= VAIN_MAX).then_some(NO_SENDER),
        }
    }

    /// Looks at what decides whether the program, which is there, may pass frames on.
    pub(super) fn look_now(&mut self, index: u32) {
        self.state = match Driver::of(index) {
            Ok(driver) => state_of(&driver, index),
            Err(error) => XdpState::Not(why(&error)),
        };
    }

    /// Does the same, and counts the looks in which the program was there for nothing. A look that a notice has caused
    /// does not count: a driver that is set anew gives several at once.
    fn look(&mut self, index: u32) {
        self.look_now(index);
        self.vain = if self.passes_frames() { 0 } else { self.vain.saturating_add(1) };
    }

    /// Puts back what was taken away, and looks at the device again if that is due: the kernel answers under a lock
    /// that all changes of devices share. `true`: something was put back.
    pub(super) fn mend(
        &mut self,
        wanted: XdpUse,
        index: u32,
        program: Result<BorrowedFd<'_>, &String>,
        (pin, is_due): (&Path, bool),
    ) -> bool {
        if wanted == XdpUse::Never {
            return false;
        }
        if self.program_at(index).is_some_and(|found| Some(found) == self.own) && pin.exists() {
            if is_due {
                self.look(index);
            }
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
        was_there && self.passes_frames()
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

/// What keeps every program at a device from passing frames on. Both ends of a veth are this host's: tags stay on there
/// as long as no VLAN stands on the other end.
fn in_the_way(driver: &Driver, index: u32) -> Option<&'static str> {
    if driver.has_members() {
        return Some(OF_MEMBERS);
    }
    (!driver.is_veth() && !driver::knows_tags(index).unwrap_or(false)).then_some(NO_TAGS)
}

/// Whether frames may pass at a device that has the program.
fn state_of(driver: &Driver, index: u32) -> XdpState {
    if !driver.has_program {
        return XdpState::Not(Cow::Borrowed(NO_DRIVER));
    }
    let why = in_the_way(driver, index).or_else(|| {
        driver::sends_frames(index).map_or(Some(NOT_TOLD), |sends| (!sends).then_some(NO_SENDER))
    });
    why.map_or(XdpState::Taken, |why| XdpState::Not(Cow::Borrowed(why)))
}

fn is_of_others(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn why(error: &io::Error) -> Reason {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Cow::Borrowed(NO_DRIVER),
        _ if is_of_others(error) => Cow::Borrowed(OF_OTHERS),
        _ => Cow::Owned(format!("cannot attach its program: {error}")),
    }
}
