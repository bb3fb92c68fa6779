//! Every bound of a configuration, each with its reason.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The largest file, in bytes. A hand-written file has a few KiB; 1,000 full service blocks fit easily.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// The most `[[service]]` blocks of one file: beyond what a person maintains there, manifests are the better source.
pub(super) const SERVICES_MAX: usize = 1_000;

/// The longest name by which messages call a block: as long as a legal one.
pub(super) const BLOCK_NAME_SHOWN_MAX: usize = 63;

/// The most `[[service]]` blocks of all files together: the size of a large site's registry. Each file is read again
/// when it changes.
pub(super) const BLOCKS_MAX: usize = 10_000;

/// The most frontends in one block: one address for each port of a wide range, written out.
pub(super) const FRONTENDS_MAX: usize = 1_000;

/// The most backends in one block: as many as the first ten slices of a Kubernetes Service.
pub(super) const BACKENDS_MAX: usize = 1_000;

/// The most announced addresses: each is checked at every change of the services, and written again every few seconds.
/// A router that takes more from one host is rare.
pub(super) const ANNOUNCED_MAX: usize = 1_000;

/// The routing tables for announced addresses: 252 to 255 are the kernel's own, and FRR takes none beyond.
pub(super) const ROUTE_TABLES: (u32, u32) = (1, 251);

/// The most apiserver addresses: a failover tries them one by one, three seconds each in the worst case.
pub(super) const APISERVERS_MAX: usize = 16;

/// The most name servers: without a reply, each is asked twice for a name, one second each time.
pub(super) const RESOLVERS_MAX: usize = 4;

/// The most ranges for NodePorts: each is compared with every local address.
pub(super) const CIDRS_MAX: usize = 64;

/// The most exempt subtrees of cgroups: the capacity of the programs' map. A node has a handful of systemd's slices.
pub(super) const EXEMPT_CGROUPS_MAX: usize = 64;

/// The deepest start of such a subtree: programs check so many levels of each client's cgroup. A container is at about
/// the fifth.
pub(super) const CGROUP_LEVELS_MAX: usize = 16;

/// The most names or patterns of devices: each is compared with every device.
pub(super) const DEVICE_NAMES_MAX: usize = 64;

/// The longest name of a device: `IFNAMSIZ` is 16, one of them the final NUL.
pub(super) const DEVICE_NAME_BYTES_MAX: usize = 15;

/// The fewest and the most flows to configure. One flow costs some 740 bytes of kernel memory at most, so the largest
/// value costs about 3.1 GB.
pub(super) const FLOWS: (u32, u32) = (1_024, 4_194_304);

/// The most ranges in `snat_ports`: the capacity of the programs.
pub const SNAT_RANGES_MAX: usize = 4;

/// The most networks in `dsr_from`: the capacity of the programs for each family.
pub(super) const NODE_NETWORKS_MAX: usize = 16;

/// The shortest prefix of a network in `dsr_from`, by family. A shorter one would include hosts that are not nodes.
pub(super) const NODE_BITS_MIN: [u8; 2] = [8, 16];

/// The default NodePort range of an apiserver.
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// The most errors, and the most warnings, in a report; the rest is counted. It is more than anyone reads before the
/// first fix.
pub(super) const PROBLEMS_MAX: usize = 1_000;

/// The most errors of one text whose other place is searched. Each search looks at the whole text, and a hostile writer
/// of a file could fill it with the same header.
pub(super) const DUPLICATES_SEARCHED_MAX: usize = 32;

/// The most characters of a wrong value in a message, so that the message stays one line.
pub(super) const QUOTED_CHARS_MAX: usize = 80;

/// The longest DNS label, and the longest value of a Kubernetes label (RFC 1123, Kubernetes).
pub(super) const LABEL_BYTES_MAX: usize = 63;

pub(super) const NAME_BYTES_MAX: usize = 253;

/// The longest path of a unix socket: `sun_path` has 108 bytes, one of them the final NUL.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The longest path of an HTTP health check, in bytes: it must fit the one buffer a check sends from.
pub(super) const CHECK_PATH_BYTES_MAX: usize = 1_024;

/// The longest text that a check sends or searches for, in bytes: more than any greeting or state of a server. It fits
/// a socket's buffer, so sending never blocks.
pub(super) const CHECK_TEXT_BYTES_MAX: usize = 1_024;

/// The most statuses and ranges of one check: each reply is compared with all.
pub(super) const STATUS_RANGES_MAX: usize = 16;

/// The interval of checks and probes: more than ten a second is load, and one in ten minutes checks nothing.
pub(super) const INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// The timeout of one check: below 10 ms a busy host fails its own checks.
pub(super) const TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// How many equal results in a row change a backend's state; with the longest interval, 100 already take 17 hours.
pub(super) const STREAK: (u32, u32) = (1, 100);

/// How long a returned backend takes to get its whole weight: in ten steps, each a write of its list's table.
pub(super) const SLOW_START: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));

/// How long a lost list may be held. After a day other pods have its addresses.
pub(super) const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

/// How long losses of many services count as one event.
pub(super) const MASS_LOSS_WINDOW: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// How long a client stays with its backend: the bounds of `sessionAffinityConfig` in Kubernetes.
pub(super) const AFFINITY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

/// The fewest and the most services to configure; the two below are the same for frontends and backends. A frontend
/// costs about 100 bytes of kernel memory and a backend 12, so the largest values cost some 600 MB.
pub(super) const DATAPATH_SERVICES: (u32, u32) = (1, 1_000_000);
/// Like [`DATAPATH_SERVICES`].
pub(super) const DATAPATH_FRONTENDS: (u32, u32) = (1, 4_000_000);
/// Like [`DATAPATH_SERVICES`].
pub(super) const DATAPATH_BACKENDS: (u32, u32) = (1, 16_000_000);
