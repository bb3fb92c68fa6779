//! A backend that never answers, as `status` names it once clients from outside meet it.

use std::process::Child;
use std::time::{Duration, Instant};

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::deaf::listen_deaf;
use holdfast_tests::bed::{Bed, Layout, Location, Neighbour};

const MANIFEST: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
";

const CONFIG: &str = "[node]\nname = \"n1\"\nnode_port_addresses = [\"192.0.2.0/24\"]\n";

/// A node that forwards, with a pod and another machine.
fn bed() -> Bed {
    let neighbours = vec![
        Neighbour { name: "pod", near: vec!["10.1.0.1/24"], far: vec!["10.1.0.2/24"] },
        Neighbour { name: "machine", near: vec!["10.2.0.1/24"], far: vec!["10.2.0.2/24"] },
    ];
    let bed = Bed::lay(&Layout { local: vec!["192.0.2.1/32"], neighbours, ..Layout::default() }).unwrap();
    bed.within(Location::NODE, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")).unwrap().unwrap();
    bed
}

/// Longer than two passes over the table of flows.
const SEEN_WITHIN: Duration = Duration::from_secs(25);

/// A client outside that gives up soon, as many programs do.
fn client(bed: &Bed) -> Child {
    let mut command = bed.command(Location::far("machine"), "timeout").unwrap();
    command.args(["3", "bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/30080"]);
    command.stderr(std::process::Stdio::null()).spawn().unwrap()
}

#[test]
fn kernel_a_backend_that_answers_no_client_is_named_by_status() {
    let bed = bed();
    let _deaf =
        bed.within(Location::pod("pod"), || listen_deaf("10.1.0.2:8080".parse().unwrap())).unwrap().unwrap();
    let mut daemon = Daemon::new(&bed, CONFIG).unwrap();
    daemon.write_manifest("shop.yaml", MANIFEST).unwrap();
    daemon.start().unwrap();
    daemon.wait_until(|it| Ok(it.answer(&["status"])?.0 == Some(0))).unwrap();
    let said = "backends that fail clients\n  shop/web: 10.1.0.2:8080 answered no client of 192.0.2.1:30080/TCP, the \
                last one at 20";
    let next = ")\n  next: holdfast diagnose shop/web\n";
    for _ in 0..3 {
        client(&bed).wait().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < SEEN_WITHIN {
            let (exit, status) = daemon.answer(&["status"]).unwrap();
            if status.contains(said) && status.contains(next) {
                assert_eq!(exit, Some(1));
                return daemon.stop().unwrap();
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    panic!("{}\n{}", daemon.tell(&["status"]).unwrap(), daemon.tell(&["flows"]).unwrap());
}
