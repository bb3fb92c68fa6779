//! Encodes the request of `grpc.health.v1.Health/Check` and decodes its response, each with its gRPC prefix.
//!
//! Invariant: a response is one uncompressed message, as requested. Unknown fields are skipped, as in protobuf.

use holdfast_core::words;

use super::write_varint;
use holdfast_objects::protobuf::Fields;

/// The method to call.
pub(super) const PATH: &str = "/grpc.health.v1.Health/Check";

/// The only field of both messages: the service as a string, its status as an enum.
const FIELD: u32 = 1;
const SERVICE_KEY: u8 = 0x0a;

words! {
    /// A service's health by its server.
    pub(crate) enum ServingStatus {
        Unknown = "UNKNOWN",
        Serving = "SERVING",
        NotServing = "NOT_SERVING",
        ServiceUnknown = "SERVICE_UNKNOWN",
    }
}

/// Encodes a request for a service; an empty name means the whole server.
pub(super) fn encode_request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(SERVICE_KEY);
        write_varint(&mut message, service.len());
        message.extend(service.as_bytes());
    }
    let [.., a, b, c, d] = message.len().to_be_bytes();
    [&[0, a, b, c, d], message.as_slice()].concat()
}

/// Decodes a response; `None`: it is no complete message, or has an unknown status.
pub(super) fn parse_response(bytes: &[u8]) -> Option<ServingStatus> {
    let (&[compressed, a, b, c, d], message) = bytes.split_first_chunk()?;
    let is_whole = usize::try_from(u32::from_be_bytes([a, b, c, d])) == Ok(message.len());
    let mut fields = (is_whole && compressed == 0).then(|| Fields::new(message))?;
    let mut status = 0;
    while let Some(field) = fields.next_field().ok()? {
        if field.number == FIELD {
            status = field.number().ok()?;
        }
    }
    ServingStatus::ALL.get(usize::try_from(status).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_its_service_or_none() {
        assert_eq!(encode_request(""), b"\0\0\0\0\0");
        assert_eq!(encode_request("web"), b"\0\0\0\0\x05\x0a\x03web");
        let long = "s".repeat(300);
        assert_eq!(encode_request(&long), [b"\0\0\0\x01\x2f\x0a\xac\x02", long.as_bytes()].concat());
    }

    #[track_caller]
    fn check(rule: &str, bytes: &[u8], expected: Option<ServingStatus>) {
        assert_eq!(parse_response(bytes), expected, "{rule}");
    }

    #[test]
    fn an_answer_is_one_whole_message() {
        check("no status is the first one", b"\0\0\0\0\0", Some(ServingStatus::Unknown));
        check("", b"\0\0\0\0\x02\x08\x00", Some(ServingStatus::Unknown));
        check("", b"\0\0\0\0\x02\x08\x01", Some(ServingStatus::Serving));
        check("", b"\0\0\0\0\x02\x08\x02", Some(ServingStatus::NotServing));
        check("", b"\0\0\0\0\x02\x08\x03", Some(ServingStatus::ServiceUnknown));
        check("a status to come", b"\0\0\0\0\x02\x08\x04", None);
        check("a negative one", b"\0\0\0\0\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", None);
        check("the last one counts", b"\0\0\0\0\x04\x08\x01\x08\x02", Some(ServingStatus::NotServing));
        check("a field to come", b"\0\0\0\0\x05\x12\x01a\x08\x01", Some(ServingStatus::Serving));
        check("no message", b"", None);
        check("half of what stands before one", b"\0\0\0\0", None);
        check("compressed", b"\x01\0\0\0\x02\x08\x01", None);
        check("cut", b"\0\0\0\0\x02\x08", None);
        check("longer than it says", b"\0\0\0\0\x01\x08\x01", None);
        check("a second message", b"\0\0\0\0\x02\x08\x01\0\0\0\0\0", None);
        check("a status that is a text", b"\0\0\0\0\x03\x0a\x011", None);
        check("no protobuf", b"\0\0\0\0\x02\x0f\x0f", None);
    }
}
