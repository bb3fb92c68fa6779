//! The file of the drains, and its copy: a head with a checksum, and JSON that an operator can read.
//!
//! Invariant: a file is read exactly as it was written, or it is named and ignored. The copy is written after the
//! file, so one of the two is whole at any moment, and the file is newer. A damaged file is set aside and never
//! overwritten; one that the system failed to read stays, and is read again. Files of every version from 1 on are
//! supported.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_core::drains::{Drain, DrainOrder, Drains};
use holdfast_core::keys::ObjectName;
use holdfast_status::rfc3339::Rfc3339;
use serde::{Deserialize, Serialize};

use holdfast_host::small_file;

/// The file's name in the state's folder.
pub(super) const FILE: &str = "drains.json";

pub(super) const COPY: &str = "drains.copy.json";

/// The name of a damaged file, kept so that an operator can find out why.
pub(super) const DAMAGED: &str = "drains.damaged";

/// The format of the file.
const VERSION: u32 = 1;

/// The largest file: the most drains allowed, each with the longest names, take 700 KB.
const FILE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub(super) struct FileFault {
    path: PathBuf,
    what: String,
    // Whether the system failed to read its content, which may be whole.
    may_be_whole: bool,
}

/// The files of a former process.
#[derive(Debug)]
pub(super) struct LoadedDrains {
    pub(super) drains: Drains,
    pub(super) faults: Vec<FileFault>,
    /// Why the drains may differ: a file cannot be read now.
    pub(super) unread: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct DrainRecord {
    address: IpAddr,
    port: Option<NonZeroU16>,
    namespace: Option<String>,
    service: Option<String>,
    uid: u32,
    user: Option<Arc<str>>,
    at: Rfc3339,
}

impl DrainRecord {
    fn new((drain, by): (Drain, &DrainOrder)) -> Self {
        let service = drain.service();
        Self {
            address: drain.address(),
            port: drain.port(),
            namespace: service.map(|name| name.namespace().to_owned()),
            service: service.map(|name| name.name().to_owned()),
            uid: by.uid,
            user: by.user.clone(),
            at: Rfc3339(by.at),
        }
    }

    fn into_drain(self) -> Result<(Drain, DrainOrder), String> {
        let service = match (self.namespace, self.service) {
            (Some(namespace), Some(name)) => {
                Some(ObjectName::new(&namespace, &name).map_err(|error| error.to_string())?)
            }
            (None, None) => None,
            _ => return Err("a service has no namespace, or no name".to_owned()),
        };
        let by = DrainOrder { uid: self.uid, user: self.user, at: self.at.0 };
        Ok((Drain::new(self.address, self.port, service), by))
    }
}

pub(super) fn load(folder: &Path) -> LoadedDrains {
    let (file, copy) = (read_drains(folder, FILE), read_drains(folder, COPY));
    let is_damaged = file.as_ref().is_err_and(|why| !why.may_be_whole);
    // The copy adds nothing if the file is whole.
    let asked = if matches!(file, Ok(Some(_))) { [None, None] } else { [Some(&file), Some(&copy)] };
    let failed = asked.into_iter().flatten().filter_map(|found| found.as_ref().err());
    let unread = failed.filter(|why| why.may_be_whole).map(ToString::to_string).next();
    let mut wrong = Vec::new();
    let mut whole =
        |found: Result<Option<Drains>, FileFault>| found.map_err(|why| wrong.push(why)).ok().flatten();
    let (file, copy) = (whole(file), whole(copy));
    if is_damaged {
        // If the file cannot be renamed, writing fails too, and that is reported.
        let _ = std::fs::rename(folder.join(FILE), folder.join(DAMAGED));
    }
    LoadedDrains { drains: file.or(copy).unwrap_or_default(), faults: wrong, unread }
}

/// Writes the file, then the copy.
pub(super) fn store(folder: &Path, drains: &Drains) -> Result<(), String> {
    let content = serialize_drains(drains).map_err(|error| error.to_string())?;
    for path in [folder.join(FILE), folder.join(COPY)] {
        small_file::replace_file(&path, &content).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn serialize_drains(drains: &Drains) -> io::Result<Vec<u8>> {
    let rows: Vec<DrainRecord> = drains.iter().map(DrainRecord::new).collect();
    let body = serde_json::to_string_pretty(&rows)?;
    Ok(format!("{}\n{body}\n", render_header(VERSION, &body)).into_bytes())
}

fn render_header(version: u32, body: &str) -> String {
    format!("holdfast drains, version {version}, crc32 {:08x}", crc32fast::hash(body.as_bytes()))
}

/// Returns `None` if there is no such file.
fn read_drains(folder: &Path, name: &str) -> Result<Option<Drains>, FileFault> {
    let path = folder.join(name);
    let content = match small_file::read_bounded(&path, FILE_BYTES_MAX) {
        Ok(content) => content,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => {
            let may_be_whole = error.raw_os_error().is_some();
            return Err(FileFault { path, what: error.to_string(), may_be_whole });
        }
    };
    parse_drains(&content).map(Some).map_err(|what| FileFault { path, what, may_be_whole: false })
}

fn parse_drains(content: &[u8]) -> Result<Drains, String> {
    let damaged = || "it is damaged".to_owned();
    let text = str::from_utf8(content).map_err(|_| damaged())?;
    let (first, body) = text.split_once('\n').ok_or_else(damaged)?;
    let body = body.strip_suffix('\n').ok_or_else(damaged)?;
    if first != render_header(VERSION, body) {
        let version = first.strip_prefix("holdfast drains, version ").and_then(|rest| rest.split(',').next());
        return Err(match version.and_then(|it| it.parse::<u32>().ok()) {
            Some(found) if found != VERSION => {
                format!("it has version {found}; this holdfast reads {VERSION}")
            }
            _ => damaged(),
        });
    }
    let rows: Vec<DrainRecord> = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let mut drains = Drains::default();
    for row in rows {
        let (drain, by) = row.into_drain()?;
        drains.add(drain, by).map_err(|error| error.to_string())?;
    }
    Ok(drains)
}
