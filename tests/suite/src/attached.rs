//! The programs of a device or a cgroup, as the kernel lists them.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

/// The command of the system call `bpf`.
const BPF_PROG_QUERY: i32 = 16;

/// The most programs that the kernel attaches to one hook.
const PROGRAMS_MAX: usize = 64;

/// The kernel's hooks at a device, as `enum bpf_attach_type` numbers them; `ip link` shows a program at XDP.
pub(crate) const DEVICE_HOOKS: [(&str, u32); 2] = [("tcx ingress", 46), ("tcx egress", 47)];

/// The hooks at a cgroup, without that for devices' files, which systemd changes at any time.
pub(crate) const CGROUP_HOOKS: [(&str, u32); 22] = [
    ("ingress", 0),
    ("egress", 1),
    ("sock create", 2),
    ("sock ops", 3),
    ("bind4", 8),
    ("bind6", 9),
    ("connect4", 10),
    ("connect6", 11),
    ("post bind4", 12),
    ("post bind6", 13),
    ("sendmsg4", 14),
    ("sendmsg6", 15),
    ("sysctl", 18),
    ("recvmsg4", 19),
    ("recvmsg6", 20),
    ("getsockopt", 21),
    ("setsockopt", 22),
    ("getpeername4", 29),
    ("getpeername6", 30),
    ("getsockname4", 31),
    ("getsockname6", 32),
    ("sock release", 34),
];

/// The beginning of the kernel's `union bpf_attr` for a query; the rest is zero.
#[repr(C)]
#[derive(Debug, Default)]
struct Query {
    target: u32,
    hook: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    program_count: u32,
    padding: u32,
}

/// The ids of the programs at a hook of a device; `None`: this kernel has no such hook.
pub(crate) fn device_programs(index: u32, hook: u32) -> Option<Vec<u32>> {
    query(index, hook)
}

/// The ids of the programs at a hook of a cgroup.
pub(crate) fn cgroup_programs(cgroup: BorrowedFd<'_>, hook: u32) -> Option<Vec<u32>> {
    query(u32::try_from(cgroup.as_raw_fd()).ok()?, hook)
}

fn query(target: u32, hook: u32) -> Option<Vec<u32>> {
    let mut programs = [0_u32; PROGRAMS_MAX];
    let program_count = u32::try_from(PROGRAMS_MAX).ok()?;
    let program_ids = programs.as_mut_ptr().expose_provenance() as u64;
    let mut query = Query { target, hook, program_ids, program_count, ..Query::default() };
    // SAFETY: the kernel writes at most so many programs.
    let returned = unsafe { call(BPF_PROG_QUERY, &mut query) };
    (returned == 0).then(|| programs.into_iter().take(query.program_count as usize).collect())
}

/// # Safety
/// What the attributes point to has the size that they say.
unsafe fn call<T>(command: i32, attributes: &mut T) -> i64 {
    // SAFETY: the kernel reads and writes as many bytes as the attributes have; the caller vouches for the rest.
    unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};
    use std::path::PathBuf;
    use std::process::Command;
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    const BPF_PROG_LOAD: i32 = 5;
    const BPF_PROG_ATTACH: i32 = 8;

    const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
    const BPF_PROG_TYPE_CGROUP_SOCK_ADDR: u32 = 18;

    const TCX_INGRESS: u32 = 46;
    const CONNECT4: u32 = 10;

    /// `r0 = 1` and `exit`.
    const PROGRAM: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];

    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        licence: u64,
        log: [u32; 4],
        version: u32,
        flags: u32,
        name: [u8; 16],
        device: u32,
        hook: u32,
    }

    #[repr(C)]
    struct Attach {
        target: u32,
        program: u32,
        hook: u32,
        flags: u32,
    }

    fn load(kind: u32, hook: u32) -> OwnedFd {
        let mut load = Load {
            kind,
            count: 2,
            instructions: PROGRAM.as_ptr().expose_provenance() as u64,
            licence: c"GPL".as_ptr().expose_provenance() as u64,
            hook: if kind == BPF_PROG_TYPE_SCHED_CLS { 0 } else { hook },
            ..Load::default()
        };
        // SAFETY: the program has two instructions, and the licence ends in zero.
        let made = unsafe { call(BPF_PROG_LOAD, &mut load) };
        let made = i32::try_from(made).unwrap();
        assert!(made >= 0, "{}; these tests need root", std::io::Error::last_os_error());
        // SAFETY: a new file descriptor that nothing else owns.
        unsafe { OwnedFd::from_raw_fd(made) }
    }

    fn attach(target: u32, kind: u32, hook: u32) {
        let program = load(kind, hook);
        let number = u32::try_from(program.as_raw_fd()).unwrap();
        let mut attach = Attach { target, program: number, hook, flags: 0 };
        // SAFETY: the attributes hold only numbers.
        let returned = unsafe { call(BPF_PROG_ATTACH, &mut attach) };
        assert_eq!(returned, 0, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn kernel_a_program_at_a_device_is_listed() {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
            let made = Command::new("ip").args("link add here type veth peer name there".split(' ')).status();
            assert!(made.unwrap().success());
            let index = nix::net::if_::if_nametoindex("here").unwrap();
            let Some(before) = device_programs(index, TCX_INGRESS) else {
                println!("not tried: this kernel has no tcx");
                return;
            };
            attach(index, BPF_PROG_TYPE_SCHED_CLS, TCX_INGRESS);
            let after = device_programs(index, TCX_INGRESS).unwrap();
            assert_eq!((before.len(), after.len()), (0, 1));
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap());
    }

    /// A cgroup that is removed, also when a test fails.
    struct Child(PathBuf);

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn kernel_a_program_at_a_cgroup_is_listed() {
        let root = crate::machine::cgroup_roots().remove(0);
        let child = Child(root.join(format!("holdfast-suite-{}", std::process::id())));
        fs::create_dir(&child.0).unwrap();
        let cgroup = File::open(&child.0).unwrap();
        let before = cgroup_programs(cgroup.as_fd(), CONNECT4).unwrap();
        attach(u32::try_from(cgroup.as_raw_fd()).unwrap(), BPF_PROG_TYPE_CGROUP_SOCK_ADDR, CONNECT4);
        let after = cgroup_programs(cgroup.as_fd(), CONNECT4).unwrap();
        assert_eq!((before.len(), after.len()), (0, 1));
    }
}
