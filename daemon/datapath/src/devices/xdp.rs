//! The XDP program at a device's driver, which sees frames before the kernel makes packets of them.
//!
//! Invariant: a foreign program is never replaced. A device's entry lets frames be redirected only while the program is
//! attached, the driver transmits redirected frames, and the program sees VLAN tags; the caller clears the flag before
//! it detaches. A known obstacle prevents attaching, because some drivers pause while a program attaches. Frames that
//! are not redirected reach the TC programs unchanged.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

use super::driver::{self, Driver};
use super::link::DeviceLink;
use super::{XdpState, XdpUse};
use crate::bpf_syscall;

/// Why the driver does not redirect frames.
type XdpReason = Cow<'static, str>;

const NO_DRIVER: &str = "its driver does not support XDP";
const FOREIGN_PROGRAM: &str = "a foreign XDP program is attached";
const BOND_MEMBERS: &str = "its frames arrive at its members";
const VLAN_OFFLOAD: &str = "it strips VLAN tags before the program sees them \
                            (`ethtool -K DEVICE rxvlan off`, and rx-vlan-stag-hw-parse)";
const NO_XMIT: &str =
    "it does not transmit redirected frames; a veth needs GRO, or a program at its other end";
const UNKNOWN_XMIT: &str =
    "this kernel does not report whether it transmits redirected frames (Linux before 6.3)";
const NOT_TRIED: &str = "it was not tried yet";

/// The most checks between two attempts. Some drivers pause at each.
const ATTEMPT_GAP_MAX: u32 = 64;

/// After so many ineffective checks in a row, the program is detached.
const INEFFECTIVE_CHECKS_MAX: u32 = 3;

#[derive(Debug)]
pub(super) struct XdpAttachment {
    link: Option<DeviceLink>,
    // The id of the program that belongs there.
    own: Option<u32>,
    state: XdpState,
    // Checks until the next attempt, and checks between the last two.
    next_attempt: u32,
    attempt_gap: u32,
    // Checks in a row that found the program ineffective.
    ineffective_checks: u32,
}

impl XdpAttachment {
    /// Opens the link that a former daemon pinned, if any.
    pub(super) fn open(pin: &Path) -> Self {
        let state = XdpState::Unavailable(Cow::Borrowed(NOT_TRIED));
        Self {
            link: DeviceLink::open(pin).ok(),
            own: None,
            state,
            next_attempt: 0,
            attempt_gap: 0,
            ineffective_checks: 0,
        }
    }

    pub(super) const fn state(&self) -> &XdpState {
        &self.state
    }

    pub(super) const fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    pub(super) const fn passes_frames(&self) -> bool {
        matches!(self.state, XdpState::Active)
    }

    fn attached_program(&self, index: u32) -> Option<u32> {
        let attachment = self.link.as_ref()?.attachment().ok()?;
        (attachment.kind == sys::BPF_LINK_TYPE_XDP && attachment.device == index)
            .then_some(attachment.program)
    }

    /// Replaces our program if there is one; attaches none.
    pub(super) fn replace_program(&mut self, index: u32, program: BorrowedFd<'_>) {
        if self.attached_program(index).is_some()
            && let Some(link) = &self.link
            && link.update(program).is_ok()
        {
            self.own = bpf_syscall::object_id(program).ok();
        }
    }

    /// Whether an unwanted program is attached. Detach it before [`Self::ensure_attached`].
    pub(super) fn must_detach(&self, wanted: XdpUse) -> bool {
        self.link.is_some() && wanted == XdpUse::Never
    }

    /// Whether the program has been ineffective for long enough.
    pub(super) fn is_ineffective(&self) -> bool {
        self.link.is_some() && self.ineffective_checks >= INEFFECTIVE_CHECKS_MAX
    }

    /// Notes that no program is wanted.
    pub(super) fn disable(&mut self) {
        (self.state, self.ineffective_checks) = (XdpState::Disabled, 0);
    }

    pub(super) fn ensure_attached(
        &mut self,
        index: u32,
        program: Result<BorrowedFd<'_>, &String>,
        pin: &Path,
    ) {
        (self.next_attempt, self.attempt_gap) = (0, 0);
        let attached = match program {
            Ok(program) => self.attach(index, program, pin),
            Err(reason) => Err(Cow::Owned(reason.clone())),
        };
        match attached {
            Ok(()) => self.check_state(index),
            Err(why) => self.state = XdpState::Unavailable(why),
        }
    }

    fn attach(&mut self, index: u32, program: BorrowedFd<'_>, pin: &Path) -> Result<(), XdpReason> {
        let own = bpf_syscall::object_id(program).map_err(|error| attach_reason(&error))?;
        if self.attached_program(index).is_some() {
            self.own = Some(own);
            return self.update_link(program, pin).map_err(|error| attach_reason(&error));
        }
        let driver = Driver::query(index).map_err(|error| attach_reason(&error))?;
        if let Some(why) = blocking_reason(&driver, index) {
            self.ineffective_checks = 0;
            return Err(Cow::Borrowed(why));
        }
        let link = self.create_link(index, program, &driver)?;
        link.replace_pin(pin).map_err(|error| attach_reason(&error))?;
        (self.link, self.own) = (Some(link), Some(own));
        Ok(())
    }

    fn update_link(&self, program: BorrowedFd<'_>, pin: &Path) -> io::Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        link.update(program)?;
        if pin.exists() { Ok(()) } else { link.replace_pin(pin) }
    }

    fn create_link(
        &self,
        index: u32,
        program: BorrowedFd<'_>,
        driver: &Driver,
    ) -> Result<DeviceLink, XdpReason> {
        if let Some(why) = self.xmit_refusal(driver, index) {
            return Err(Cow::Borrowed(why));
        }
        let target = i32::try_from(index).unwrap_or(i32::MAX);
        let created = bpf_syscall::create_link(program, target, sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE);
        created.map(DeviceLink).map_err(|error| attach_reason(&error))
    }

    /// Why the driver would not transmit redirected frames, if known before attaching. Some kernels report it for
    /// hardware only while a program is attached.
    fn xmit_refusal(&self, driver: &Driver, index: u32) -> Option<&'static str> {
        match driver::has_xdp_xmit(index) {
            Err(_) => Some(UNKNOWN_XMIT),
            Ok(sends) if driver.is_veth() => (!sends).then_some(NO_XMIT),
            Ok(_) => (self.ineffective_checks >= INEFFECTIVE_CHECKS_MAX).then_some(NO_XMIT),
        }
    }

    /// Determines anew whether the attached program may redirect frames.
    pub(super) fn refresh_state(&mut self, index: u32) {
        self.state = match Driver::query(index) {
            Ok(driver) => determine_state(&driver, index),
            Err(error) => XdpState::Unavailable(attach_reason(&error)),
        };
    }

    /// Refreshes the state and counts ineffective checks. Checks after a driver's notification do not count:
    /// reconfiguring a driver sends several at once.
    fn check_state(&mut self, index: u32) {
        self.refresh_state(index);
        self.ineffective_checks =
            if self.passes_frames() { 0 } else { self.ineffective_checks.saturating_add(1) };
    }

    /// Attaches a removed program again. Checks an intact one if that is due: the kernel answers under a lock that all
    /// device changes share. `true`: it attached the program again.
    pub(super) fn repair(
        &mut self,
        index: u32,
        program: Result<BorrowedFd<'_>, &String>,
        (pin, is_due): (&Path, bool),
    ) -> bool {
        if self.attached_program(index).is_some_and(|found| Some(found) == self.own) && pin.exists() {
            if is_due {
                self.check_state(index);
            }
            return false;
        }
        let was_there = self.own.is_some() && self.link.is_some();
        self.next_attempt = self.next_attempt.saturating_sub(1);
        if was_there || self.next_attempt == 0 {
            let gap = (2 * self.attempt_gap).clamp(1, ATTEMPT_GAP_MAX);
            self.link = self
                .link
                .take()
                .filter(|link| link.attachment().is_ok_and(|attachment| attachment.device == index));
            self.ensure_attached(index, program, pin);
            (self.next_attempt, self.attempt_gap) = (gap, gap);
        }
        was_there && self.passes_frames()
    }

    pub(super) fn detach(&mut self, pin: &Path) {
        if let Some(link) = self.link.take() {
            let _ = link.detach();
        }
        let _ = fs::remove_file(pin);
        self.own = None;
    }
}

/// Why no program at this device can redirect frames. Both ends of a veth belong to this host: its frames keep their
/// tags unless the other end has a VLAN device.
fn blocking_reason(driver: &Driver, index: u32) -> Option<&'static str> {
    if driver.has_members() {
        return Some(BOND_MEMBERS);
    }
    (!driver.is_veth() && !driver::keeps_vlan_tags(index).unwrap_or(false)).then_some(VLAN_OFFLOAD)
}

/// The state of a device with an attached program.
fn determine_state(driver: &Driver, index: u32) -> XdpState {
    if !driver.has_program {
        return XdpState::Unavailable(Cow::Borrowed(NO_DRIVER));
    }
    let why = blocking_reason(driver, index).or_else(|| {
        driver::has_xdp_xmit(index).map_or(Some(UNKNOWN_XMIT), |sends| (!sends).then_some(NO_XMIT))
    });
    why.map_or(XdpState::Active, |why| XdpState::Unavailable(Cow::Borrowed(why)))
}

fn is_foreign_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

fn attach_reason(error: &io::Error) -> XdpReason {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Cow::Borrowed(NO_DRIVER),
        _ if is_foreign_error(error) => Cow::Borrowed(FOREIGN_PROGRAM),
        _ => Cow::Owned(format!("cannot attach its program: {error}")),
    }
}
