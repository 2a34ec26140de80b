//! How deep the upstream's messages nest, looked at as they pass.
//!
//! Decoding recurses, and nothing else bounds it here (see [`crate::unknown`]): an answer in which a bit has changed may be
//! groups in groups as far as a value is long. This walks through messages as they arrive, in whatever pieces, and keeps
//! nothing of them.

use tonic::Status;

use crate::unknown::{self, MessageId, Schema};

/// Levels of messages: 128 Txns nest by way of as many operations, with what stands in the last.
const MAX_DEPTH: usize = 2 * 128 + 4;
/// Messages of fewer bytes cannot nest deeper than that: each level takes one, even of groups. Most answers are so short.
const SHALLOW: u64 = MAX_DEPTH as u64;
/// Compressed flag and length.
const HEADER: usize = 5;

/// Looks at the messages of one answer.
#[derive(Debug)]
pub(crate) struct Depth {
    schema: &'static Schema,
    root: MessageId,
    at: At,
    /// The number that is being read, and how many of its bits are there.
    number: (u64, u32),
    /// How far the message has been gone through.
    position: u64,
    /// The messages that are open, with the places where they end.
    open: Vec<(MessageId, u64)>,
}

#[derive(Clone, Copy, Debug)]
enum At {
    Header([u8; HEADER], usize),
    Tag,
    Varint,
    /// The length of a field, a message's or some bytes'.
    Length(Option<MessageId>),
    Bytes(u64),
}

// === impl Depth ===

impl Depth {
    /// For the answers to a method, if it is of the API.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let schema = unknown::schema().ok()?;
        let root = schema.response(path)?;
        let at = At::Header([0; HEADER], 0);
        Some(Self { schema, root, at, number: (0, 0), position: 0, open: Vec::new() })
    }

    /// Looks at the next piece of the answer.
    ///
    /// # Errors
    /// For one that is not to be decoded.
    pub(crate) fn look(&mut self, mut piece: &[u8]) -> Result<(), Status> {
        loop {
            self.close()?;
            let Some((first, rest)) = piece.split_first() else { return Ok(()) };
            match &mut self.at {
                At::Header(header, filled) => {
                    if let Some(byte) = header.get_mut(*filled) {
                        *byte = *first;
                    }
                    *filled += 1;
                    piece = rest;
                    if *filled == HEADER {
                        let [flag, a, b, c, d] = *header;
                        self.begin(flag, u32::from_be_bytes([a, b, c, d]).into());
                    }
                }
                At::Bytes(left) => {
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                    piece = piece.get(length..).unwrap_or_default();
                    *left -= length as u64;
                    self.position += length as u64;
                }
                At::Tag | At::Varint | At::Length(_) => {
                    piece = rest;
                    self.position += 1;
                    if let Some(number) = self.number(*first)? {
                        self.at = self.after(number)?;
                    }
                }
            }
        }
    }

    fn begin(&mut self, flag: u8, length: u64) {
        self.position = 0;
        // What is compressed is nothing that is accepted.
        let walked = flag == 0 && length >= SHALLOW;
        self.at = if walked { At::Tag } else { At::Bytes(length) };
        self.open.extend(walked.then_some((self.root, length)));
    }

    /// Closes what ends here.
    fn close(&mut self) -> Result<(), Status> {
        match self.at {
            At::Bytes(0) => self.at = At::Tag,
            At::Tag if self.number.1 == 0 => {}
            _ => return Ok(()),
        }
        while let Some((_, end)) = self.open.last() {
            match self.position.cmp(end) {
                std::cmp::Ordering::Less => return Ok(()),
                std::cmp::Ordering::Equal => self.open.pop(),
                std::cmp::Ordering::Greater => return Err(malformed()),
            };
        }
        self.at = At::Header([0; HEADER], 0);
        Ok(())
    }

    /// Takes a byte of a number. Returns the number with its last one.
    fn number(&mut self, byte: u8) -> Result<Option<u64>, Status> {
        let (number, bits) = self.number;
        if bits > 63 {
            return Err(malformed());
        }
        let number = number | u64::from(byte & 0x7f) << bits;
        if byte >= 0x80 {
            self.number = (number, bits + 7);
            return Ok(None);
        }
        self.number = (0, 0);
        Ok(Some(number))
    }

    /// What comes after this number.
    fn after(&mut self, number: u64) -> Result<At, Status> {
        match self.at {
            At::Tag => match number & 7 {
                0 => Ok(At::Varint),
                1 => Ok(At::Bytes(8)),
                2 => {
                    let message = self.open.last().and_then(|(id, _)| self.schema.inner(*id, number >> 3));
                    Ok(At::Length(message))
                }
                5 => Ok(At::Bytes(4)),
                // Groups, which no message of the API has.
                _ => Err(malformed()),
            },
            At::Length(Some(id)) => {
                let end = self.position.saturating_add(number);
                if self.open.len() >= MAX_DEPTH || self.open.last().is_some_and(|(_, outer)| end > *outer) {
                    return Err(malformed());
                }
                self.open.push((id, end));
                Ok(At::Tag)
            }
            At::Length(None) => Ok(At::Bytes(number)),
            At::Header(..) | At::Varint | At::Bytes(_) => Ok(At::Tag),
        }
    }
}

fn malformed() -> Status {
    Status::internal("etcd-proxy: the upstream's answer cannot be decoded")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;
    use proto::{
        etcdserverpb::{RangeResponse, ResponseHeader, ResponseOp, TxnResponse, response_op::Response},
        mvccpb::KeyValue,
    };

    use super::*;

    const TXN: &str = "/etcdserverpb.KV/Txn";

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0], &u32::try_from(message.len()).unwrap().to_be_bytes()[..], message].concat()
    }

    /// The message behind so many bytes that it is walked through: an unknown field of them.
    fn walked(message: &[u8]) -> Vec<u8> {
        [&[0x7a, 0xac, 0x02][..], &[0; 300], message].concat()
    }

    fn nested(levels: usize) -> TxnResponse {
        let kv = KeyValue { key: "k".into(), lease: -1, ..Default::default() };
        let range = RangeResponse { kvs: vec![kv], ..Default::default() };
        let range = TxnResponse {
            responses: vec![ResponseOp { response: Some(Response::ResponseRange(range)) }],
            header: Some(ResponseHeader { revision: i64::MAX, ..Default::default() }),
            ..Default::default()
        };
        (1..levels).fold(range, |inner, _| TxnResponse {
            responses: vec![ResponseOp { response: Some(Response::ResponseTxn(inner)) }],
            ..Default::default()
        })
    }

    fn look(bytes: &[u8], piece: usize) -> bool {
        let mut depth = Depth::of(TXN).unwrap();
        bytes.chunks(piece).all(|piece| depth.look(piece).is_ok())
    }

    #[test]
    fn as_deep_as_etcd_goes_and_no_deeper() {
        // Short ones are not looked at, and those behind them are.
        let after_short = [framed(&nested(1).encode_to_vec()), framed(&[]), framed(&vec![15 << 3 | 3; 300])].concat();
        assert!([1, 3, 1 << 20].iter().all(|piece| !look(&after_short, *piece)));
        for levels in [1, 2, 100, 128] {
            let answer = framed(&nested(levels).encode_to_vec());
            assert!([1, 3, 1 << 20].iter().all(|piece| look(&answer, *piece)), "{levels}");
        }
        assert!(!look(&framed(&nested(200).encode_to_vec()), 1 << 20));
        assert!(!look(&framed(&vec![15 << 3 | 3; 1 << 20]), 1000));
    }

    #[test]
    fn fields_that_are_not_known_are_passed_over() {
        let mut answer = walked(&nested(2).encode_to_vec());
        answer.extend([0x78, 1, 0x79, 1, 2, 3, 4, 5, 6, 7, 8, 0x7a, 2, 0x7b, 0x7b, 0x7d, 1, 2, 3, 4]);
        assert!([1, 2, 7, 1000].iter().all(|piece| look(&framed(&answer), *piece)));
        answer.push(15 << 3 | 3);
        assert!(!look(&framed(&answer), 1000));
        assert!(Depth::of("/no.such/Method").is_none());
    }

    proptest! {
        #[test]
        fn what_passes_is_decoded_without_a_deep_stack(
            levels in 1usize..4,
            flips in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..4),
            piece in 1usize..64,
        ) {
            let mut message = walked(&nested(levels).encode_to_vec());
            for (at, bit) in flips {
                let at = at.index(message.len());
                message[at] ^= 1 << bit;
            }
            let twice = [framed(&message), framed(&message)].concat();
            // The pieces make no difference, and what Go and prost take passes.
            prop_assert_eq!(look(&twice, piece), look(&twice, twice.len()));
            if TxnResponse::decode(&message[..]).is_ok() && !message.is_empty() {
                let groups = !look(&framed(&message), 1 << 20);
                prop_assert!(!groups || message.iter().any(|byte| byte & 7 == 3));
            }
        }
    }
}
