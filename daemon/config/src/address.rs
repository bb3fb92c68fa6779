//! Addresses as people write them: `ip:port`, an apiserver's URL, a range.
//!
//! Invariant: a socket can dial every address to be dialled. Host names are rejected: a name needs DNS, and DNS is one
//! of the services behind holdfast.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use toml::de::DeValue;

use super::problem::Message;
use super::value::{quote, string};

const NO_NAMES: &str = "host names are not legal here, because nothing on this path may wait for DNS";

/// The https address of one apiserver. It is an IP address, so that reaching it never needs DNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiserverUrl(SocketAddr);

impl ApiserverUrl {
    pub fn address(self) -> SocketAddr {
        self.0
    }

    /// The address in a URL of a kubeconfig. An error says what is wrong with it, and does not repeat it.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_value(text).map_err(|message| Message::from(message).to_string())
    }

    fn parse_value(text: &str) -> Result<Self, String> {
        // This check comes first, so that no message repeats a secret.
        if text.contains('@') {
            return Err(
                "credentials do not belong into the URL: use token_file or a client certificate".to_owned()
            );
        }
        let Some(authority) = text.strip_prefix("https://") else {
            let legal = "only https is legal, such as \"https://10.0.0.10:6443\"";
            return Err(format!("{} does not begin with https://: {legal}", quote(text)));
        };
        if let Some(end) = authority.find(['/', '?', '#']) {
            let whole = quote(text);
            let origin = quote(authority.get(..end).unwrap_or_default());
            return Err(format!("{whole} has a path: write no more than \"https://\" and {origin}"));
        }
        check_dialable(parse_authority(authority)?).map(Self)
    }
}

impl fmt::Display for ApiserverUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.0)
    }
}

/// The listen address of the admin API: a loopback address, because the API answers to loopback names only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenAddress(SocketAddr);

impl ListenAddress {
    /// The documented default, `127.0.0.1:9890`.
    pub const DEFAULT: Self = Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9890));

    /// The address to bind. Port 0 lets the kernel choose.
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

/// A range of addresses; the host bits of its network are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The first address of the range.
    pub fn network(self) -> IpAddr {
        self.network
    }

    /// How many leading bits all its addresses share.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The last address of the range.
    pub fn last(self) -> IpAddr {
        let host = |bits: u32| u32::from(self.prefix).min(bits);
        match self.network {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shr(host(32)).unwrap_or(0);
                IpAddr::V4((v4.to_bits() | mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shr(host(128)).unwrap_or(0);
                IpAddr::V6((v6.to_bits() | mask).into())
            }
        }
    }

    pub fn contains(self, address: IpAddr) -> bool {
        let bits = |address| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let differing = (bits(self.network) ^ bits(address)).leading_zeros();
        self.network.is_ipv4() == address.is_ipv4() && differing >= u32::from(self.prefix)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// An address and port that a client can dial.
pub(super) fn address_port(value: &DeValue<'_>) -> Result<SocketAddr, String> {
    let text = string(value, "an address and port such as \"192.0.2.1:8080\"")?;
    check_dialable(parse_address_port(text)?)
}

pub(super) fn listen_address(value: &DeValue<'_>) -> Result<ListenAddress, String> {
    let text = string(value, "an address and port such as \"127.0.0.1:9890\"")?;
    let address = parse_address_port(text)?;
    match address.ip().is_loopback() {
        true => Ok(ListenAddress(address)),
        false => Err(format!("{address} is not a loopback address: the admin API is for this host only")),
    }
}

pub(super) fn apiserver_url(value: &DeValue<'_>) -> Result<ApiserverUrl, String> {
    ApiserverUrl::parse_value(string(value, "a URL such as \"https://10.0.0.10:6443\"")?)
}

pub(super) fn cidr(text: &str) -> Result<Cidr, String> {
    let bad = || format!("{} is not a range: write it as \"10.0.0.0/8\" or \"fd00::/64\"", quote(text));
    let (address, prefix) = text.split_once('/').ok_or_else(bad)?;
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let digits_only = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = prefix.parse().ok().filter(|_| digits_only).ok_or_else(bad)?;
    let (address, prefix) = to_ipv4_range(address, prefix);
    let network = network(address, prefix).ok_or_else(bad)?;
    match network == address {
        true => Ok(Cidr { network, prefix }),
        false => Err(format!("{text} has host bits: did you mean \"{network}/{prefix}\"?")),
    }
}

/// An IPv4-mapped range counts as the range of IPv4 addresses.
fn to_ipv4_range(address: IpAddr, prefix: u8) -> (IpAddr, u8) {
    match (address.to_canonical(), prefix.checked_sub(96)) {
        (IpAddr::V4(v4), Some(of_v4)) if address.is_ipv6() => (v4.into(), of_v4),
        _ => (address, prefix),
    }
}

/// The first address of a range; `None` if the prefix is too long for the family.
fn network(address: IpAddr, prefix: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let host_bits = 32_u32.checked_sub(prefix.into())?;
            Some(IpAddr::V4((v4.to_bits() & u32::MAX.checked_shl(host_bits).unwrap_or(0)).into()))
        }
        IpAddr::V6(v6) => {
            let host_bits = 128_u32.checked_sub(prefix.into())?;
            Some(IpAddr::V6((v6.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0)).into()))
        }
    }
}

/// Reads `address`, `address:port`, `[v6]` or `[v6]:port`. The default is the port of https.
fn parse_authority(authority: &str) -> Result<SocketAddr, String> {
    const HTTPS_PORT: u16 = 443;
    if authority.parse::<Ipv6Addr>().is_ok() {
        return Err(format!("an IPv6 address needs brackets: write \"https://[{authority}]\""));
    }
    let bracketed = authority.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let alone = match bracketed {
        Some(inner) => inner.parse().map(IpAddr::V6).ok(),
        None => authority.parse().map(IpAddr::V4).ok(),
    };
    alone
        .map_or_else(|| parse_address_port(authority), |ip| Ok(to_canonical(SocketAddr::new(ip, HTTPS_PORT))))
}

/// Any address and port. An IPv4-mapped address counts as the IPv4 address, as in the objects of a cluster.
pub(super) fn parse_address_port(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| address_port_error(text))?;
    Ok(to_canonical(address))
}

fn to_canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Words the mistake in a text that is no address and port.
fn address_port_error(text: &str) -> String {
    let found = quote(text);
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => return format!("{found} has no port: add it, as in \"{text}:80\""),
        Ok(IpAddr::V6(_)) => return format!("{found} has no port: add it, as in \"[{text}]:80\""),
        Err(_) => (),
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
        && inner.parse::<Ipv6Addr>().is_ok()
    {
        return format!("{found} has no port: add it, as in \"{text}:80\"");
    }
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    if bare.parse::<IpAddr>().is_ok() {
        return format!("{found} has no legal port: {} is not from 1 to 65535", quote(port));
    }
    let named = bare.bytes().any(|byte| byte.is_ascii_alphabetic()) && !bare.contains(':');
    match named {
        true => format!("{found} is not an IP address: {NO_NAMES}"),
        false => {
            format!("{found} is not an address and port: write \"192.0.2.1:8080\" or \"[2001:db8::1]:8080\"")
        }
    }
}

/// Whether an address is valid only on this host or on one link.
pub(super) fn is_link_scoped(ip: IpAddr) -> bool {
    ip.is_loopback()
        || match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
}

/// Rejects an address that no client can dial.
fn check_dialable(address: SocketAddr) -> Result<SocketAddr, String> {
    let ip = address.ip();
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    let scoped = matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0);
    if address.port() == 0 {
        return Err(format!("{address} has port 0: legal is 1 to 65535"));
    }
    if ip.is_unspecified() {
        return Err(format!("{ip} is the unspecified address: name the address that is dialled"));
    }
    if ip.is_multicast() || broadcast {
        return Err(format!("{ip} is a multicast or broadcast address: only unicast addresses are legal"));
    }
    if scoped {
        return Err(format!("{address} has a zone: an address must mean the same on every interface"));
    }
    Ok(address)
}
