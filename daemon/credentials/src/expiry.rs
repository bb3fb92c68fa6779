//! Reads when a credential expires, from the credential itself.
//!
//! Invariant: the time is only shown to people. Nothing depends on it, and a time that cannot be read is not shown.
//! Certificates are not parsed as a whole: the fields before `notAfter` are skipped.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;

/// The `exp` of a JWT, such as a service account's token.
pub(super) fn token_expiry(token: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: u64,
    }
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp))
}

/// The `notAfter` of the first certificate.
pub(super) fn certificate_expiry(pem: &[u8]) -> Option<SystemTime> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    not_after(&der)
}

const SEQUENCE: u8 = 0x30;
/// The tag of the version, which only certificates of version 1 omit.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Certificate { tbs { version?, serial, signature, issuer, validity { notBefore, notAfter } … } … }
fn not_after(der: &[u8]) -> Option<SystemTime> {
    let (certificate, _) = parse_element(der, SEQUENCE)?;
    let (mut fields, _) = parse_element(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        fields = skip_element(fields)?;
    }
    // Serial number, signature algorithm, issuer.
    let validity = skip_element(skip_element(skip_element(fields)?)?)?;
    let (validity, _) = parse_element(validity, SEQUENCE)?;
    parse_time(skip_element(validity)?)
}

/// An element's content, and the bytes after it.
fn parse_element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        // The length takes one to four bytes; no certificate needs more.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    (*found == tag).then(|| rest.split_at_checked(length))?
}

fn skip_element(der: &[u8]) -> Option<&[u8]> {
    parse_element(der, *der.first()?).map(|(_, rest)| rest)
}

/// Parses a time. Both kinds end with `Z` and differ in the digits of the year; two mean 1950 to 2049 (RFC 5280).
fn parse_time(der: &[u8]) -> Option<SystemTime> {
    let text = match der.first()? {
        &UTC_TIME => {
            let (text, _) = parse_element(der, UTC_TIME)?;
            let text = std::str::from_utf8(text).ok()?;
            let century = if text.get(..2)? < "50" { "20" } else { "19" };
            format!("{century}{text}")
        }
        _ => std::str::from_utf8(parse_element(der, GENERALIZED_TIME)?.0).ok()?.to_owned(),
    };
    let part = |from: usize, to: usize| text.get(from..to);
    let date = format!("{}-{}-{}", part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let clock = format!("{}:{}:{}", part(8, 10)?, part(10, 12)?, part(12, text.len())?);
    let time: Timestamp = format!("{date}T{clock}").parse().ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(time.as_second()).ok()?))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn seconds(time: Option<SystemTime>) -> Option<u64> {
        Some(time?.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
    }

    #[track_caller]
    fn check_year(year: i32, expected: u64) {
        let mut params = CertificateParams::new(["a".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 2);
        let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        assert_eq!(seconds(certificate_expiry(pem.as_bytes())), Some(expected), "{year}");
    }

    #[test]
    fn a_certificates_expiry_is_read_in_both_formats() {
        check_year(2030, 1_893_542_400);
        check_year(2049, 2_493_158_400);
        check_year(2050, 2_524_694_400);
    }

    #[test]
    fn a_jwts_expiry_is_read() {
        let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"exp":1893542400,"iss":"x"}"#);
        assert_eq!(seconds(token_expiry(&format!("e30.{claims}.c2ln"))), Some(1_893_542_400));
        for opaque in
            ["", "opaque", "a.b.c", "a.%%.c", &format!("e30.{}.x", BASE64_URL_SAFE_NO_PAD.encode("{}"))]
        {
            assert_eq!(token_expiry(opaque), None, "{opaque}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(der in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let _ = not_after(&der);
            let _ = not_after(&[&[SEQUENCE, 62, SEQUENCE, 60][..], &der].concat());
        }
    }
}
