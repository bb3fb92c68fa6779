//! docs/outside.md from an empty host to an announced address, word by word: its blocks are run and written.
//!
//! The test only adds what the page assumes: the router, in another network of the host, with its own FRR.

use std::fs;

use holdfast_tests::host::Host;

use super::{CONFIG, First, boot, install, page, repository};

const WALK: &str = "From an empty host to an announced address";

/// A network for the router, and the routes to it.
const NETWORK: [&str; 9] = [
    "ip netns add router",
    "ip link add eth0 type veth peer name eth0 netns router",
    "ip address add 10.0.0.2/24 dev eth0",
    "ip link set eth0 up",
    "ip -n router address add 10.0.0.1/24 dev eth0",
    "ip -n router link set eth0 up",
    "ip -n router link set lo up",
    "ip route add default via 10.0.0.1",
    "install -d -o frr -g frr /run/frr/router /etc/frr/router",
];

const ROUTER: &str = "router bgp 65000
 no bgp ebgp-requires-policy
 neighbor 10.0.0.2 remote-as 65001
 neighbor 10.0.0.2 timers 1 3
 neighbor 10.0.0.2 timers connect 1
";

/// FRR in the router's network, with the options of its own start script. Background programs would keep the shell's
/// output open.
const ROUTER_STARTS: [&str; 3] = [
    "ip netns exec router /usr/lib/frr/zebra -d -N router -A 127.0.0.1 -P 0 >/dev/null 2>&1",
    "ip netns exec router /usr/lib/frr/bgpd -d -N router -A 127.0.0.1 -P 0 >/dev/null 2>&1",
    "touch /etc/frr/router/vtysh.conf && ip netns exec router vtysh -N router -b",
];

/// The number of clients that show the balance, and its allowed deviation from three of four.
const CLIENTS: usize = 200;
const LARGE: std::ops::RangeInclusive<usize> = 120..=180;

/// Runs the lines of a block, and returns their output.
#[track_caller]
fn typed(host: &Host, block: &str) -> String {
    block.lines().map(|line| host.shell(line).unwrap().expect_success()).collect()
}

fn append(host: &Host, path: &str, text: &str) {
    let before = fs::read_to_string(host.path(path)).unwrap();
    host.write(path, &(before + text)).unwrap();
}

/// The answer to a client behind the router; empty without an answer.
fn named(host: &Host) -> String {
    let line = "ip netns exec router curl --silent --max-time 2 192.0.2.10/name";
    host.shell(line).unwrap().out.trim().to_owned()
}

/// Whether the router has a route to the address.
fn is_announced(host: &Host) -> bool {
    host.shell("ip -n router route show 192.0.2.10").unwrap().out.contains("via 10.0.0.2")
}

#[test]
fn the_pages_commands_alone_announce_an_address() {
    let guide = fs::read_to_string(repository().join("docs/outside.md")).unwrap();
    let [servers, addition, serve, announce] = page::blocks(&guide, WALK);
    let [frr] = page::blocks(&guide, "FRR");
    let mut host = boot();
    NETWORK.iter().for_each(|line| _ = typed(&host, line));
    host.write("/etc/frr/router/frr.conf", ROUTER).unwrap();
    ROUTER_STARTS.iter().for_each(|line| _ = typed(&host, line));
    install(&host, First);

    typed(&host, &servers);
    // Python starts faster than a reader types.
    let answers = |host: &mut Host| {
        ["8081", "8082"].iter().all(|port| {
            host.run(&["curl", "--silent", &format!("10.0.0.2:{port}")]).is_ok_and(|said| said.code == 0)
        })
    };
    host.wait_for("the servers of the page", answers).unwrap();
    append(&host, CONFIG, &addition);
    let (start, look) = serve.split_once("holdfast status\n").unwrap();
    typed(&host, start);
    let route = |host: &mut Host| host.shell("ip route show table 180").unwrap().out.contains("192.0.2.10");
    host.wait_for("the route", route).unwrap();
    typed(&host, "holdfast status");
    let said = typed(&host, look);
    assert!(said.contains("blackhole 192.0.2.10 proto 104"), "{said}");
    assert!(said.contains("large") || said.contains("small"), "{said}");

    append(&host, "/etc/frr/frr.conf", &frr);
    let (start, look) = announce.split_once("vtysh").unwrap();
    typed(&host, start);
    host.wait_for("the router's way to the address", |host| is_announced(host)).unwrap();
    let said = typed(&host, &format!("vtysh{look}"));
    assert!(said.contains("192.0.2.10/32"), "{said}");

    let large = (0..CLIENTS).filter(|_| named(&host) == "large").count();
    assert!(LARGE.contains(&large), "{large} of {CLIENTS}");
    typed(&host, "systemctl stop large");
    host.wait_for("the small server alone", |host| (0..20).all(|_| named(host) == "small")).unwrap();
    typed(&host, "systemctl stop small");
    host.wait_for("the end of the way", |host| !is_announced(host)).unwrap();
    let said = host.shell("holdfast explain static/web").unwrap();
    assert!(said.code == 1 && said.out.contains("unusable by http checks"), "{said:?}");
}
