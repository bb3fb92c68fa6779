//! Reloads, one after the other.

use std::path::Path;
use std::sync::Arc;

use holdfast_objects::manifests::FolderScan;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Reload, settings};
use holdfast_agent::readings::StartOutcome;
use holdfast_api::{Peer, ReloadOutcome, ReloadRequest};
use holdfast_config::{ConfigFile, FileAuthor, NodeName};
use holdfast_host::logging::Logging;
use holdfast_standalone::blocks::folder::{BlockFiles, FileTable};
use holdfast_standalone::blocks::merge;
use holdfast_standalone::folder::FileFormat as _;

/// A daemon's reloads, in their own folder.
struct ReloadHarness {
    folder: tempfile::TempDir,
    reload: Reload,
}

impl ReloadHarness {
    fn started_with(text: &str) -> Self {
        Self::started_as(None, text)
    }

    /// `node_name` is the command line's, if any.
    fn started_as(node_name: Option<&str>, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("holdfast.toml");
        std::fs::write(&path, text).unwrap();
        let node_name = node_name.map(|name| NodeName::parse(name).unwrap());
        let file = ConfigFile { path, node_name };
        let (config, _) = file.load().unwrap();
        let logging = Arc::new(Logging::silent(&config.log));
        let told = (
            watch::channel(Arc::new(settings::effective_config(&config))).0,
            watch::channel(Arc::new(settings::parse_blocks(&config, &file.path).unwrap())).0,
            watch::channel(None).0,
        );
        // The engine has gone, and receives nothing.
        let events = mpsc::channel(1).0;
        let followed = (watch::channel(Arc::new(config)).0, watch::channel(Arc::default()).0);
        Self { reload: Reload::new(&file, followed, logging, None, events, told), folder }
    }

    /// An operator's explanation of a message, and the number of faults in the file.
    async fn reload_events(&self, text: &str) -> (Option<String>, usize) {
        let folder = self.folder.path().join("events.d");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("ours.toml"), text).unwrap();
        assert!(self.reload("").await.is_empty());
        self.known()
    }

    fn known(&self) -> (Option<String>, usize) {
        let edition = Arc::clone(&self.reload.editions.borrow());
        let cause = edition.knowledge().cause("cloud.deadline");
        (cause.map(|cause| cause.means.clone()), edition.faults().len())
    }

    async fn reload(&self, text: &str) -> Vec<&'static str> {
        self.try_reload(text).await.unwrap()
    }

    async fn try_reload(&self, text: &str) -> Result<Vec<&'static str>, String> {
        std::fs::write(self.folder.path().join("holdfast.toml"), text).unwrap();
        self.reload.reload_config(None, || true).await.map(|done| done.restart_keys)
    }
}

#[tokio::test]
async fn a_reload_compares_with_what_runs_and_not_with_the_last_file() {
    let bed = ReloadHarness::started_with("[admin]\nlisten = \"127.0.0.1:9890\"\n");
    let changed = "[admin]\nlisten = \"127.0.0.1:9891\"\n[state]\npath = \"/s\"\n[node]\nname = \"n\"\n[datapath]\nkind = \"memory\"\n";
    let waiting = ["node.name", "datapath.kind", "state.path", "admin.listen"];
    assert_eq!(bed.reload(changed).await, waiting);
    assert_eq!(bed.reload(changed).await, waiting, "they still wait");
    assert!(bed.reload("").await.is_empty(), "reverted keys do not wait");
}

#[tokio::test]
async fn a_reload_refuses_what_a_start_refuses() {
    let bed = ReloadHarness::started_with("");
    let no_authority = "[apiserver] names no certificate authority: set `ca_file` or `kubeconfig`";
    // Missing files may appear later.
    for (more, expected) in [("", Some(no_authority)), ("ca_file = \"/not/there.crt\"", None)] {
        let text = format!("[apiserver]\nendpoints = [\"https://10.0.0.10:6443\"]\n{more}\n");
        assert_eq!(bed.try_reload(&text).await.err().as_deref(), expected, "{more}");
        assert_eq!(bed.reload.refusal.borrow().as_ref().map(|it| it.why.as_str()), expected, "{more}");
    }
}

/// Each blocked reload would keep a thread for ever.
#[tokio::test]
async fn a_reload_waits_for_no_pipe() {
    let bed = ReloadHarness::started_with("");
    let path = bed.folder.path().join("holdfast.toml");
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let refused = bed.reload.reload_config(None, || true).await.map(|_| ()).unwrap_err();
    assert!(refused.ends_with(": this is a named pipe: put a file there"), "{refused}");
}

/// On a host that was named by hand, only the file gives the node a name that Kubernetes takes.
#[test]
fn kernel_a_reload_keeps_the_name_that_a_start_needs() {
    let test = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS).unwrap();
        nix::unistd::sethostname("my_host").unwrap();
        let named = "[node]\nname = \"n\"\n";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bed = ReloadHarness::started_with(named);
            assert!(bed.try_reload(named).await.is_ok());
            let refused = bed.try_reload("").await.unwrap_err();
            assert!(refused.contains("my_host") && refused.contains("[node]"), "{refused}");
        });
    };
    std::thread::spawn(test).join().unwrap();
}

#[tokio::test]
async fn the_command_lines_node_name_wins_and_survives_a_reload() {
    let bed = ReloadHarness::started_as(Some("n7"), "[node]\nname = \"n\"\n");
    for text in ["[node]\nname = \"m\"\n", ""] {
        assert!(bed.reload(text).await.is_empty(), "only changed keys wait");
        assert!(bed.reload.effective.borrow().text.contains("name = \"n7\""), "{text}");
    }
}

#[tokio::test]
async fn a_reload_reads_the_files_about_events_and_is_not_refused_for_them() {
    let bed = ReloadHarness::started_with("");
    let (built_in, _) = bed.known();
    let ours = "[[cause]]\nid = \"cloud.deadline\"\nany = [\"too late\"]\nmeans = \"Ours.\"\ncheck = []\n\
                remedy = [{ risk = \"safe\", do = \"Wait.\" }]\n";
    assert_eq!(bed.reload_events(ours).await, (Some("Ours.".to_owned()), 0));
    let broken = ours.replace("risk", "rsik");
    assert_eq!(bed.reload_events(&broken).await, (built_in.clone(), 1), "the built-in knowledge holds");
    assert_eq!(bed.reload_events(ours).await.1, 0);
    std::fs::write(bed.folder.path().join("events.d/ours.toml"), "[").unwrap();
    std::fs::write(bed.folder.path().join("holdfast.toml"), "[nod]").unwrap();
    assert!(bed.reload.reload_config(None, || true).await.is_err());
    assert_eq!(bed.known(), (Some("Ours.".to_owned()), 0), "a reload applies as a whole or not at all");
}

#[tokio::test]
async fn the_effective_configuration_omits_what_checks_send() {
    let bed = ReloadHarness::started_with("");
    let block = "[[service]]\nname = \"a\"\nfrontends = [\"192.0.2.1:80\"]\nbackends = [\"10.0.0.1:80\"]\n\
                 health_check = { kind = \"send-expect\", send = \"AUTH s3cret\", expect = \"OK\" }\n";
    assert!(bed.reload(block).await.is_empty());
    let shown = bed.reload.effective.borrow().clone();
    assert!(shown.text.contains("expect = \"OK\"") && !shown.text.contains("s3cret"), "{}", shown.text);
    assert!(shown.json.contains("send-expect") && !shown.json.contains("s3cret"), "{}", shown.json);
}

#[tokio::test]
async fn a_key_that_needs_a_restart_is_not_in_force() {
    let bed = ReloadHarness::started_with("[hold]\nlimit = \"1m\"\n");
    bed.reload(
        "[hold]\nlimit = \"2m\"\n[admin]\nlisten = \"127.0.0.1:9891\"\n[datapath.limits]\nfrontends = 7\n",
    )
    .await;
    let shown = bed.reload.effective.borrow().text.clone();
    assert!(shown.contains("limit = \"2m\"") && shown.contains("listen = \"127.0.0.1:9890\""), "{shown}");
    assert!(!shown.contains("frontends = 7"), "{shown}");
    let settings = settings::engine_settings(&bed.reload.config.borrow(), Default::default());
    assert_ne!(settings.frontends_max, Some(7), "it is not half in force");
}

/// Other nodes select by their own lists, so this one needs every serving backend.
#[test]
fn unchanged_packets_from_other_nodes_reach_each_serving_backend() {
    for (text, expected) in [
        ("", (false, false)),
        ("[packets]\ndsr_from = [\"10.0.0.0/24\"]\n", (true, true)),
        ("[datapath.stale_sockets]\nprotocols = [\"TCP\"]\n", (true, false)),
    ] {
        let bed = ReloadHarness::started_with(text);
        let settings = settings::engine_settings(&bed.reload.config.borrow(), Default::default());
        assert_eq!((settings.keeps_tcp_members, settings.has_dsr_from), expected, "{text}");
    }
}

/// The table of a folder with one file.
fn listed(file: &str, text: &str) -> FileTable {
    let (folder, file) = (Path::new("d"), Arc::<str>::from(file));
    let mut known = BlockFiles::for_folder(folder);
    let read = BlockFiles::decode(folder, &file, text.as_bytes(), FileAuthor::Administrator);
    known.take_scan(FolderScan { present: Ok([Arc::clone(&file)].into()), files: vec![(file, read)] });
    known.files().clone()
}

/// Blocks of other files are checked against the running configuration, so that a reload removes nothing that is
/// served.
#[tokio::test]
async fn a_reload_checks_other_files_blocks_against_the_keys_in_force() {
    let bed =
        ReloadHarness::started_with("[packets]\nenabled = true\n[admin]\nlisten = \"127.0.0.1:9890\"\n");
    let text = |name: &str, frontend: &str, more: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nfrontends = [\"{frontend}\"]\nbackends = [\"192.0.2.1:80\"]\n{more}\n"
        )
    };
    let file = text("sctp", "192.0.2.10:80", "protocol = \"SCTP\"")
        + &text("route", "192.0.2.11:80", "announce = \"route\"")
        + &text("own", "127.0.0.1:9890", "");
    let files = listed("a.toml", &file);
    let left_out = || {
        let joined = merge::merge_blocks(&bed.reload.blocks.borrow(), &files);
        joined.rejection_reasons().map(|(_, why)| why.to_owned()).collect::<Vec<_>>()
    };
    let own = "static/own is left out: 127.0.0.1:9890 is where the admin API listens (admin.listen)";
    assert_eq!(left_out(), [own]);
    let planned = "[packets]\nenabled = false\n[admin]\nlisten = \"127.0.0.1:9891\"\n";
    assert_eq!(bed.reload(planned).await, ["packets.enabled", "admin.listen"]);
    assert_eq!(left_out(), [own]);
}

#[tokio::test]
async fn a_reload_gives_no_block_the_address_still_listened_at() {
    let bed = ReloadHarness::started_with("[admin]\nlisten = \"127.0.0.1:9890\"\n");
    let moved = "[admin]\nlisten = \"127.0.0.1:9891\"\n[[service]]\nname = \"web\"\nfrontends = \
                 [\"127.0.0.1:9890\"]\nbackends = [\"127.0.0.1:80\"]\n";
    std::fs::write(bed.folder.path().join("holdfast.toml"), moved).unwrap();
    let Err(why) = bed.reload.reload_config(None, || true).await else { panic!("it is in force") };
    assert!(
        why.starts_with("[[service]] static/web: 127.0.0.1:9890 is where the admin API listens"),
        "{why}"
    );
    assert!(why.contains("restart it"), "{why}");
    let start = bed.reload.refusal.borrow().as_ref().map(|it| it.start);
    assert_eq!(start, Some(StartOutcome::Unknown), "a restart is the remedy");
}

/// A reload that a client of the socket requests.
fn wish() -> (ReloadRequest, oneshot::Receiver<Result<ReloadOutcome, String>>) {
    let (answer, answered) = oneshot::channel();
    (ReloadRequest { peer: Peer { uid: 0, pid: None }, answer }, answered)
}

#[tokio::test]
async fn a_reload_reported_as_failed_is_not_applied_later() {
    let mut bed = ReloadHarness::started_with("[hold]\nlimit = \"1m\"\n");
    let limit = |bed: &ReloadHarness| bed.reload.effective.borrow().text.contains("limit = \"7m\"");
    std::fs::write(bed.folder.path().join("holdfast.toml"), "[hold]\nlimit = \"7m\"\n").unwrap();
    let (left, answered) = wish();
    drop(answered);
    bed.reload.answer_reload(left).await;
    assert!(!limit(&bed), "it had waited behind other requests");
    // The engine is busy, and receives only after the client has left.
    let (events, mut heard) = mpsc::channel(1);
    events.try_send(Vec::new()).unwrap();
    bed.reload.events = events;
    let (waiting, answered) = wish();
    let asker = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        drop(answered);
        heard.recv().await.unwrap();
    };
    tokio::join!(bed.reload.answer_reload(waiting), asker);
    assert!(!limit(&bed), "it had waited for the engine");
    let (asked, answered) = wish();
    bed.reload.answer_reload(asked).await;
    assert!(answered.await.unwrap().is_ok() && limit(&bed));
}

#[tokio::test(start_paused = true)]
async fn a_reload_that_the_engine_misses_changes_nothing() {
    let mut bed = ReloadHarness::started_with("");
    let (events, _heard) = mpsc::channel(1);
    events.try_send(Vec::new()).unwrap();
    bed.reload.events = events;
    std::fs::write(bed.folder.path().join("holdfast.toml"), "[hold]\nlimit = \"7m\"\n").unwrap();
    let refused = bed.reload.reload_config(None, || true).await.map(|_| ()).unwrap_err();
    assert_eq!(refused, super::reload::RELOAD_TIMED_OUT);
    assert!(!bed.reload.effective.borrow().text.contains("limit = \"7m\""));
}
