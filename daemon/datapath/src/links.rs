//! The attached programs of one site: one link per hook.
//!
//! Invariant: a hook that has a program has one at every moment; a new program replaces the old one in one step.
//! Foreign programs at the same hooks are left alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use holdfast_status::datapath::ForeignPrograms;
use libbpf_rs::{Link, Program};

use crate::bpf_syscall;
use crate::error::StartError;
use crate::load::LoadedPrograms;
use crate::pins::Pins;
use crate::site::Site;

/// Our programs at a site, if any.
#[derive(Debug)]
pub(crate) struct Links<S> {
    site: S,
    links: Vec<(&'static str, Link)>,
    former: Vec<(&'static str, FormerProgram)>,
    // Hooks with a program that still reads outdated maps.
    behind: Vec<&'static str>,
}

/// The state of the hooks at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HookReport {
    /// Hooks with a link that does not hold: its pin or its site is gone.
    pub(crate) broken: Vec<&'static str>,
    /// Those of them where none of our programs runs.
    pub(crate) bare: Vec<&'static str>,
    /// Hooks that also have foreign programs, as far as the kernel answers.
    pub(crate) shared: Vec<ForeignPrograms>,
}

fn foreign_programs(hook: &'static str, attached: &[u32], own: u32) -> Option<ForeignPrograms> {
    let position = attached.iter().position(|id| *id == own).unwrap_or(attached.len());
    let (before, after) = attached.split_at(position);
    let foreign =
        ForeignPrograms { hook, before: before.into(), after: after.iter().skip(1).copied().collect() };
    (foreign.count() > 0).then_some(foreign)
}

#[derive(Debug)]
enum FormerProgram {
    Absent,
    Program(OwnedFd),
    /// A program that only CAP_SYS_ADMIN may open.
    Hidden,
}

impl FormerProgram {
    fn from_link(link: &Link) -> Self {
        let program = link.info().and_then(|info| Program::fd_from_id(info.prog_id));
        program.map_or(Self::Hidden, Self::Program)
    }
}

impl<S: Site> Links<S> {
    /// The links of a site without programs of ours.
    pub(crate) const fn for_site(site: S) -> Self {
        Self { site, links: Vec::new(), former: Vec::new(), behind: Vec::new() }
    }

    pub(crate) const fn are_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// Attaches the programs, and replaces those of a former daemon.
    pub(crate) fn attach_all(&mut self, programs: &LoadedPrograms, pins: &Pins) -> Result<(), StartError> {
        for (hook, program) in programs.for_site(&self.site) {
            let pin = pins.link_pin(&self.site, hook);
            let former = if pin.exists() { Some(open_link(&pin)?) } else { None };
            let attached = former.as_ref().filter(|link| is_attached_at(link, &self.site));
            self.former.push((hook, attached.map_or(FormerProgram::Absent, FormerProgram::from_link)));
            self.links.push((hook, attach_hook(hook, program, &self.site, &pin, former)?));
        }
        Ok(())
    }

    /// Drops the former programs after the self-test.
    pub(crate) fn discard_former(&mut self) {
        self.former.clear();
    }

    /// Undoes the attachment: restores former programs, and detaches from hooks that had none. If a former program
    /// cannot be opened, ours stays. `true`: nothing is attached any more.
    pub(crate) fn undo_attach(&mut self, pins: &Pins) -> bool {
        let former = std::mem::take(&mut self.former);
        let links = std::mem::take(&mut self.links);
        let mut is_bare = true;
        for ((hook, link), (_, former)) in links.into_iter().zip(former) {
            match former {
                // Detached explicitly: a link that only loses its pin detaches later.
                FormerProgram::Absent => {
                    drop((link.detach(), std::fs::remove_file(pins.link_pin(&self.site, hook))));
                }
                FormerProgram::Program(program) => is_bare &= !restore_program(&link, &program),
                FormerProgram::Hidden => is_bare = false,
            }
        }
        is_bare
    }

    /// Replaces the programs by loaded ones. `false`: no hook got its new program. If only some did, the others are
    /// behind until [`Self::repair`] moves them.
    pub(crate) fn move_to_programs(&mut self, programs: &LoadedPrograms) -> bool {
        let is_moved = |(hook, link): &&(&'static str, Link)| {
            programs
                .find_program(hook)
                .is_some_and(|program| bpf_syscall::update_link(link.as_fd(), program).is_ok())
        };
        let (moved, behind): (Vec<_>, Vec<_>) = self.links.iter().partition(is_moved);
        if moved.is_empty() {
            return false;
        }
        self.behind = behind.into_iter().map(|(hook, _)| *hook).collect();
        true
    }

    /// Replaces the programs. A link that cannot be updated is replaced. An error: no hook got its new program. If only
    /// some did, the others are behind until [`Self::repair`] moves them.
    pub(crate) fn update(&mut self, programs: &LoadedPrograms, pins: &Pins) -> Result<(), StartError> {
        let mut moved = false;
        let mut behind = Vec::new();
        let mut failure = None;
        for (hook, program) in programs.for_site(&self.site) {
            match self.replace_program(hook, program, pins) {
                Ok(()) => moved = true,
                Err(error) => {
                    behind.push(hook);
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) if !moved => Err(error),
            _ => {
                self.behind = behind;
                Ok(())
            }
        }
    }

    fn replace_program(
        &mut self,
        hook: &'static str,
        program: BorrowedFd<'_>,
        pins: &Pins,
    ) -> Result<(), StartError> {
        let pin = pins.link_pin(&self.site, hook);
        for (_, link) in self.links.iter_mut().filter(|(name, _)| *name == hook) {
            if bpf_syscall::update_link(link.as_fd(), program).is_err() {
                *link = reattach_hook(hook, program, &self.site, &pin)?;
            }
        }
        Ok(())
    }

    /// The hooks with a program that reads outdated maps.
    pub(crate) fn behind_hooks(&self) -> &[&'static str] {
        &self.behind
    }

    pub(crate) fn inspect_hooks(&self, pins: &Pins) -> HookReport {
        let mut report = HookReport::default();
        for (hook, link) in &self.links {
            let info = link.info().ok();
            let holds = info.as_ref().is_some_and(|it| self.site.holds_link(it));
            if !holds {
                report.bare.push(*hook);
            }
            if !holds || !pins.link_pin(&self.site, hook).exists() {
                report.broken.push(*hook);
            }
            report.shared.extend(info.and_then(|info| self.find_foreign(hook, info.prog_id)));
        }
        report
    }

    fn find_foreign(&self, hook: &'static str, own: u32) -> Option<ForeignPrograms> {
        foreign_programs(hook, &self.site.query_programs(hook).ok()?, own)
    }

    /// Attaches broken hooks again, and moves those that are behind. Both programs of a hook run for a moment; the
    /// second one finds nothing left to translate. A failure stops no other hook; `repaired` lists those that
    /// succeeded.
    pub(crate) fn repair(
        &mut self,
        programs: &LoadedPrograms,
        pins: &Pins,
        broken: &[&'static str],
        repaired: &mut Vec<&'static str>,
    ) -> Result<(), StartError> {
        let mut failure = None;
        if !broken.is_empty() {
            self.site.reopen();
        }
        for (hook, program) in programs.for_site(&self.site) {
            if !broken.contains(&hook) && !self.behind.contains(&hook) {
                continue;
            }
            match self.reattach_program(hook, program, pins) {
                Ok(()) => repaired.push(hook),
                Err(error) => failure = Some(error),
            }
        }
        self.behind.retain(|hook| !repaired.contains(hook));
        failure.map_or(Ok(()), Err)
    }

    fn reattach_program(
        &mut self,
        hook: &'static str,
        program: BorrowedFd<'_>,
        pins: &Pins,
    ) -> Result<(), StartError> {
        let pin = pins.link_pin(&self.site, hook);
        for (_, link) in self.links.iter_mut().filter(|(name, _)| *name == hook) {
            *link = reattach_hook(hook, program, &self.site, &pin)?;
        }
        Ok(())
    }

    pub(crate) fn site(&self) -> &S {
        &self.site
    }
}

fn attach_error(hook: &'static str, site: &impl Site, source: io::Error) -> StartError {
    StartError::Attach { hook, site: site.to_string(), source: source.into() }
}

fn reattach_hook(
    hook: &'static str,
    program: BorrowedFd<'_>,
    site: &impl Site,
    pin: &Path,
) -> Result<Link, StartError> {
    let former = if pin.exists() { Some(open_link(pin)?) } else { None };
    attach_hook(hook, program, site, pin, former)
}

/// Attaches a program to a hook, and pins its link. `former`: the link that is pinned there already.
fn attach_hook(
    hook: &'static str,
    program: BorrowedFd<'_>,
    site: &impl Site,
    pin: &Path,
    former: Option<Link>,
) -> Result<Link, StartError> {
    let Some(link) = former else {
        return create_link(hook, program, site, pin);
    };
    // A link that has lost its site, or is at another one, cannot be updated.
    if is_attached_at(&link, site) && bpf_syscall::update_link(link.as_fd(), program).is_ok() {
        return Ok(link);
    }
    let removed = std::fs::remove_file(pin);
    removed.map_err(|source| StartError::Pin { attempt: "remove", path: pin.to_owned(), source })?;
    // The old link closes only after the new one is attached.
    let new_link = create_link(hook, program, site, pin)?;
    drop(link);
    Ok(new_link)
}

fn open_link(pin: &Path) -> Result<Link, StartError> {
    Link::open(pin).map_err(|source| StartError::from_open(pin, source))
}

fn create_link(
    hook: &'static str,
    program: BorrowedFd<'_>,
    site: &impl Site,
    pin: &Path,
) -> Result<Link, StartError> {
    let attached = site.attach(hook, program).map_err(|source| attach_error(hook, site, source))?;
    let pinned = bpf_syscall::pin(attached.as_fd(), pin);
    pinned.map_err(|source| StartError::Pin { attempt: "pin", path: pin.to_owned(), source })?;
    // A failed start undoes the attachments of the links that it holds, and it does not hold this one.
    open_link(pin)
        .inspect_err(|_| drop((bpf_syscall::detach_link(attached.as_fd()), std::fs::remove_file(pin))))
}

/// Restores a former program at a link. `false`: the link is defunct.
fn restore_program(link: &Link, program: &OwnedFd) -> bool {
    bpf_syscall::update_link(link.as_fd(), program.as_fd()).is_ok()
}

fn is_attached_at(link: &Link, site: &impl Site) -> bool {
    link.info().is_ok_and(|info| site.holds_link(&info))
}
