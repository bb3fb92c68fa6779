//! Every bound of a configuration, each with its reason.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The largest file, in bytes. A hand-written file has a few KiB; 1,000 full service blocks fit with room.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// The most `[[service]]` blocks: beyond what a person keeps in one file, manifests are the better source.
pub(super) const SERVICES_MAX: usize = 1_000;

/// The most `[[service]]` blocks of all files together: what a registry of a large site has, and each of their files is
/// read again when it changes.
pub(super) const BLOCKS_MAX: usize = 10_000;

/// The most frontends in one block: one address for each port of a wide range, written out.
pub(super) const FRONTENDS_MAX: usize = 1_000;

/// The most backends in one block: what Kubernetes puts into one Service's first ten slices.
pub(super) const BACKENDS_MAX: usize = 1_000;

/// The most addresses that are announced: each is looked at with every change of the services, and written again every
/// few seconds. A router that takes more from one host is rare.
pub(super) const ANNOUNCED_MAX: usize = 1_000;

/// The tables of routes that may have announced addresses: 252 to 255 are the kernel's own, and FRR takes none beyond.
pub(super) const ROUTE_TABLES: (u32, u32) = (1, 251);

/// The most apiserver addresses: a failover walks them one by one, three seconds each in the worst case.
pub(super) const APISERVERS_MAX: usize = 16;

/// The most name servers: a name that none of them answers is asked for at each of them twice, a second each time.
pub(super) const RESOLVERS_MAX: usize = 4;

/// The most ranges for NodePorts: every local address is compared with each of them.
pub(super) const CIDRS_MAX: usize = 64;

/// The most subtrees of cgroups that are left alone: as many as the programs' map holds. A node has a handful of
/// systemd's slices.
pub(super) const EXEMPT_CGROUPS_MAX: usize = 64;

/// The deepest level at which such a subtree may begin: programs look at so many levels of each client's cgroup. A
/// container is at about the fifth.
pub(super) const CGROUP_LEVELS_MAX: usize = 16;

/// The most names or patterns of devices: each device is compared with each of them.
pub(super) const DEVICE_NAMES_MAX: usize = 64;

/// The longest name of a device: `IFNAMSIZ` is 16, one of them the final NUL.
pub(super) const DEVICE_NAME_BYTES_MAX: usize = 15;

/// The fewest and the most flows that an operator may ask for. One flow costs some 740 bytes of kernel memory at most,
/// so the largest value costs about 3.1 GB.
pub(super) const FLOWS: (u32, u32) = (1_024, 4_194_304);

/// The most ranges in `snat_ports`: as many as the programs have room for.
pub const SNAT_RANGES_MAX: usize = 4;

/// The most networks in `dsr_from`: as many of each family as the programs have room for.
pub(super) const NODE_NETWORKS_MAX: usize = 16;

/// The fewest bits of a network in `dsr_from`, by family. With fewer, others than nodes would be taken for nodes.
pub(super) const NODE_BITS_MIN: [u8; 2] = [8, 16];

/// The ports that an apiserver gives to Services of type NodePort, unless its operator chose others.
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// The most errors, and the most warnings, that a report holds; further errors are counted. It is more than anyone
/// reads before the first fix.
pub(super) const PROBLEMS_MAX: usize = 1_000;

/// The most characters of a wrong value that a message repeats, so that a message stays one line.
pub(super) const QUOTED_CHARS_MAX: usize = 80;

/// The longest DNS label, and the longest value of a Kubernetes label (RFC 1123, Kubernetes).
pub(super) const LABEL_BYTES_MAX: usize = 63;

/// The longest DNS name (RFC 1123).
pub(super) const NAME_BYTES_MAX: usize = 253;

/// The longest path of a unix socket: `sun_path` has 108 bytes, one of them the final NUL.
pub(super) const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The longest path of an HTTP health check, in bytes: it must fit the one buffer a check sends from.
pub(super) const CHECK_PATH_BYTES_MAX: usize = 1_024;

/// The longest text that a check sends or looks for, in bytes: more than any greeting or state of a server, and it fits
/// the buffer of a socket, so sending it waits for no reader.
pub(super) const CHECK_TEXT_BYTES_MAX: usize = 1_024;

/// The most statuses and ranges of them that a check may name: each answer is compared with all.
pub(super) const STATUS_RANGES_MAX: usize = 16;

/// How often a backend may be checked or probed: faster than ten times a second is load, slower than ten
/// minutes is no check.
pub(super) const INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// How long one check may take: below 10 ms a busy host fails its own checks.
pub(super) const TIMEOUT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));

/// How many equal results in a row change what a check says of a backend; with the longest interval, 100 already take
/// 17 hours.
pub(super) const STREAK: (u32, u32) = (1, 100);

/// Within which time a backend that has returned gets its whole weight: in ten steps, each a write of its list's table.
pub(super) const SLOW_START: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));

/// How long a lost list may be held. After a day other pods have its addresses.
pub(super) const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

/// How long the losses of many services count as one event.
pub(super) const MASS_LOSS_WINDOW: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// How long a client stays with its backend: the bounds of `sessionAffinityConfig` in Kubernetes.
pub(super) const AFFINITY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

/// The least and the most services that an operator may allow the datapath; the two below are the same for frontends
/// and backends. A frontend costs about 100 bytes of kernel memory and a backend 12, so the largest values cost some
/// 600 MB.
pub(super) const DATAPATH_SERVICES: (u32, u32) = (1, 1_000_000);
/// As for [`DATAPATH_SERVICES`].
pub(super) const DATAPATH_FRONTENDS: (u32, u32) = (1, 4_000_000);
/// As for [`DATAPATH_SERVICES`].
pub(super) const DATAPATH_BACKENDS: (u32, u32) = (1, 16_000_000);
