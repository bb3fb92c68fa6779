//! Valid and hostile answers.

use proptest::prelude::*;

use super::*;

/// An answer under construction, record by record.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) bytes: Vec<u8>,
}

impl Written {
    /// Repeats the question without records, as a resolver.
    pub(crate) fn to(question: &Question) -> Self {
        let mut bytes = question.message.get(..question.end).unwrap().to_vec();
        (bytes[2], bytes[3], bytes[11]) = (0x81, 0x80, 0);
        Self { bytes }
    }

    pub(crate) fn code(mut self, code: u8) -> Self {
        self.bytes[3] = self.bytes[3] & 0xf0 | code;
        self
    }

    pub(crate) fn flags(mut self, first: u8, second: u8) -> Self {
        (self.bytes[2], self.bytes[3]) = (first, second);
        self
    }

    pub(crate) fn record(mut self, owner: &str, (kind, seconds): (u16, u32), body: &[u8]) -> Self {
        let count = read_u16(&self.bytes[6..8]) + 1;
        self.bytes[6..8].copy_from_slice(&count.to_be_bytes());
        self.bytes.extend(name(owner).to_wire());
        self.bytes.extend(kind.to_be_bytes());
        self.bytes.extend([0, 1]);
        self.bytes.extend(seconds.to_be_bytes());
        self.bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        self.bytes.extend(body);
        self
    }

    pub(crate) fn a(self, owner: &str, seconds: u32, last: u8) -> Self {
        self.record(owner, (1, seconds), &[192, 0, 2, last])
    }

    pub(crate) fn alias(self, owner: &str, seconds: u32, target: &str) -> Self {
        self.record(owner, (5, seconds), &name(target).to_wire())
    }

    pub(crate) fn srv(self, owner: &str, numbers: [u16; 3], target: &str) -> Self {
        let body = [&numbers.map(u16::to_be_bytes).concat(), &name(target).to_wire()[..]].concat();
        self.record(owner, (33, 30), &body)
    }
}

impl Written {
    /// Only the header, as from a server that cannot parse the question.
    pub(crate) fn header(mut self) -> Self {
        self.bytes.truncate(HEADER_BYTES);
        self.bytes[5] = 0;
        self.code(RCODE_FORMERR)
    }
}

impl Question {
    /// Parses a question as servers do.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        let asked = name::read_name(bytes, HEADER_BYTES).unwrap();
        let kind = read_u16(&bytes[asked.end..]);
        let kind = [RecordType::A, RecordType::Aaaa, RecordType::Srv]
            .into_iter()
            .find(|it| *it as u16 == kind)
            .unwrap();
        let mut question = Self::new(read_u16(bytes), &asked.name.unwrap(), kind);
        if bytes.len() == question.end {
            question = question.without_edns();
        }
        assert_eq!(question.as_bytes(), bytes);
        question
    }

    pub(crate) fn has_options(&self) -> bool {
        self.message.len() > self.end
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn kind(&self) -> RecordType {
        self.kind
    }

    pub(crate) fn id(&self) -> u16 {
        read_u16(&self.message)
    }
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn asked(kind: RecordType) -> Question {
    Question::new(7, &name("web.example.com"), kind)
}

#[test]
fn a_question_without_edns_is_the_prefix_of_the_other() {
    let plain = asked(RecordType::A).without_edns();
    let whole = asked(RecordType::A);
    assert_eq!(plain.as_bytes().len() + 11, whole.as_bytes().len());
    assert_eq!((whole.as_bytes()[11], plain.as_bytes()[11]), (1, 0));
    assert_eq!(plain.as_bytes()[12..], whole.as_bytes()[12..plain.as_bytes().len()]);
}

/// A forged message that only guesses the id can at most make us ask again without EDNS.
#[test]
fn a_bare_header_can_only_be_a_formerr() {
    let question = asked(RecordType::A);
    let read = |written: Written| Answer::parse(&question, &written.bytes).map(|it| it.rcode);
    let header = || Written::to(&question).header();
    assert_eq!(read(header()), Ok(1));
    for code in [0, 2, 3, 4, 5] {
        assert_eq!(read(header().code(code)), Err(AnswerError::Mismatch), "{code}");
    }
    let mut other = header();
    other.bytes[1] ^= 1;
    assert_eq!(read(other), Err(AnswerError::Mismatch), "another number");
    let longer = header().a("web.example.com", 30, 1);
    assert_eq!(read(longer), Err(AnswerError::Mismatch), "more than a header");
}

#[track_caller]
fn check(kind: RecordType, written: &Written, expected: Result<(&[u8], Option<u32>), AnswerError>) {
    let question = asked(kind);
    let found = Answer::parse(&question, &written.bytes).and_then(|answer| answer.name_records(&question));
    let expected = expected.map(|(lasts, seconds)| {
        let addresses = lasts.iter().map(|last| IpAddr::from([192, 0, 2, *last])).collect();
        NameRecords { addresses, servers: Vec::new(), ttl: seconds }
    });
    assert_eq!(found, expected);
}

fn answer() -> Written {
    Written::to(&asked(RecordType::A))
}

#[test]
fn a_question_is_what_the_rfc_says() {
    let question = Question::new(0x0102, &name("a.bc"), RecordType::Srv);
    let header = [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
    let asked = [1, b'a', 2, b'b', b'c', 0, 0, 33, 0, 1];
    let options = [0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0, 0, 0];
    assert_eq!(question.as_bytes(), [&header[..], &asked, &options].concat());
}

#[test]
fn an_answer_yields_its_addresses_and_the_least_ttl() {
    let two = answer().a("web.example.com", 300, 1).a("web.example.com", 30, 2);
    check(RecordType::A, &two, Ok((&[1, 2], Some(30))));
    check(RecordType::A, &answer(), Ok((&[], None)));
    check(RecordType::A, &answer().code(3), Ok((&[], None)));
    // A TTL with the highest bit set counts as zero.
    check(RecordType::A, &answer().a("web.example.com", u32::MAX, 1), Ok((&[1], Some(0))));
}

#[test]
fn records_of_other_names_and_kinds_count_for_nothing() {
    let others = answer()
        .a("www.example.com", 30, 6)
        .record("web.example.com", (16, 30), b"\x03any")
        .record("web.example.com", (28, 30), &[0x20; 16])
        .a("web.example.com", 30, 1)
        .a("evil.example.net", 30, 66);
    check(RecordType::A, &others, Ok((&[1], Some(30))));
    let of_another_class = {
        let mut written = answer().a("web.example.com", 30, 1);
        let class = written.bytes.len() - 11;
        written.bytes[class] = 3;
        written
    };
    check(RecordType::A, &of_another_class, Ok((&[], None)));
}

#[test]
fn aliases_are_followed_in_any_order_up_to_a_limit() {
    let alias = answer().a("b.example.net", 60, 1).alias("a.example.net", 20, "b.example.net");
    check(RecordType::A, &alias.clone().alias("web.example.com", 300, "a.example.net"), Ok((&[1], Some(20))));
    check(RecordType::A, &answer().alias("web.example.com", 9, "a.example.net"), Ok((&[], None)));
    let of_its_zone = |it: Written| it.flags(0x84, 0);
    check(RecordType::A, &of_its_zone(answer()), Ok((&[], None)));
    let led_out = answer().alias("web.example.com", 9, "a.example.net");
    check(RecordType::A, &of_its_zone(led_out.clone()), Err(AnswerError::Referral));
    check(RecordType::A, &of_its_zone(led_out.a("a.example.net", 60, 1)), Ok((&[1], Some(9))));
    let circle =
        answer().alias("web.example.com", 9, "b.example.net").alias("b.example.net", 9, "web.example.com");
    check(RecordType::A, &circle, Err(AnswerError::Aliases));
    let chain = |length: usize| {
        let name =
            |at: usize| if at == 0 { "web.example.com".to_owned() } else { format!("n{at}.example.com") };
        let links = (0..length).fold(answer(), |it, at| it.alias(&name(at), 9, &name(at + 1)));
        links.a(&name(length), 9, 1)
    };
    check(RecordType::A, &chain(ALIASES_MAX), Ok((&[1], Some(9))));
    check(RecordType::A, &chain(ALIASES_MAX + 1), Err(AnswerError::Aliases));
}

/// A label with a dot is possible in a message but not in a name.
#[test]
fn an_answer_with_an_invalid_target_name_is_broken() {
    let no_name = b"\x01.\0";
    let broken = answer().a("web.example.com", 30, 1).record("web.example.com", (5, 30), no_name);
    check(RecordType::A, &broken, Err(AnswerError::Broken));
    let of_another = answer().a("web.example.com", 30, 1).record("www.example.com", (5, 30), no_name);
    check(RecordType::A, &of_another, Ok((&[1], Some(30))));
    let question = asked(RecordType::Srv);
    let servers = Written::to(&question).srv("web.example.com", [10, 5, 8080], "one.example.com");
    let broken = servers.record("web.example.com", (33, 20), &[&[0, 10, 0, 5, 0, 80][..], no_name].concat());
    let read = Answer::parse(&question, &broken.bytes).and_then(|answer| answer.name_records(&question));
    assert_eq!(read, Err(AnswerError::Broken));
}

#[test]
fn srv_records_are_read_and_the_root_is_a_target() {
    let question = asked(RecordType::Srv);
    let written = Written::to(&question).srv("web.example.com", [10, 5, 8080], "one.example.com").record(
        "web.example.com",
        (33, 20),
        &[0, 20, 0, 0, 0, 0, 0],
    );
    let found = Answer::parse(&question, &written.bytes).unwrap().name_records(&question).unwrap();
    let one = SrvRecord { priority: 10, target: name("one.example.com"), port: 8080, weight: 5 };
    assert_eq!((&found.servers[0], found.servers.len(), found.ttl), (&one, 2, Some(20)));
    assert!(found.servers[1].target.is_root());
}

#[test]
fn a_message_that_does_not_repeat_the_question_mismatches() {
    let good = answer().a("web.example.com", 30, 1).bytes;
    let read = |question: Question, bytes: &[u8]| Answer::parse(&question, bytes).map(|_| ());
    assert_eq!(read(asked(RecordType::A), &good), Ok(()));
    let others = [
        ("another number", Question::new(8, &name("web.example.com"), RecordType::A)),
        ("another name", Question::new(7, &name("wab.example.com"), RecordType::A)),
        ("another kind", asked(RecordType::Aaaa)),
    ];
    for (what, question) in others {
        assert_eq!(read(question, &good), Err(AnswerError::Mismatch), "{what}");
    }
    assert_eq!(
        read(asked(RecordType::A), asked(RecordType::A).as_bytes()),
        Err(AnswerError::Mismatch),
        "a question"
    );
    for (at, byte, what) in [(13, b'W', "other letters"), (5, 2, "two questions"), (2, 0xa1, "an update")] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        assert_eq!(read(asked(RecordType::A), &bytes), Err(AnswerError::Mismatch), "{what}");
    }
    for length in 0..asked(RecordType::A).end {
        assert_eq!(read(asked(RecordType::A), &good[..length]), Err(AnswerError::Mismatch), "{length}");
    }
}

#[test]
fn an_answer_is_read_whole_or_not_at_all() {
    let whole = answer().a("web.example.com", 30, 1).srv("x.example.com", [0, 0, 1], "y.example.com").bytes;
    for length in asked(RecordType::A).end..whole.len() {
        let read = Answer::parse(&asked(RecordType::A), &whole[..length]).map(|_| ());
        assert_eq!(read, Err(AnswerError::Broken), "{length}");
    }
    for (kind, body) in [(1, &[192, 0, 2][..]), (28, &[0; 15]), (5, b"\x01a"), (5, b"\0\0"), (33, &[0; 6])] {
        check(RecordType::A, &answer().record("web.example.com", (kind, 1), body), Err(AnswerError::Broken));
    }
    let mut looping = answer().record("web.example.com", (5, 1), b"\xc0\xff");
    let end = u16::try_from(looping.bytes.len() - 2).unwrap();
    let at = usize::from(end);
    looping.bytes[at..].copy_from_slice(&(0xc000 | end).to_be_bytes());
    check(RecordType::A, &looping, Err(AnswerError::Broken));
}

#[test]
fn a_referral_differs_from_a_missing_name() {
    check(RecordType::A, &answer().code(2), Err(AnswerError::Code(2)));
    check(RecordType::A, &answer().code(5), Err(AnswerError::Code(5)));
    // Neither recursive nor authoritative.
    check(RecordType::A, &answer().flags(0x80, 0), Err(AnswerError::Referral));
    check(RecordType::A, &answer().flags(0x80, 3), Err(AnswerError::Referral));
    check(RecordType::A, &answer().flags(0x84, 0), Ok((&[], None)));
    check(RecordType::A, &answer().a("web.example.com", 1, 1).flags(0x80, 0), Ok((&[1], Some(1))));
    assert_eq!(AnswerError::Code(2).to_string(), "it answered with SERVFAIL");
    assert_eq!(AnswerError::Code(9).to_string(), "it answered with code 9");
}

#[test]
fn a_truncated_answer_yields_no_records() {
    let cut = answer().a("web.example.com", 30, 1).flags(0x83, 0x80);
    let half = cut.bytes.get(..cut.bytes.len() - 3).unwrap();
    let read = Answer::parse(&asked(RecordType::A), half).unwrap();
    assert!(read.is_truncated && read.addresses().next().is_none());
}

#[test]
fn the_largest_answer_is_read_at_once() {
    let mut written = Written::to(&asked(RecordType::Srv));
    for number in 0..1_000_u16 {
        written = written.srv("web.example.com", [0, number, 80], &format!("host-{number}.example.com"));
    }
    assert!(written.bytes.len() < BYTES_MAX);
    let began = std::time::Instant::now();
    let question = asked(RecordType::Srv);
    let found = Answer::parse(&question, &written.bytes).unwrap().name_records(&question).unwrap();
    assert_eq!(found.servers.len(), 1_000);
    assert!(began.elapsed().as_millis() < 500, "{:?}", began.elapsed());
}

proptest! {
    #[test]
    fn no_answer_makes_the_parser_panic(
        tail in proptest::collection::vec(any::<u8>(), 0..300),
        count in any::<u16>(),
        flags in any::<u8>(),
    ) {
        for kind in [RecordType::A, RecordType::Aaaa, RecordType::Srv] {
            let question = asked(kind);
            let mut bytes = Written::to(&question).bytes;
            bytes[3] = flags;
            bytes[6..8].copy_from_slice(&count.to_be_bytes());
            bytes.extend(&tail);
            let _ = Answer::parse(&question, &bytes).and_then(|answer| answer.name_records(&question));
        }
    }
}
