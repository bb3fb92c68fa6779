//! Fuzzes the admin API's paths and queries over its real socket.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_agent::readings::About;
use holdfast_api::{self as admin, AdminServer, Settings};
use holdfast_core::facts::Timestamp;
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_fixtures::TEST_TIMEOUT;
use tokio::sync::watch;

use super::Target;
use crate::readings;

const CORPUS: [&str; 12] = [
    "/frontends?service=default/kubernetes&type=ClusterIP&format=json",
    "/frontends?address=10.96.0.1&format=table",
    "/backends?address=fd00%3A%3A1&service=default%2Fa",
    "/services?format=wide",
    "/services?service=a/b",
    "/config?format=json",
    "/version",
    "/metrics",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/livez?format=text",
];

/// More than any answer about an empty table.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The admin API with an empty snapshot.
pub(super) struct Requests {
    admin: AdminServer,
    socket: PathBuf,
}

impl Requests {
    pub(super) fn new() -> Result<Self, String> {
        let snapshots = watch::channel(Arc::default()).1;
        let socket = std::env::temp_dir().join(format!("holdfast-fuzz-{}.sock", std::process::id()));
        let settings = Settings { listen: (Ipv4Addr::LOCALHOST, 0).into(), socket: socket.clone() };
        let readings = readings::from_snapshots(snapshots, About { version: "0", started: Timestamp(0) });
        let admin = admin::start(
            &settings,
            (readings, EventStatus::default(), readings::acts()),
            watch::channel(Vec::new()).0,
        )
        .map_err(|error| error.to_string())?;
        Ok(Self { admin, socket })
    }

    fn ask(&self, target: &[u8]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.admin.address())?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        let rest = format!(" HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin.address());
        // The server may answer and close before it has read a request that is too long.
        let _ = stream.write_all(&[b"GET ", target, rest.as_bytes()].concat());
        let mut answer = Vec::new();
        match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
            Err(error) if answer.is_empty() && error.kind() != std::io::ErrorKind::ConnectionReset => {
                Err(error)
            }
            _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

impl Target for Requests {
    fn name(&self) -> &'static str {
        "query"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        CORPUS.map(|text| text.as_bytes().to_vec()).to_vec()
    }

    fn read(&mut self, input: &[u8]) -> Result<String, String> {
        // A line end or a blank would end the request line; the fuzzer is after queries.
        let target: Vec<u8> = input.iter().map(|byte| if *byte <= b' ' { b'+' } else { *byte }).collect();
        let answer = self.ask(&target).map_err(|error| format!("no answer: {error}"))?;
        let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default();
        let cut_short = target.len() > 8 * 1024 && answer.is_empty();
        match status {
            "200" | "400" | "404" | "414" | "421" | "431" | "503" => {}
            _ if cut_short => {}
            _ => return Err(format!("answers {:?}", answer.lines().next().unwrap_or_default())),
        }
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok(format!("{status} {body}"))
    }
}
