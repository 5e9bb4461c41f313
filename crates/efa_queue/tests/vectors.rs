//! Compares every byte with vectors generated from vendors' headers (fixtures/vectors.txt, by scripts/efa-vectors.sh).

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use efa_queue::completion::{Arrived, DecodedCompletion, Sent};
use efa_queue::request::{self, DecodedRequest, Head, RequestData, To};
use efa_queue::{CompletionStatus, EfaOperation, Local, ReceivePiece, Remote, rules};
use std::collections::HashMap;

const VECTORS: &str = include_str!("fixtures/vectors.txt");

/// A line of vectors.txt, and its fields as pairs of name and value.
struct Line<'a>(&'a str, Vec<(&'a str, &'a str)>);

impl<'a> Line<'a> {
    fn all(kind: &str) -> Vec<Line<'a>> {
        let lines = VECTORS.lines().filter(|line| line.split(' ').next() == Some(kind));
        let found: Vec<Line> = lines
            .map(|line| Line(line, line.split(' ').skip(1).map(|field| field.split_once('=').unwrap()).collect()))
            .collect();
        assert!(!found.is_empty(), "no {kind}");
        found
    }

    fn texts(&self, name: &str) -> Vec<&'a str> {
        self.1.iter().filter(|(key, _)| *key == name).map(|(_, value)| *value).collect()
    }

    fn text(&self, name: &str) -> &'a str {
        self.texts(name)[0]
    }

    fn hex(&self, name: &str) -> u64 {
        u64::from_str_radix(self.text(name), 16).unwrap()
    }

    fn decimal(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap()
    }

    fn words(&self) -> Vec<u64> {
        words(self.text("bytes"))
    }

    fn immediate(&self) -> Option<u32> {
        self.texts("immediate").first().map(|text| u32::from_str_radix(text, 16).unwrap())
    }

    fn locals(&self) -> Vec<Local> {
        self.texts("local")
            .iter()
            .map(|text| triple(text))
            .map(|(address, length, key)| Local { address, length, key })
            .collect()
    }
}

fn words(hex: &str) -> Vec<u64> {
    hex.as_bytes()
        .chunks(16)
        .map(|word| u64::from_str_radix(str::from_utf8(word).unwrap(), 16).unwrap().swap_bytes())
        .collect()
}

fn triple(text: &str) -> (u64, u32, u32) {
    let parts: Vec<u64> = text.split(',').map(|part| u64::from_str_radix(part, 16).unwrap()).collect();
    (parts[0], parts[1] as u32, parts[2] as u32)
}

#[test]
fn requests_match_vectors_and_decode_in_every_lap() {
    let mut seen: HashMap<(String, usize, bool, bool), u32> = HashMap::new();
    for line in Line::all("request") {
        let (count, depth) = (line.decimal("count"), line.decimal("depth") as u32);
        let to = To { handle: line.hex("handle") as u16, pair: line.hex("pair") as u16, key: line.hex("qkey") as u32 };
        let phase = rules::send_phase(count, depth);
        let hints = line.hex("hints") as u8;
        let head = Head { id: line.hex("id"), phase, to, immediate: line.immediate(), hints };
        let expected = line.words();
        let locals = line.locals();
        let remote = line.texts("remote").first().map(|text| triple(text)).map(|(address, length, key)| Remote {
            address,
            length,
            key,
        });
        let carried = line.texts("carried").first().map(|text| {
            let (length, bytes) = text.split_once(',').unwrap();
            let bytes: [u64; 10] = words(bytes).try_into().unwrap();
            (bytes, length.parse::<u16>().unwrap())
        });
        let small = expected.len() == request::WORDS;
        let operation = line.text("op");
        let (made, body) = match (operation, remote, carried) {
            ("send", ..) => {
                (request::send(&head, locals[0]).to_vec(), RequestData::Pieces([locals[0], Local::default()], 1))
            }
            // These two are only decoded.
            ("send-two", ..) => (expected.clone(), RequestData::Pieces([locals[0], locals[1]], 2)),
            ("send-inline", _, Some((bytes, length))) => {
                (expected.clone(), RequestData::Carried(bytes, length as usize))
            }
            ("write", Some(there), _) => (
                request::write(&head, locals[0], there.address, there.key).to_vec(),
                RequestData::Memory(locals[0], there),
            ),
            ("read", Some(there), _) => (
                request::read(&head, locals[0], there.address, there.key).to_vec(),
                RequestData::Memory(locals[0], there),
            ),
            ("write-inline", Some(there), Some((bytes, length))) => {
                let made = request::write_inline_128(&head, bytes, length, there.address, there.key);
                (made.to_vec(), RequestData::CarriedTo(bytes, length as usize, there))
            }
            _ => panic!("{}", line.0),
        };
        let made = match (small, made.len()) {
            (false, request::WORDS) => request::wide(made.try_into().unwrap()).to_vec(),
            _ => made,
        };
        assert_eq!(made, expected, "{}", line.0);
        let read = DecodedRequest::decode(&expected).unwrap();
        assert_eq!((read.head, read.body), (head, body), "{}", line.0);
        assert_eq!((request::phase(expected[0]), DecodedRequest::asks_for_completion(&expected)), (phase, true));
        let key = (operation.to_string(), expected.len(), phase, head.immediate.is_some());
        *seen.entry(key).or_default() += 1;
    }
    // Six formats, five of them in both sizes; both phases; with and without an immediate.
    assert_eq!(seen.len(), (5 * 2 + 1) * 4, "{seen:?}");
}

#[test]
fn doorbell_encodes_count_in_16_or_32_bits() {
    for line in Line::all("doorbell") {
        let count = line.decimal("count");
        let bell = rules::doorbell(count);
        assert_eq!((u64::from(bell as u16), u64::from(bell)), (line.hex("short"), line.hex("long")), "{}", line.0);
    }
}

#[test]
fn receives_have_their_bytes() {
    for line in Line::all("receive") {
        let bytes = line.locals()[0];
        let (first, last) = (line.hex("first") == 1, line.hex("last") == 1);
        let (id, length) = (line.hex("id") as u16, bytes.length as u16);
        let receive = ReceivePiece { id, address: bytes.address, length, key: bytes.key, first, last };
        assert_eq!(receive.words().to_vec(), line.words(), "{}", line.0);
        assert_eq!(ReceivePiece::decode(receive.words()), Some(receive));
    }
}

#[test]
fn completions_have_their_bytes() {
    for line in Line::all("completion") {
        let (status, pair) = (line.decimal("status") as u8, line.hex("pair") as u16);
        let operation = EfaOperation::of(line.decimal("operation") as u8).unwrap();
        let phase = line.hex("phase") == 1;
        let expected = line.words();
        let (made, completion) = if line.text("queue") == "send" {
            let sent = Sent { id: line.hex("id"), status, operation, pair };
            (sent.words(phase).to_vec(), DecodedCompletion::Sent(sent))
        } else {
            let (id, handle, source) = (line.hex("id") as u16, line.hex("handle") as u16, line.hex("source") as u16);
            let (immediate, unsolicited) = (line.immediate(), line.hex("unsolicited") == 1);
            let length = line.hex("length") as u32;
            let arrived = Arrived { id, status, operation, pair, length, handle, source, immediate, unsolicited };
            (arrived.words(phase).to_vec(), DecodedCompletion::Arrived(arrived))
        };
        assert_eq!(made, expected, "{}", line.0);
        assert_eq!(DecodedCompletion::decode(&expected), Some(completion), "{}", line.0);
        let head = expected[0];
        let is_arrival = matches!(completion, DecodedCompletion::Arrived(_));
        assert_eq!((efa_queue::completion::phase(head), efa_queue::completion::is_arrival(head)), (phase, is_arrival));
        assert_eq!(efa_queue::completion::status(head), status);
        assert_eq!(CompletionStatus::of(status).map(|status| status as u8), Some(status));
    }
}

#[test]
fn statuses_have_their_numbers() {
    let line = &Line::all("statuses")[0];
    let named = [
        ("local-key", CompletionStatus::LocalKey),
        ("remote-address", CompletionStatus::RemoteAddress),
        ("receiver-not-ready", CompletionStatus::ReceiverNotReady),
        ("unreachable", CompletionStatus::Unreachable),
        ("feature-mismatch", CompletionStatus::FeatureMismatch),
    ];
    for (name, status) in named {
        assert_eq!(line.decimal(name), status as u64);
    }
    for status in CompletionStatus::ALL {
        assert_eq!(CompletionStatus::of(status as u8), Some(status));
        assert_eq!(CompletionStatus::ALL.iter().filter(|other| other.name() == status.name()).count(), 1);
        assert!(!status.text().is_empty());
    }
    assert_eq!([16, 17, 19, 255].map(CompletionStatus::of), [None; 4]);
}
