//! Files of other load balancers, their results, and whether each result is a configuration.

use expect_test::{Expect, expect};

use super::*;
use holdfast_config::Config;

/// Imports a text, and shows blocks and notes. The result must be legal.
#[track_caller]
fn check(format: Format, text: &str, expected: &Expect) {
    assert_eq!(Format::detect(text), Some(format), "of {text}");
    let imported = import(format, "file", text);
    let notes: String = imported.notes.iter().map(|note| format!("{note}\n")).collect();
    expected.assert_eq(&format!("{}---\n{notes}", imported.text));
    if let Err(refused) = Config::parse(&imported.text, "imported") {
        panic!("{:?}", refused.errors);
    }
}

#[test]
fn ipvs_as_ipvsadm_saves_it() {
    check(
        Format::Ipvs,
        "-A -t 192.0.2.1:80 -s wrr\n\
         -a -t 192.0.2.1:80 -r 10.0.0.1:8080 -m -w 3\n\
         -a -t 192.0.2.1:80 -r 10.0.0.2:8080 -m -w 0\n\
         -A -u [2001:db8::1]:53 -s mh\n\
         -a -u [2001:db8::1]:53 -r [fd00::1]:53 -m -w 1\n\
         -A -t 192.0.2.1:443 -s rr -p 600\n\
         -a -t 192.0.2.1:443 -r 10.0.0.1:443 -m -w 1000\n\
         -A -t 192.0.2.1:444 -s rr -p 600 -M 255.255.240.0\n\
         -a -t 192.0.2.1:444 -r 10.0.0.1:443 -m -w 1\n\
         -A -t [2001:db8::1]:444 -s rr -M 56 -p 600\n\
         -a -t [2001:db8::1]:444 -r [fd00::1]:443 -m -w 1\n",
        &expect![[r##"
            # file, line 1
            [[service]]
            name = "tcp-192-0-2-1-80"
            frontends = ["192.0.2.1:80"]
            backends = [{ address = "10.0.0.1:8080", weight = 3 }, { address = "10.0.0.2:8080", weight = 0 }]

            # file, line 4
            [[service]]
            name = "udp--2001-db8--1--53"
            protocol = "UDP"
            frontends = ["[2001:db8::1]:53"]
            backends = ["[fd00::1]:53"]
            maglev = true

            # file, line 6
            [[service]]
            name = "tcp-192-0-2-1-443"
            frontends = ["192.0.2.1:443"]
            backends = ["10.0.0.1:443"]
            session_affinity = "600s"

            # file, line 8
            [[service]]
            name = "tcp-192-0-2-1-444"
            frontends = ["192.0.2.1:444"]
            backends = ["10.0.0.1:443"]
            session_affinity = "600s"
            session_affinity_prefix = { ipv4 = 20 }

            # file, line 10
            [[service]]
            name = "tcp--2001-db8--1--444"
            frontends = ["[2001:db8::1]:444"]
            backends = ["[fd00::1]:443"]
            session_affinity = "600s"
            session_affinity_prefix = { ipv6 = 56 }
            ---
        "##]],
    );
}

#[test]
fn ipvs_settings_without_a_counterpart_are_noted() {
    check(
        Format::Ipvs,
        "-A -f 1 -s lc\n\
         -a -f 1 -r 10.0.0.1:0 -g -w 1\n\
         -A -t web:http -s wlc -p\n\
         -a -t web:http -r one:http -m -w 1\n\
         -A -t 192.0.2.9:80 -s wlc --pe sip -p 60 -M 255.0.255.0\n\
         -a -t 192.0.2.9:80 -r 10.0.0.1:80 -i -w 600 -x 10\n\
         -a -t 192.0.2.9:80 -r 10.0.0.2:80 -i -w 300\n\
         -C\n",
        &expect![[r##"
            # file, line 5
            [[service]]
            name = "tcp-192-0-2-9-80"
            frontends = ["192.0.2.9:80"]
            backends = [{ address = "10.0.0.1:80", weight = 200 }, { address = "10.0.0.2:80", weight = 100 }]
            session_affinity = "60s"
            ---
            line 1: firewall mark "1" is no address: name the addresses
            line 3: "web:http" is no address with a port, in numbers: save with ipvsadm --save --numeric
            line 4: "one:http" is no address with a port, in numbers: save with ipvsadm --save --numeric
            line 4: its service is not in the file, or was left out
            line 5: "--pe" has no counterpart
            line 5: "255.0.255.0" is no prefix of 8 to 32 bits: clients are kept by whole addresses
            line 5: scheduler "wlc" has no counterpart: backends are chosen at random, by their weights
            line 5: weights above 256 are divided by 3, and so are all others
            line 6: "-x" has no counterpart
            line 6: -i: answers come back through this node, and servers need no address of the service
            line 8: "-C" adds no service and no server
        "##]],
    );
}

const KEEPALIVED: &str = "\
! a comment
global_defs {
    router_id one
}
vrrp_instance VI_1 { state MASTER
    virtual_ipaddress { 192.0.2.1 }
}
virtual_server_group dns {
    192.0.2.53 53
    192.0.2.60-61 53
    fwmark 3
}
virtual_server 192.0.2.1 443 {
    delay_loop 6
    lb_algo wrr
    lb_kind NAT
    persistence_timeout 600
    persistence_granularity 255.255.255.0
    protocol TCP
    sorry_server 10.0.0.9 443
    real_server 10.0.0.1 443 {
        weight 2
        TCP_CHECK { connect_timeout 3 retry 2 }
    }
    real_server 10.0.0.2 443 {
        HTTP_GET {
            url { path /healthz
                  status_code 201 }
            connect_timeout 3
        }
    }
}
virtual_server group dns {
    lb_algo rr
    lb_kind DR
    protocol UDP
    real_server 10.0.0.3 53 { weight 1 }
    real_server ns.example.org 53 { MISC_CHECK { misc_path \"/bin/true\" } }
}
virtual_server 2001:db8::1 80 {
    delay_loop 5
    lb_algo sh
    persistence_granularity 64
    real_server fd00::1 8080 {
        HTTP_GET { connect_port 9000
            url { path /ok
            status_code 200 204
        } }
    }
}
";

#[test]
fn keepalived_with_its_groups_and_checks() {
    check(
        Format::Keepalived,
        KEEPALIVED,
        &expect![[r##"
        # file, line 13
        [[service]]
        name = "192-0-2-1-443"
        frontends = ["192.0.2.1:443"]
        backends = [{ address = "10.0.0.1:443", weight = 2 }, "10.0.0.2:443"]
        health_check = { kind = "tcp", interval = "6s", timeout = "3s" }
        session_affinity = "600s"
        session_affinity_prefix = { ipv4 = 24 }

        # file, line 33
        [[service]]
        name = "dns"
        protocol = "UDP"
        frontends = ["192.0.2.53:53", "192.0.2.60:53", "192.0.2.61:53"]
        backends = ["10.0.0.3:53"]
        health_check = { kind = "tcp", interval = "60s" }

        # file, line 40
        [[service]]
        name = "2001-db8--1-80"
        frontends = ["[2001:db8::1]:80"]
        backends = ["[fd00::1]:8080"]
        health_check = { kind = "http", path = "/ok", expect_status = "200,204", port = 9000, interval = "5s" }
        session_affinity = "10800s"
        session_affinity_prefix = { ipv6 = 64 }
        ---
        line 2: "global_defs" stays with keepalived, which still decides which node has the address
        line 5: "vrrp_instance" stays with keepalived, which still decides which node has the address
        line 11: "fwmark 3" is no address with a port
        line 20: "sorry_server" has no counterpart
        line 26: another check than the first server's: the first one's is taken for all
        line 35: DR: answers come back through this node, and servers need no address of the service
        line 38: "real_server ns.example.org 53" is no address with a port
        line 38: "MISC_CHECK" has no counterpart: the check connects by TCP
        line 38: "misc_path" has no counterpart
    "##]],
    );
}

const HAPROXY: &str = "\
global
    maxconn 4096
defaults
    mode tcp
    timeout connect 5s
    timeout check 500ms
    default-server inter 3s fall 2 slowstart 30s port 9000
frontend web
    bind 192.0.2.1:80,[2001:db8::1]:80 # both families
    default_backend pool
backend pool
    balance roundrobin
    option httpchk GET /healthz
    http-check expect status 200-299,401
    server one 10.0.0.1:8080 check weight 3
    server two 10.0.0.2:8080 check maxconn 20
    server six fd00::1:8080 check port 9001
    server spare 10.0.0.3:8080 backup
    server gone 10.0.0.4:8080 disabled
listen db
    bind 192.0.2.2:5432-5433
    balance leastconn
    stick-table type ip size 1m expire 30m
    stick on src
    server only 10.0.1.1:5432
listen any
    bind *:3306 ssl crt /etc/cert.pem
    server only db.example.org:3306
frontend site
    mode http
    bind 192.0.2.3:80
    acl static path_beg /static
    default_backend pages
backend pages
    server p 10.0.0.7:80
backend forgotten
    server f 10.0.0.8:80
frontend lost
    bind 192.0.2.4:80
    use_backend pool if TRUE
listen net
    bind 192.0.2.5:80
    stick-table type ipv6 size 1m expire 30m
    stick on src,ipmask(255.255.255.0,ffff:ffff:ffff::)
    stick match src,ipmask(4)
    stick on dst
    server only 10.0.1.1:80
";

#[test]
fn haproxy_with_its_sections_and_defaults() {
    check(
        Format::Haproxy,
        HAPROXY,
        &expect![[r##"
        # file, line 8
        [[service]]
        name = "web"
        frontends = ["192.0.2.1:80", "[2001:db8::1]:80"]
        backends = [
            { address = "10.0.0.1:8080", weight = 3 },
            "10.0.0.2:8080",
            { address = "10.0.0.4:8080", weight = 0 },
            "[fd00::1]:8080",
        ]
        health_check = { kind = "http", path = "/healthz", expect_status = "200-299,401", port = 9000, interval = "3s", timeout = "500ms", fall = 2, slow_start = "30s" }

        # file, line 20
        [[service]]
        name = "db"
        frontends = ["192.0.2.2:5432", "192.0.2.2:5433"]
        backends = ["10.0.1.1:5432"]
        session_affinity = "1800s"

        # file, line 41
        [[service]]
        name = "net"
        frontends = ["192.0.2.5:80"]
        backends = ["10.0.1.1:80"]
        session_affinity = "1800s"
        session_affinity_prefix = { ipv4 = 24, ipv6 = 48 }
        ---
        line 1: section "global" concerns HAProxy alone
        line 5: timeout "connect" has no counterpart: holdfast ends no idle connection
        line 11: servers are checked at different ports: the first one's is taken for all
        line 16: "maxconn 20" has no counterpart
        line 18: 10.0.0.3:8080 is a backup, for which there is no counterpart: left out
        line 22: balance "leastconn" has no counterpart: backends are chosen at random, by their weights
        line 26: "any" has no address that a block can have, and is left out
        line 27: "*:3306" names no address: a block needs the one that clients dial
        line 27: "ssl crt /etc/cert.pem" has no counterpart
        line 28: "db.example.org:3306" is no address with a port, in numbers
        line 29: "site" reads HTTP (mode http), which holdfast does not: left out
        line 36: no frontend names "forgotten" as its default_backend: left out
        line 38: "lost" has no backend section "": left out
        line 40: "use_backend pool if TRUE" has no counterpart
        line 45: "4" is no prefix of 8 to 32 bits: clients are kept by whole addresses
        line 46: "stick on dst" has no counterpart
    "##]],
    );
}

#[test]
fn names_are_legal_and_each_services_own() {
    let text: String = ["Web_1", "web-1", "web.1", "---", &"x".repeat(90)]
        .iter()
        .enumerate()
        .map(|(at, name)| format!("listen {name}\n bind 192.0.2.1:{}\n server a 10.0.0.1:80\n", at + 1))
        .collect();
    let imported = import(Format::Haproxy, "file", &text);
    let names: Vec<&str> = imported.text.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
    assert_eq!(names[..4], ["\"web-1\"", "\"web-1-2\"", "\"web-1-3\"", "\"service\""]);
    assert_eq!(names[4].len(), 65);
    assert!(Config::parse(&imported.text, "imported").is_ok());
}

#[test]
fn hostile_text_stays_in_one_note_or_comment() {
    let deep = format!("virtual_server {}", "{ x ".repeat(100_000));
    let imported = import(Format::Keepalived, "a\nb", &deep);
    assert_eq!(imported.text, "");
    assert_eq!(imported.notes.len(), 1_001);
    let line = format!("-A -t {} -s \u{1b}[31m\n", "9".repeat(100_000));
    let imported = import(Format::Ipvs, "file", &line);
    assert!(
        imported
            .notes
            .iter()
            .all(|note| note.to_string().len() < 200 && !note.to_string().contains('\u{1b}'))
    );
    let range = "listen x\n bind 192.0.2.1:1-65535\n server a 10.0.0.1:1-65535\n";
    assert_eq!(import(Format::Haproxy, "file", range).text, "");
}

#[test]
fn the_format_is_detected_by_the_first_lines() {
    assert_eq!(Format::detect("# nothing\n\n"), None);
    assert_eq!(Format::detect(" frontend x\n"), None);
    assert_eq!(Format::detect("listen x\n"), Some(Format::Haproxy));
}
