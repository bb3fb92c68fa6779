//! Tests of real clusters. They need root and what scripts/conformance.sh builds, so a feature selects them.

// The clients' counts are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;
#[cfg(test)]
mod virtual_address;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Command, Stdio};

    use holdfast_conformance::{Cluster, MachineName, Mode, Proxy, Topology};
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::typing::eventually;

    fn started(proxy: Proxy) -> Cluster {
        let files = vec![(MachineName::Node(1), "/etc/mark".to_owned(), "before".to_owned())];
        Cluster::start(&Topology { nodes: 1, proxy, files, ..Topology::default() }).unwrap()
    }

    /// Whether a process of the node reaches the apiserver's own Service.
    fn reaches_apiserver_service(cluster: &Cluster) -> bool {
        let ask = ["curl", "-sk", "--max-time", "5", "https://10.96.0.1/livez"];
        let answer = cluster.on("n1").unwrap().run(&ask).unwrap();
        answer.stdout == b"ok"
    }

    #[test]
    fn holdfast_serves_a_node_over_a_reboot_and_restarts() {
        let cluster = started(Proxy::Holdfast { config: String::new() });
        let node = cluster.on("n1").unwrap();
        assert!(reaches_apiserver_service(&cluster));
        assert_eq!(node.run(&["cat", "/etc/mark"]).unwrap().stdout, b"before");
        node.write("/etc/mark", "after").unwrap();
        cluster.stop_machine("n1").unwrap();
        assert!(node.run(&["true"]).is_err(), "a machine without power runs nothing");
        cluster.boot_machine("n1").unwrap();
        assert_eq!(node.run(&["cat", "/etc/mark"]).unwrap().stdout, b"after");
        eventually("served again", || reaches_apiserver_service(&cluster));
        let (api, kubelet) = (pid(&cluster, "cp", "apiserver"), pid(&cluster, "n1", "kubelet"));
        cluster.restart("apiserver").unwrap();
        cluster.restart("kubelet").unwrap();
        assert!(api != pid(&cluster, "cp", "apiserver") && kubelet != pid(&cluster, "n1", "kubelet"));
        eventually("ready again", || cluster.wait_for_nodes().is_ok());
        let logs = cluster.logs_after_end();
        drop(cluster);
        assert!(logs.join("n1/kubelet.log").exists() && logs.join("cp/apiserver.log").exists());
    }

    #[test]
    fn kube_proxy_serves_a_node_beside_another_cluster() {
        let kube_proxy = started(Proxy::KubeProxy(Mode::Nftables));
        let nobody = started(Proxy::Nobody);
        eventually("served", || reaches_apiserver_service(&kube_proxy));
        assert!(!reaches_apiserver_service(&nobody), "nobody serves there, and each cluster is alone");
        let mut running =
            kube_proxy.on("n1").unwrap().spawn("ticks", &["sh", "-c", "echo here; sleep 600"]).unwrap();
        eventually("written", || running.written().unwrap() == "here\n");
        assert!(running.runs());
        assert_eq!(running.stop().unwrap(), "here\n");
        let left = kube_proxy.on("n1").unwrap().run(&["pgrep", "-fx", "sleep 600"]).unwrap();
        assert!(left.stdout.is_empty(), "its children end with it: {left:?}");
    }

    #[test]
    fn the_next_start_removes_a_killed_runs_leftovers() {
        let mut run = Command::new(env!("CARGO_BIN_EXE_conformance"))
            .args(["run", "--nodes", "1", "--focus", "no test is called so"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let killed = run.id();
        let left = || left_of(killed);
        eventually("booted", || left().iter().any(|path| path.ends_with("-n1")));
        run.kill().unwrap();
        run.wait().unwrap();
        assert!(!left().is_empty(), "nobody cleans up after a killed one");
        drop(started(Proxy::Nobody));
        assert_eq!(left_of(killed), Vec::<String>::new());
    }

    #[test]
    fn an_interrupted_drill_leaves_nothing() {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let drill = Command::new(env!("CARGO_BIN_EXE_drill"))
                .args(["run", "kill", "--proxy", "nftables"])
                .env("NODES", "1")
                .stdout(Stdio::null())
                .spawn();
            let mut drill = drill.unwrap();
            let worker = || child_of(drill.id()).unwrap_or_default();
            eventually("begun", || worker() != 0);
            let worker = worker();
            eventually("booted", || left_of(worker).iter().any(|path| path.ends_with("-n1")));
            kill(Pid::from_raw(drill.id().cast_signed()), signal).unwrap();
            let status = drill.wait().unwrap();
            assert_eq!(status.code(), Some(128 + signal as i32));
            assert_eq!(left_of(worker), Vec::<String>::new());
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            assert!(!mounts.contains(&format!("holdfast-cluster-{worker}-")), "{mounts}");
        }
    }

    fn child_of(process: u32) -> Option<u32> {
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// The networks and cgroups with a process's id in their names.
    fn left_of(process: u32) -> Vec<String> {
        let prefix = format!("holdfast-cluster-{process}-");
        let folders = ["/run/netns", "/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory"];
        let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path().to_string_lossy().into_owned()));
        paths.filter(|path| path.contains(&prefix)).collect()
    }

    fn pid(cluster: &Cluster, machine: &str, service: &str) -> Vec<u8> {
        cluster.on(machine).unwrap().run(&["cat", &format!("/run/services/{service}.pid")]).unwrap().stdout
    }
}
