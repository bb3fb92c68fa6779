//! Uids of objects: 16 bytes in the usual form, otherwise text.
//!
//! Invariant: a uid is shown as it was written.

/// A uid, stored as 16 bytes or as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UidText<'a> {
    /// The usual form, `8-4-4-4-12` hexadecimal digits in lower case.
    Uuid([u8; 16]),
    Text(&'a str),
}

impl<'a> UidText<'a> {
    /// Whether the slice has no uid.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Text(""))
    }

    /// Packs the usual form into bytes; keeps any other text.
    pub fn parse(text: &'a str) -> Self {
        parse_uuid(text).map_or(Self::Text(text), Self::Uuid)
    }
}

impl core::fmt::Display for UidText<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Uuid(bytes) => {
                for (position, byte) in bytes.iter().enumerate() {
                    let dash = if matches!(position, 4 | 6 | 8 | 10) { "-" } else { "" };
                    write!(f, "{dash}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let well_formed = text.len() == 36
        && text.bytes().enumerate().all(|(position, byte)| match position {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        });
    if !well_formed {
        return None;
    }
    let mut digits = text.bytes().filter_map(|byte| (byte as char).to_digit(16));
    let mut uuid = [0_u8; 16];
    for byte in &mut uuid {
        *byte = u8::try_from(digits.next()? * 16 + digits.next()?).ok()?;
    }
    Some(uuid)
}
