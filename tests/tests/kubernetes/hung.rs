//! Files on a hanging file system: a real one, in a mount namespace of the test's own thread. Needs root.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use holdfast_config::{Apiserver, ClientIdentity};
use holdfast_kubernetes::source::SourceSettings;
use holdfast_tests::fake::Kind;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::node::{Node, Setup, backend, ms, quick, slice_object, web};

/// A mount whose server never answers; dropping it unmounts.
struct Hung {
    folder: PathBuf,
    device: Option<File>,
}

impl Hung {
    fn over(folder: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("hung"), folder, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        Self { folder: folder.to_owned(), device: Some(device) }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // A blocked thread gets an error now.
        self.device = None;
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
    }
}

/// Gives this thread, and those that it starts, mounts of their own.
fn own_mounts() {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
}

/// This process's threads that block on the mount, as the kernel reports.
fn hanging() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let stack =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stack")).unwrap_or_default();
    tasks.map(stack).filter(|stack| stack.contains("fuse")).count()
}

fn problem(node: &Node) -> Option<String> {
    node.access.view().credentials.first()?.problem.as_ref().map(|(problem, _)| problem.clone())
}

#[test]
fn kernel_a_token_on_a_hanging_mount_is_reported_and_blocks_nothing() {
    own_mounts();
    let setup = Setup::new(1);
    setup.services(1);
    std::fs::create_dir(setup.path("secret")).unwrap();
    setup.write("secret/token", "first");
    setup.servers[0].accept_client(Some("first"), None);
    let identity = Some(ClientIdentity::TokenFile(setup.path("secret/token")));
    let access = setup.access(Apiserver { identity, ..setup.apiserver() });
    let mut node =
        Node::start_over(setup, access, SourceSettings { timing: quick(), ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    let hung = Hung::over(&node.setup.path("secret"));
    node.server().end_watches(Kind::Slices);
    node.server().end_watches(Kind::Services);
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("served with the token that was good", |node| node.serves(0, &[backend(9)]));
    node.wait("said", |node| problem(node).is_some_and(|said| said.contains("cannot be read in time")));
    assert!(problem(&node).unwrap().contains("secret/token"), "{:?}", problem(&node));
    // A blocked main thread would never return from the mount.
    node.live(ms(6_000));
    assert!(hanging() <= 1, "{} threads hang", hanging());
    assert_eq!(node.log().matches("credentials cannot be read").count(), 1, "{}", node.log());
    drop(hung);
    node.setup.write("secret/token", "second");
    node.server().reject_all_clients();
    node.server().accept_client(Some("second"), None);
    node.wait("good again", |node| problem(node).is_none());
    node.server().reset_connections();
    node.cluster().apply(slice_object(&web(0), &[backend(8)])).unwrap();
    node.wait("served with the new one", |node| node.serves(0, &[backend(8)]));
    node.check();
}
